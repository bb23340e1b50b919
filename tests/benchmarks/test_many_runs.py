"""The benchmark of many runs times what it says: one, then N of the same, side by side."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import many_runs as script
from ragen2.config import RunConfig
from ragen2.trainer.jobs.run import run_jobs

ROOT = Path(__file__).parents[2]
TRAINEE = (sys.executable, str(ROOT / "tests" / "trainer" / "jobs" / "trainee.py"))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], int]]:
    """The seeds and the number at once of every call; a stand-in is trained."""
    found = []

    def noting(jobs, *, at_once, **more):
        found.append(([job.config.seed for job in jobs], at_once))
        return partial(run_jobs, program=TRAINEE)(jobs, at_once=at_once, **more)

    monkeypatch.setattr(script, "run_jobs", noting)
    monkeypatch.setattr(script, "has_gpu", lambda: False)
    return found


def test_one_is_timed_and_then_all_at_once(calls, monkeypatch) -> None:
    ticks = iter([10.0, 14.0, 20.0, 30.0])
    monkeypatch.setattr(script, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    config = RunConfig(seed=5, steps=1)
    found = script.measure(config, 3, mps=True)
    assert calls == [([5], 1), ([5, 6, 7], 3)]
    assert (found["one_s"], found["n_s"], found["ratio"]) == (4.0, 10.0, 2.5)
    assert (found["one_step_s"], found["n_step_s"]) == (2.0, 2.0)
    assert (found["jobs"], found["steps"], found["mps"]) == (3, 1, False)


def test_a_failed_run_is_no_measurement(calls) -> None:
    with pytest.raises(SystemExit, match="seed1 failed: RuntimeError: it broke"):
        script.measure(RunConfig(seed=0, steps=1), 2, mps=False)
