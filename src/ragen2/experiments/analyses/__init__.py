"""How the runs of each experiment are read: one file per experiment, found by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ragen2.component import suggest
from ragen2.errors import ConfigError
from ragen2.experiments.analyses import (
    chain,
    collapse,
    compute,
    correlation,
    definitions,
    dynamics,
    gradients,
    interventions,
    level,
    main_table,
    noise,
    predictor,
    prompts,
    quartiles,
    rewards,
    summary,
    turns,
)
from ragen2.experiments.cells import Cells
from ragen2.experiments.findings import Findings

Analysis = Callable[[Cells], Findings]
ANALYSES: Mapping[str, Analysis] = {
    "main_table": main_table.analyse,
    "dynamics": dynamics.analyse,
    "correlation": correlation.analyse,
    "gradients": gradients.analyse,
    "compute": compute.analyse,
    "quartiles": quartiles.analyse,
    "noise": noise.analyse,
    "level": level.analyse,
    "predictor": predictor.analyse,
    "interventions": interventions.analyse,
    "definitions": definitions.analyse,
    "prompts": prompts.analyse,
    "turns": turns.analyse,
    "rewards": rewards.analyse,
    "chain": chain.analyse,
    "collapse": collapse.analyse,
    "summary": summary.analyse,
}

READS_OTHERS = frozenset({"predictor"})
"""Analyses that also read finished runs of other experiments in the same folder."""


def find_analysis(name: str) -> Analysis:
    """The analysis called ``name``, or an error that suggests one."""
    if name not in ANALYSES:
        raise ConfigError(f"unknown analysis {name!r}; {suggest(name, ANALYSES)}")
    return ANALYSES[name]
