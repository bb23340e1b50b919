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
from ragen2.experiments.findings import Claim, Entry, Findings, Table
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
    """A row a strength of each intervention, and how each strength goes with H, MI and success."""
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
            if trend is not None:
                claims.append(Claim(f"trend/{sweep}/{name}", trend, "rank correlation"))
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
    plane = {
        sweep: [
            (x, y)
            for one in mine.runs
            if (x := late(ENTROPY)(one.run)) is not None and (y := late(MI)(one.run)) is not None
        ]
        for (sweep,), mine in cells.groups("block")
    }
    validity = {
        sweep: [
            (x, y)
            for one in mine.runs
            if (x := late(VALIDITY)(one.run)) is not None and (y := late(MI)(one.run)) is not None
        ]
        for (sweep,), mine in cells.groups("block")
    }
    figures = [
        NamedFigure(
            "plane",
            [scatter_figure("Where runs end", plane, "H(Z|X), nats a token", "MI, nats a token")],
        ),
        NamedFigure(
            "validity",
            [scatter_figure("Format and MI", validity, "format validity", "MI, nats a token")],
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
    pairs = [
        (x, y)
        for one in cells.distinct
        if (x := late(VALIDITY)(one.run)) is not None and (y := late(MI)(one.run)) is not None
    ]
    claims = []
    rho = spearman_estimate([pairs], "interventions validity")
    if rho is not None:
        claims.append(Claim("rho/validity/mi", rho, "rank correlation"))
    share = share_estimate([x >= VALID for x, _ in pairs])
    if share is not None:
        claims.append(
            Claim("share/valid", share, "of runs have a format validity of at least 0.95")
        )
    return claims
