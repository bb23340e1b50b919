"""The early warning as a user meets it: a stop that is no failure, and what the live table shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from command_line import Done, checkpoints, records, settings
from ragen2.cli.views.live import LiveView
from ragen2.config import RunConfig
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory

NERVOUS = settings(
    "steps=60",
    "rollout.prompts=4",
    "rollout.group_size=4",
    "evaluation.tasks=2",
    "evaluation.probe_prompts=0",
    "warning.response=stop",
    "warning.baseline=1",
    "warning.tolerated=0",
    "warning.wander=0",
    "warning.threshold=0.001",
)
"""So strict that a healthy run is stopped within a few steps by its own noise."""


def test_a_run_stopped_by_the_alarm_exits_0_says_why_and_can_be_resumed(
    program: Callable[..., Done], tmp_path: Path
) -> None:
    done = program("train", *NERVOUS, "--out", "run")
    assert (done.returncode, done.stderr) == (0, "")
    reached = records(tmp_path / "run")[-1]
    step, last = reached["step"], done.stdout.splitlines()[-1]
    assert 2 <= step < 60
    assert re.fullmatch(
        rf"stopped after step {step} by the early warning: .+; "
        r"go on with: ragen2 train --resume run",
        last,
    )
    assert reached["note"].startswith("early warning: ")
    assert f"step_{step:06d}" in checkpoints(tmp_path / "run")
    assert (tmp_path / "run" / "report.html").is_file()
    done = program("train", "--resume", "run", *settings(f"steps={step + 1}"))
    assert (done.returncode, done.stderr) == (0, "")
    assert records(tmp_path / "run")[-1]["step"] == step + 1


@pytest.fixture
def shown(tmp_path: Path) -> Callable[..., str]:
    """What the live table looks like after these records."""

    def show(*seen: StepRecord) -> str:
        console = Console(record=True, width=160, force_terminal=False)
        view = LiveView(RunConfig(), console, RunDirectory.create(tmp_path / "run", ""))
        view.records.extend(seen)
        console.print(view.render())
        return console.export_text()

    return show


def step(number: int, level: float, note: str = "") -> StepRecord:
    return StepRecord(
        step=number,
        metrics={"warning/level": level, "warning/statistic": 0.0},
        regime="diverse_grounded",
        note=note,
    )


def test_the_live_table_marks_steps_under_alarm_and_repeats_the_reason(shown) -> None:
    text = shown(step(1, 0.0), step(2, 1.0, "early warning: MI fell"), step(3, 1.0))
    rows = [line for line in text.splitlines() if "diverse grounded" in line]
    assert ["warning" in row for row in rows] == [False, True, True]
    assert "step 2  early warning: MI fell" in text


def test_the_live_table_of_a_healthy_run_has_no_word_of_it(shown) -> None:
    assert "warning" not in shown(step(1, 0.0), step(2, 0.0))
