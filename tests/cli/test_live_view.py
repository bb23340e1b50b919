"""What the live view shows of steps at which reasoning was measured, and of those between."""

from __future__ import annotations

from rich.console import Console

from ragen2.cli.views.live import columns_of, plain_line, summary_table, verdict_line
from ragen2.diagnostics import Regime
from ragen2.runs.record import StepRecord

FIRST = columns_of("first_turn")
GROUNDED = Regime.DIVERSE_GROUNDED.value


def measured(step: int, retrieval: float, scope: str = "first_turn") -> StepRecord:
    metrics = {f"collapse/{scope}/retrieval_accuracy": retrieval, "rollout/success": 0.5}
    return StepRecord(step=step, metrics=metrics, regime=GROUNDED)


def between(step: int) -> StepRecord:
    return StepRecord(step=step, metrics={"rollout/success": 0.25}, regime=GROUNDED)


def as_text(table) -> str:
    console = Console(width=120, record=True, file=None, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_a_line_has_the_numbers_of_its_own_step_only():
    assert "retrieval 0.80" in plain_line(measured(4, 0.8), 9, FIRST)
    line = plain_line(between(5), 9, FIRST)
    assert "retrieval" not in line
    assert line == "step 5/9  success 0.25  diverse grounded"


def test_the_summary_compares_the_first_and_the_last_measurement():
    records = [measured(1, 0.75), between(2), measured(3, 0.5), between(4)]
    (row,) = [
        line for line in as_text(summary_table(records, FIRST)).splitlines() if "retr" in line
    ]
    assert [word for word in row.split() if "." in word] == ["0.750", "0.500", "-0.250"]


def test_a_run_judged_by_trajectories_shows_those():
    columns = columns_of("trajectory")
    assert "retrieval 0.30" in plain_line(measured(1, 0.3, "trajectory"), 9, columns)
    assert "retrieval" not in plain_line(measured(1, 0.3, "first_turn"), 9, columns)


def test_the_verdict_so_far_stands_below_the_table_with_what_to_do():
    flat = {"reward/dead_ratio": 1.0, "triage/too_hard": 1.0, "triage/live": 0.0}
    records = [
        StepRecord(step=step, metrics={"reward/dead_ratio": 0.1} if step < 4 else flat)
        for step in range(1, 10)
    ]
    told = verdict_line(records, "first_turn").plain
    assert told.startswith("The tasks are too hard since step 4. Take easier tasks")
    assert verdict_line([], "first_turn").plain.startswith("Nothing recorded yet. ")
