"""Figures 12 and 13: where entropy bonus, KL and filter move a run in the plane of H(Z|X) and MI."""

from __future__ import annotations

from ragen2.experiments.cells import (
    ENTROPY,
    MI,
    POINTS,
    SUCCESS,
    Cells,
    Measure,
    final,
    late,
    level,
    require_axes,
)
from ragen2.experiments.charts import scatter_figure
from ragen2.experiments.findings import Claim, Entry, Findings, Table, claimed
from ragen2.experiments.intervals import ValuePair, share_estimate, spearman_estimate
from ragen2.reports.figures import NamedFigure

VALIDITY = "rollout/format_validity"
VALID = 0.95
AXES: tuple[tuple[str, Measure], ...] = (
    ("entropy", late(ENTROPY)),
    ("mi", late(MI)),
    ("success", final(SUCCESS)),
)
STRENGTH = {
    "entropy bonus": "algorithm.entropy_coefficient",
    "KL": "algorithm.kl_coefficient",
    "filter": "filter.mass",
}
"""The setting that each sweep turns up."""


def analyse(cells: Cells) -> Findings:
    """One row per strength of each intervention, and how each strength goes with H, MI and success."""
    require_axes(cells, "block", "task")
    rows: list[tuple[Entry, ...]] = []
    claims: list[Claim] = []
    for (sweep, task), mine in cells.groups("block", "task"):
        setting = STRENGTH.get(sweep)
        if setting is None or not mine.axis(setting):
            continue
        for (strength,), here in mine.groups(setting):
            rows.append(
                (
                    sweep,
                    task,
                    strength,
                    len(here),
                    level(here, late(ENTROPY)),
                    level(here, late(MI)),
                    level(here, final(SUCCESS), POINTS),
                    level(here, late(VALIDITY)),
                )
            )
    for (sweep,), mine in cells.groups("block"):
        for name, measure in AXES:
            strata = [
                _pairs(here, STRENGTH.get(sweep, ""), measure) for _, here in mine.groups("task")
            ]
            trend = spearman_estimate(strata, f"interventions {sweep} {name}")
            claims += claimed(f"trend/{sweep}/{name}", trend, "rank correlation")
    claims += _validity_claims(cells)
    columns = (
        "intervention",
        "task",
        "strength",
        "runs",
        "H(Z|X)",
        "MI",
        "final success, %",
        "format validity",
    )
    sweeps = cells.split("block").items()
    plane = {sweep: mine.points(late(ENTROPY), late(MI)) for sweep, mine in sweeps}
    validity = {sweep: mine.points(late(VALIDITY), late(MI)) for sweep, mine in sweeps}
    figures = [
        NamedFigure(
            "plane",
            [
                scatter_figure(
                    "Where runs end", plane, "H(Z|X), nats per token", "MI, nats per token"
                )
            ],
        ),
        NamedFigure(
            "validity",
            [scatter_figure("Format and MI", validity, "format validity", "MI, nats per token")],
        ),
    ]
    note = "A filter is turned up by keeping less mass, so its trends are those of 1 - mass."
    return Findings(
        [Table("At the last steps", columns, tuple(rows), digits=3)], claims, figures, [note]
    )


def _pairs(cells: Cells, setting: str, measure: Measure) -> list[ValuePair]:
    sign = -1.0 if setting == "filter.mass" else 1.0
    found = [(one.labels.get(setting), measure(one.run)) for one in cells.runs]
    return [(sign * float(x), y) for x, y in found if x is not None and y is not None]


def _validity_claims(cells: Cells) -> list[Claim]:
    pairs = Cells(cells.distinct).points(late(VALIDITY), late(MI))
    claims: list[Claim] = []
    rho = spearman_estimate([pairs], "interventions validity")
    claims += claimed("rho/validity/mi", rho, "rank correlation")
    share = share_estimate([x >= VALID for x, _ in pairs])
    claims += claimed("share/valid", share, "of runs have a format validity of at least 0.95")
    return claims
