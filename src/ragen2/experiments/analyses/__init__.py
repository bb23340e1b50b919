"""How the runs of each experiment are read: one function per experiment, found by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from ragen2.component import suggest
from ragen2.errors import ConfigError
from ragen2.experiments.analyses import (
    collapse,
    dynamics,
    filter_gain,
    gradients,
    proxies,
    reward_variance,
    rewards,
    summary,
)
from ragen2.experiments.cells import Cells
from ragen2.experiments.findings import Findings

Analysis = Callable[[Cells], Findings]
ANALYSES: Mapping[str, Analysis] = {
    "main_table": filter_gain.analyse_main_table,
    "dynamics": dynamics.analyse_dynamics,
    "correlation": proxies.analyse_correlation,
    "gradients": gradients.analyse_gradients,
    "compute": filter_gain.analyse_compute,
    "quartiles": reward_variance.analyse_quartiles,
    "noise": reward_variance.analyse_noise,
    "level": filter_gain.analyse_level,
    "predictor": reward_variance.analyse_predictor,
    "interventions": proxies.analyse_interventions,
    "definitions": filter_gain.analyse_definitions,
    "prompts": proxies.analyse_prompts,
    "turns": dynamics.analyse_turns,
    "rewards": rewards.analyse_rewards,
    "chain": dynamics.analyse_chain,
    "collapse": collapse.analyse_collapse,
    "summary": summary.analyse_summary,
}

READS_OTHERS = frozenset({"predictor"})
"""Analyses that also read finished runs of other experiments in the same folder."""


COEFFICIENTS = "coefficients"
"""List of arms that differ in entropy bonus and KL alone."""
READS_ALL_ARMS = READS_OTHERS | {"summary"}


def find_analysis(name: str) -> Analysis:
    """The analysis called ``name``, or an error that suggests one.

    Arms of ``coefficients`` are analysed each by itself: the claims of the first have the plain names,
    those of others ``ARM: NAME``.
    """
    if name not in ANALYSES:
        raise ConfigError(f"unknown analysis {name!r}; {suggest(name, ANALYSES)}")
    analyse = ANALYSES[name]
    return analyse if name in READS_ALL_ARMS else partial(_arm_by_arm, analyse)


def _arm_by_arm(analyse: Analysis, cells: Cells) -> Findings:
    arms = cells.planned_axis(COEFFICIENTS)
    if not arms:
        return analyse(cells)
    found = {arm: analyse(cells.where(**{COEFFICIENTS: arm})) for arm in arms}
    notes = [note for one in found.values() for note in one.notes]
    return Findings(
        tables=[
            replace(table, title=f"{table.title} ({arm})")
            for arm, one in found.items()
            for table in one.tables
        ],
        claims=[
            claim if arm == arms[0] else replace(claim, name=f"{arm}: {claim.name}")
            for arm, one in found.items()
            for claim in one.claims
        ],
        figures=[
            replace(figure, name=f"{figure.name}-{arm}")
            for arm, one in found.items()
            for figure in one.figures
        ],
        notes=list(dict.fromkeys(notes)),
    )
