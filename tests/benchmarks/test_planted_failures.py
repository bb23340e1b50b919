"""Planted failures: the examination names their cause, and the page shows what was measured."""

from __future__ import annotations

import json
from typing import Any

import pytest

import planted_failures as script
from ragen2.diagnostics import Cause


@pytest.fixture(scope="module")
def saved() -> list[dict[str, Any]]:
    return json.loads(script.RESULTS.read_text())


@pytest.mark.parametrize("planted", script.LIBRARY, ids=lambda one: one.name)
def test_the_planted_cause_is_named(planted):
    """One run of each on a seed of its own; the benchmark has twenty."""
    found = script.examined(planted, 1, seed=2)
    assert found.cause == planted.cause, found.text


def test_the_library_has_every_cause_but_what_nobody_could_plant():
    planted = {one.cause for one in script.LIBRARY}
    assert {cause.value for cause in Cause} - planted == {"reward_flat"}
    assert planted - {cause.value for cause in Cause} == {"healthy", "reasoning_shrinkage"}


def test_the_cause_is_named_right_in_95_of_100_runs(saved):
    assert [row["planted"] for row in saved] == [one.name for one in script.LIBRARY]
    assert all(row["runs"] == script.RUNS for row in saved)
    assert sum(row["right"] for row in saved) >= 0.95 * sum(row["runs"] for row in saved)


def test_the_counts_add_up(saved):
    for row in saved:
        assert sum(row["named"].values()) == row["runs"]
        assert row["named"].get(row["cause"], 0) == row["right"]


def test_the_docs_show_the_saved_results(saved):
    shown = script.PAGE.read_text().partition(script.BEGIN)[2].partition(script.END)[0]
    assert shown == script.table(saved), "run benchmarks/planted_failures.py"
