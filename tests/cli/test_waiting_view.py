"""What is shown of a long wait: a bar on a terminal, seldom a line elsewhere, nothing for what is quick."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from command_line import Done, settings
from gguf_models import write_embedded_gguf
from ragen2.backends.agent import locate
from ragen2.backends.settings import EMBEDDED
from ragen2.cli.views import waiting as view
from ragen2.cli.views.waiting import LARGE, Waiting
from ragen2.progress import ProgressReport, counter, part, phase, report, reported_to

Program = Callable[..., Done]
FEW = settings("rollout.prompts=2", "rollout.group_size=2", "env.max_turns=1")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The time, which a test moves on."""
    now = [100.0]
    monkeypatch.setattr(view.time, "monotonic", lambda: now[0])
    return now


def screen(*, is_terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=100)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_nobody_who_listens_is_no_error() -> None:
    report("opening", 1, 2)


def test_reports_go_to_the_innermost_listener() -> None:
    outer: list[ProgressReport] = []
    inner: list[ProgressReport] = []
    with reported_to(outer.append):
        with reported_to(inner.append):
            report("one")
        report("two", 1, 4)
    assert (inner, outer) == ([ProgressReport("one")], [ProgressReport("two", 1, 4)])


def test_a_part_is_reported_as_progress_of_the_whole_and_a_phase_by_its_name() -> None:
    said: list[ProgressReport] = []
    with reported_to(said.append), phase("1 of 2"), part("playing", 4, 8, 16):
        report("writing", 1, 2)
        report("thinking")
    assert said == [ProgressReport("1 of 2: playing", done, 16) for done in (4, 6, 4)]


def test_what_threads_count_is_heard_by_the_listener_of_the_one_that_began() -> None:
    said: list[ProgressReport] = []
    with reported_to(said.append):
        count = counter("writing", 20)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(count, [2] * 10))
    assert said == [ProgressReport("writing", done, 20) for done in range(2, 21, 2)]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_is_quick_is_not_shown(clock: Any, is_terminal: bool) -> None:
    console = screen(is_terminal=is_terminal)
    shown = Waiting(console)
    for _ in range(9):
        shown(ProgressReport("opening", 1, 2))
        clock[0] += 0.1
    shown.close()
    assert text(console) == ""


def test_what_is_known_to_be_long_is_said_at_once(clock: Any) -> None:
    console = screen(is_terminal=False)
    shown = Waiting(console)
    shown(ProgressReport("opening a file", is_long=True))
    shown.close()
    assert text(console) == "opening a file\n"


def test_lines_are_rare_where_there_is_no_terminal(clock: Any) -> None:
    console = screen(is_terminal=False)
    shown = Waiting(console, seconds_to_line=30.0)
    for second in range(100):
        shown(ProgressReport("playing", second, 100))
        clock[0] += 1.0
    shown.close()
    assert text(console).splitlines() == [
        "playing: 30%, about 1:10 left",
        "playing: 45%, about 0:55 left",
        "playing: 60%, about 0:40 left",
        "playing: 75%, about 0:25 left",
        "playing: 90%, about 0:10 left",
    ]


def test_the_time_left_is_that_of_the_phase_and_begins_anew_with_it(clock: Any) -> None:
    console = screen(is_terminal=False)
    shown = Waiting(console, seconds_to_line=1000.0)
    shown(ProgressReport("opening", 0, 10))
    clock[0] += 900.0
    shown(ProgressReport("playing", 40, 100))  # goes on from what was done before
    clock[0] += 150.0
    shown(ProgressReport("playing", 50, 100))
    clock[0] += 5000.0
    shown(ProgressReport("playing", 10, 100))  # another round: nothing is known of its pace
    shown.close()
    assert text(console).splitlines() == ["playing: 50%, about 12:30 left", "playing: 10%"]


def test_what_is_reported_once_and_then_takes_long_is_shown_later() -> None:
    console = screen(is_terminal=False)
    shown = Waiting(console, seconds_to_line=0.01)
    shown(ProgressReport("playing"))
    shown._timer.join()
    shown.close()
    assert text(console) == "playing\n"


def test_a_bar_shows_how_far_it_is_and_is_taken_away(clock: Any) -> None:
    console = screen(is_terminal=True)
    shown = Waiting(console)
    clock[0] += 1.5
    shown(ProgressReport("opening [a] file", 1, 4))
    shown(ProgressReport("playing"))
    shown.close()
    assert "opening [a] file" in text(console)
    assert "25%" in text(console)
    assert "left" not in text(console), "one report has no pace"
    assert text(console).endswith("\x1b[2K")  # the line is erased


def test_the_longest_phase_of_an_evaluation_fits_80_columns(clock: Any) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    shown = Waiting(console)
    phases = (
        "2 of 3, groups to compare: playing MetaMathQA",
        "3 of 3, scoring: 1024 traces, first turn",
    )
    for name in phases:
        shown(ProgressReport(name, 0, 100))
        clock[0] += 4000.0
        shown(ProgressReport(name, 50, 100))
        assert shown._bar is not None
        shown._bar.refresh()
        assert name in text(console)
    shown.close()
    assert "about 1:06:40 left" in text(console)
    assert "…" not in text(console)


def test_a_large_file_is_named_before_it_is_opened(program: Program, tmp_path: Path) -> None:
    write_embedded_gguf(tmp_path / "model.gguf")
    os.truncate(tmp_path / "model.gguf", LARGE + 2_000_000)  # a hole at its end
    done = program("eval", "./model.gguf", "--env", "FrozenLake", "--tasks", "1", *FEW)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == "opening ./model.gguf (52 MB)"
    assert "opening" not in done.stdout


def test_a_small_model_is_opened_without_a_word(program: Program) -> None:
    done = program("eval", EMBEDDED, "--env", "FrozenLake", "--tasks", "1", *FEW)
    assert (done.returncode, done.stderr) == (0, "")


def test_weights_of_a_folder_and_of_a_runs_checkpoints_count(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run" / "checkpoints" / "step_000001"
    checkpoint.mkdir(parents=True)
    for folder in (tmp_path / "run", checkpoint):
        with (folder / "weights").open("wb") as file:
            file.truncate(1000 if folder == checkpoint else 10)
    assert view._num_bytes(str(tmp_path / "run")) == 1000
    assert view._num_bytes(str(checkpoint)) == 1000
    assert view._num_bytes(str(tmp_path / "nowhere")) == 0
    assert view._num_bytes("~nobody/model") == 0
    assert view._num_bytes(locate(EMBEDDED).source) > 1_000_000


def test_a_line_of_the_log_does_not_stand_behind_the_bar(clock: Any) -> None:
    console = screen(is_terminal=True)
    shown = Waiting(console)
    shown(ProgressReport("opening", 1, 4, is_long=True))
    assert shown.make_way(logging.makeLogRecord({}))
    console.print("noted")
    shown(ProgressReport("opening", 2, 4))
    shown.close()
    before, _, after = text(console).partition("noted")
    assert before.endswith("\x1b[2K")
    assert "25%" in before
    assert "50%" in after
