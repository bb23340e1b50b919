"""What the live view shows of steps at which reasoning was measured, and of those between."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from ragen2.cli.views.live import (
    columns_of,
    live_view,
    plain_line,
    steps_table,
    summary_table,
    verdict_line,
)
from ragen2.config import RunConfig
from ragen2.diagnostics import Regime
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory

FIRST = columns_of("first_turn")
GROUNDED = Regime.DIVERSE_GROUNDED.value


def measured(step: int, retrieval: float, scope: str = "first_turn") -> StepRecord:
    metrics = {f"collapse/{scope}/retrieval_accuracy": retrieval, "rollout/success": 0.5}
    return StepRecord(step=step, metrics=metrics, regime=GROUNDED)


def between(step: int) -> StepRecord:
    return StepRecord(step=step, metrics={"rollout/success": 0.25}, regime=GROUNDED)


def as_text(table, width: int = 120) -> str:
    console = Console(width=width, record=True, file=None, no_color=True)
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


def full_step(step: int, regime: Regime, **more: float) -> StepRecord:
    metrics = {name: 0.5 for _, name, _ in FIRST} | {"filter/kept": 12.0} | more
    return StepRecord(step=step, metrics=metrics, regime=regime.value)


REGIMES = [full_step(995 + step, regime) for step, regime in enumerate(Regime)]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_the_table_fits_its_terminal_and_shortens_no_word(width: int) -> None:
    shown = as_text(steps_table(REGIMES, FIRST, width), width).splitlines()
    assert max(map(len, shown)) <= width
    assert "…" not in "".join(shown)
    heads = [word.strip() for word in shown[1].strip("┃").split("┃")]
    assert heads[:3] == ["step", "regime", "success"]
    rows = [line for line in shown if line.startswith("│")]
    assert len(rows) == len(REGIMES)
    for row, regime in zip(rows, Regime, strict=True):
        assert regime.value.replace("_", " ") in row


def test_a_wider_terminal_has_more_columns_in_the_same_order() -> None:
    def heads(width: int) -> list[str]:
        line = as_text(steps_table(REGIMES, FIRST, width), width).splitlines()[1]
        return [word.strip() for word in line.strip("┃").split("┃")]

    everything = ["step", "regime", *(label for label, _, _ in FIRST)]
    assert heads(120) == heads(200) == everything
    assert heads(80) == ["step", "regime", "success", "reward var", "kept", "grounded", "MI"]
    assert heads(60) == ["step", "regime", "success", "kept", "grounded"]


def test_a_warning_keeps_its_place_beside_the_regime() -> None:
    warned = full_step(3, Regime.TEMPLATE_COLLAPSE, **{"warning/level": 1.0})
    shown = as_text(steps_table([warned], FIRST, 80), 80)
    assert "template collapse  warning" in shown


def evaluated(step: int, success: float) -> StepRecord:
    return StepRecord(step=step, metrics={"eval/success": success})


def held_out_row(records: list[StepRecord]) -> list[str]:
    lines = as_text(summary_table(records, FIRST)).splitlines()
    (row,) = [line for line in lines if "held-out success" in line]
    return [cell.strip() for cell in row.strip("│").split("│")][1:]


def test_the_evaluation_of_step_0_is_not_the_end_of_a_run_that_was_stopped() -> None:
    assert held_out_row([evaluated(0, 0.25), between(1)]) == ["0.250", "not measured", ""]


def test_an_end_that_was_measured_earlier_says_at_which_step() -> None:
    records = [evaluated(0, 0.25), evaluated(20, 0.5), between(27)]
    assert held_out_row(records) == ["0.250", "0.500 (step 20)", "+0.250"]
    assert held_out_row(records[:2]) == ["0.250", "0.500", "+0.250"]


@pytest.mark.parametrize(("last", "ended"), [(4, "stopped"), (9, "done")])
def test_a_run_that_was_stopped_is_not_shown_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int, ended: str
) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, height=24, no_color=True)
    monkeypatch.setattr("ragen2.cli.views.live.Console", lambda: console)
    run = RunDirectory.create(tmp_path / "run", "")
    with live_view(RunConfig(steps=9), run, {}) as view:
        for step in range(1, last + 1):
            view.record(measured(step, 0.5))
    bar = screen.getvalue().rpartition(f"{ended} ")[2].partition("\n")[0]
    assert f"{last}/9" in bar
    assert "left" not in bar
