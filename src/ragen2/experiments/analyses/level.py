"""Table 7: dropping prompts against dropping rollouts of every prompt."""

from __future__ import annotations

from ragen2.experiments.cells import (
    MI,
    NONE,
    POINTS,
    RETRIEVAL,
    SUCCESS,
    Cells,
    average,
    difference,
    late,
    level,
    peak,
    require_axes,
)
from ragen2.experiments.charts import curves_figure
from ragen2.experiments.findings import Claim, Entry, Findings, Table, claimed
from ragen2.reports.figures import NamedFigure

PROMPT, TRAJECTORY = "top_p", "trajectory"


def analyse(cells: Cells) -> Findings:
    """One row per task and level; then prompt against trajectory level, paired by seed."""
    require_axes(cells, "task", "filter")
    rows: list[tuple[Entry, ...]] = []
    claims: list[Claim] = []
    figures = []
    for (task,), mine in cells.groups("task"):
        for (arm,), here in mine.groups("filter"):
            rows.append(
                (
                    task,
                    arm,
                    len(here),
                    level(here, average("filter/kept")),
                    level(here, average("update/tokens")),
                    level(here, peak(SUCCESS), POINTS),
                    level(here, late(MI)),
                    level(here, late(RETRIEVAL)),
                )
            )
        for name, one, other in (
            ("prompt_less_trajectory", PROMPT, TRAJECTORY),
            ("prompt_less_none", PROMPT, NONE),
            ("trajectory_less_none", TRAJECTORY, NONE),
        ):
            success = difference(mine, "filter", one, other, peak(SUCCESS), POINTS)
            claims += claimed(f"{name}/{task}/success", success, "points", 1)
            information = difference(mine, "filter", one, other, late(MI))
            claims += claimed(f"{name}/{task}/mi", information, "nats per token", 3)
        arms = mine.split("filter")
        figures.append(
            NamedFigure(
                f"level-{task}",
                [
                    curves_figure(f"{task}: held-out success", arms, SUCCESS, "%", POINTS),
                    curves_figure(f"{task}: MI", arms, MI, "nats per token"),
                ],
            )
        )
    columns = (
        "task",
        "filter",
        "runs",
        "prompts kept",
        "updated tokens per step",
        "peak success, %",
        "MI",
        "retrieval above chance",
    )
    return Findings([Table("What is dropped", columns, tuple(rows))], claims, figures)
