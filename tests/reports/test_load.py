"""Run directories as series."""

from __future__ import annotations

import pytest

from ragen2.errors import RunError
from ragen2.reports.load import Series, load_run_directory
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "run", 'seed = 3\n[env]\nkind = "FrozenLake"\n')
    run.append(StepRecord(step=0, metrics={"eval/success": 0.2}))
    run.append(StepRecord(step=1, metrics={"a": 1.0, "b": 5.0, "b_low": 4.0, "b_high": 6.0}))
    run.append(
        StepRecord(
            step=2, metrics={"a": 2.0, "eval/success": 0.4, "b": 7.0, "b_low": 6.0, "b_high": 8.0}
        )
    )
    return run


def test_settings_and_records_are_read(run):
    loaded = load_run_directory(run.path)
    assert loaded.settings == {"seed": 3, "env": {"kind": "FrozenLake"}}
    assert list(loaded.records) == run.records()


def test_a_series_has_the_steps_that_recorded_it(run):
    loaded = load_run_directory(run.path)
    assert loaded.series("eval/success") == Series("eval/success", (0, 2), (0.2, 0.4))
    assert loaded.series("a", "name") == Series("name", (1, 2), (1.0, 2.0))


def test_an_interval_comes_along(run):
    assert load_run_directory(run.path).series("b") == Series(
        "b", (1, 2), (5.0, 7.0), (4.0, 6.0), (6.0, 8.0)
    )


def test_a_metric_never_recorded_is_an_empty_series(run):
    assert load_run_directory(run.path).series("nothing") == Series("nothing", (), ())


def test_an_interval_that_is_not_always_there_is_left_out(run):
    run.append(StepRecord(step=3, metrics={"b": 9.0}))
    loaded = load_run_directory(run.path).series("b")
    assert (loaded.values, loaded.low, loaded.high) == ((5.0, 7.0, 9.0), (), ())


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="is not a run directory"):
        load_run_directory(tmp_path)


def test_settings_that_cannot_be_read_are_named(run):
    (run.path / "run.toml").write_text("seed = ")
    with pytest.raises(RunError, match=r"run\.toml is not valid TOML"):
        load_run_directory(run.path)
