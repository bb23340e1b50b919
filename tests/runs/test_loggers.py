"""Loggers cost a run nothing: not when they are absent, and not when they fail on the way."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from ragen2.config import Logging, RunConfig, parse_config
from ragen2.errors import ConfigError, DependencyError, RunError
from ragen2.runs.loggers import LOGGERS, LoggedRun, Logger, LoggerName, open_loggers
from ragen2.runs.loggers import base as base_module
from ragen2.runs.loggers.base import flat_settings, numbers
from ragen2.runs.record import StepRecord


class Broken(Exception):
    """What the package below raises."""


class Notebook(Logger):
    """A logger in memory that can be told to fail, as a server that goes away does."""

    failures = (Broken,)
    cannot_start = False

    def __init__(self, run: LoggedRun) -> None:
        super().__init__(run)
        if self.cannot_start:
            raise Broken("no key\n  found")
        self.is_down = False
        self.pages: list[tuple[int, dict, dict]] = []
        self.closed: list[bool] = []

    def write(self, step, values, texts) -> None:
        if self.is_down:
            raise Broken("server away")
        self.pages.append((step, dict(values), dict(texts)))

    def close(self, *, failed: bool) -> None:
        self.closed.append(failed)


@pytest.fixture
def notebooks(monkeypatch) -> list[Notebook]:
    """Every logger is a notebook; those that were opened."""
    opened: list[Notebook] = []

    class Kept(Notebook):
        def __init__(self, run: LoggedRun) -> None:
            super().__init__(run)
            opened.append(self)

    monkeypatch.setattr(base_module, "_find", lambda name: Kept)
    return opened


@pytest.fixture
def run(tmp_path: Path) -> LoggedRun:
    return LoggedRun.of(tmp_path, "project", {}, 0)


def record(step: int, **more: object) -> StepRecord:
    return StepRecord(step=step, metrics={"reward/mean": float(step)}, **more)


def test_a_record_gives_its_metrics_by_name_and_its_timings():
    one = StepRecord(step=3, metrics={"a/b@2": 0.5}, seconds={"rollout": 1.5, "step": 2.0})
    assert numbers(one) == {"a/b@2": 0.5, "seconds/rollout": 1.5, "seconds/step": 2.0}


def test_settings_are_named_by_their_paths():
    settings = {
        "steps": 3,
        "filter": {"kind": "top_p", "edges": [0, 1]},
        "diagnostics": [{"every": 2}],
    }
    assert dict(flat_settings(settings)) == {
        "steps": "3",
        "filter.kind": "top_p",
        "filter.edges": "[0, 1]",
        "diagnostics.0.every": "2",
    }


def test_a_note_is_told_when_there_is_one_and_a_regime_when_it_changes(run, notebooks):
    with open_loggers(["wandb"], run) as (sink,):
        for step, regime, note in [(0, None, ""), (1, "a_b", "n"), (2, "a_b", ""), (3, "c", "m")]:
            sink.record(record(step, regime=regime, note=note))
    texts = {step: texts for step, _, texts in notebooks[0].pages}
    assert texts == {
        0: {},
        1: {"note": "n", "regime": "a b"},
        2: {},
        3: {"note": "m", "regime": "c"},
    }


def test_a_run_keeps_its_id_and_another_run_has_another(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first = LoggedRun.of(tmp_path / "one", "p", {}, 0)
    again = LoggedRun.of(tmp_path / "one", "p", {}, 7)
    other = LoggedRun.of(tmp_path / "two", "p", {}, 0)
    assert first.run_id == again.run_id != other.run_id
    assert (first.is_continued, again.is_continued) == (False, True)
    assert first.name == "one"


def test_loggers_are_closed_as_finished_or_as_failed(run, notebooks):
    with open_loggers(["wandb", "mlflow"], run):
        pass
    with pytest.raises(KeyboardInterrupt), open_loggers(["wandb", "mlflow"], run):
        raise KeyboardInterrupt
    assert [one.closed for one in notebooks] == [[False], [False], [True], [True]]


def test_a_logger_that_goes_away_is_told_once_and_catches_up(run, notebooks, caplog):
    with caplog.at_level(logging.WARNING), open_loggers(["mlflow"], run) as (sink,):
        sink.record(record(0))
        notebooks[0].is_down = True
        for step in (1, 2, 3):
            sink.record(record(step))
        notebooks[0].is_down = False
        sink.record(record(4))
    assert [step for step, _, _ in notebooks[0].pages] == [0, 1, 2, 3, 4]
    assert caplog.messages == [
        "mlflow did not take step 1 (server away); the run goes on, and later steps try again"
    ]


def test_what_a_logger_never_took_is_told_at_the_end(run, notebooks, caplog):
    with caplog.at_level(logging.WARNING), open_loggers(["mlflow"], run) as (sink,):
        notebooks[0].is_down = True
        sink.record(record(0))
        sink.record(record(1))
    assert caplog.messages[-1] == (
        "mlflow lacks 2 steps from step 0 on (server away); steps.jsonl has them"
    )
    assert notebooks[0].closed == [False]


def test_a_mistake_of_ours_is_not_taken_for_a_failure_of_the_package(run, notebooks, monkeypatch):
    monkeypatch.setattr(Notebook, "write", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), open_loggers(["mlflow"], run) as (sink,):
        sink.record(record(0))
    assert notebooks[0].closed == [True]


def test_a_logger_that_cannot_start_is_told_in_one_line_and_the_others_are_closed(
    run, notebooks, monkeypatch
):
    kept = base_module._find("wandb")
    shut = type("Shut", (Notebook,), {"cannot_start": True})
    monkeypatch.setattr(base_module, "_find", lambda name: shut if name == "wandb" else kept)
    expected = (
        f"logging.to: wandb cannot start: no key found; "
        f"cure that, then go on with --resume {run.directory}"
    )
    with pytest.raises(RunError) as caught, open_loggers(["mlflow", "wandb"], run):
        pytest.fail("the run started")
    assert str(caught.value) == expected
    assert notebooks[0].closed == [True]


@pytest.mark.parametrize("name", get_args(LoggerName))
def test_a_missing_package_is_one_line_that_names_the_extra(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"ragen2.runs.loggers.{name}", raising=False)
    with pytest.raises(DependencyError) as caught:
        base_module.require_loggers([name])
    assert str(caught.value) == (
        f"logging.to asks for {name}, but {name} is not installed; "
        f"pip install 'ragen2[{name}]' or take {name} out of logging.to"
    )


def test_every_logger_has_a_class_and_an_extra():
    assert set(LOGGERS) == set(get_args(LoggerName))
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    for name in LOGGERS:
        assert f'\n{name} = ["{name}>=' in project


def test_no_logger_is_imported_unless_it_is_asked_for():
    code = (
        "import sys, ragen2.config, ragen2.cli.train, ragen2.runs.loggers\n"
        "print(sorted({'tensorboard', 'wandb', 'trackio', 'mlflow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_no_logger_is_the_default():
    assert RunConfig().logging == Logging(to=(), project="ragen2")


@pytest.mark.parametrize(
    ("table", "mistake"),
    [
        ({"to": ["wandb", "wandb"]}, "logging.to: names 'wandb' more than once; once is enough"),
        (
            {"to": ["tensorbord"]},
            "logging.to.0 must be 'tensorboard', 'wandb', 'trackio' or 'mlflow', got 'tensorbord'",
        ),
        ({"project": ""}, "logging.project must be"),
    ],
)
def test_mistakes_in_the_table_are_told(table, mistake):
    with pytest.raises(ConfigError) as caught:
        parse_config(RunConfig, {"logging": table})
    assert mistake in str(caught.value)
