"""The five levels: the ranks are computed rightly, and the docs show what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import groundedness_levels as script

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "diagnostics" / "training-signals.md"


@pytest.fixture(scope="module")
def saved() -> dict[str, Any]:
    return json.loads(script.RESULTS.read_text())


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.1, 0.2, 0.5, 0.6, 9.0], 1.0),
        ([5.0, 4.0, 3.0, 2.0, 1.0], -1.0),
        ([1.0, 1.0, 1.0, 1.0, 1.0], 0.0),
        ([2.0, 1.0, 3.0, 4.0, 5.0], 0.9),  # 1 - 6 * 2 / (5 * 24)
        ([0.0, 0.0, 1.0, 1.0], 2 / 5**0.5),  # ranks 1.5, 1.5, 3.5, 3.5 against 1, 2, 3, 4
    ],
)
def test_rank_correlation(values: list[float], expected: float) -> None:
    assert script.rank_correlation(values) == pytest.approx(expected)


def test_the_saved_ranks_are_those_of_the_saved_levels(saved: Any) -> None:
    assert saved["rank_correlations"] == script.correlations(saved["levels"])


def test_retrieval_and_information_rank_the_levels_and_entropy_does_not(saved: Any) -> None:
    ranks = saved["rank_correlations"]
    for name in ("retrieval_accuracy", "mi_estimate", "mi_seq_estimate"):
        assert ranks[name] == pytest.approx([1.0] * len(ranks[name])), name
    for name in ("conditional_entropy", "conditional_entropy_seq"):
        assert max(ranks[name]) < 0, name


def test_every_level_was_measured_on_every_seed(saved: Any) -> None:
    found = sorted((row["seed"], row["groundedness"]) for row in saved["levels"])
    assert found == [(seed, level) for seed in (0, 1) for level in script.LEVELS]


def test_the_docs_show_the_saved_results(saved: Any) -> None:
    shown = PAGE.read_text().partition("<!-- levels -->\n")[2].partition("\n<!-- /levels -->")[0]
    assert shown == script.table(saved["levels"]), (
        "run benchmarks/groundedness_levels.py --draw-only"
    )


def test_the_figure_is_that_of_the_saved_results(saved: Any) -> None:
    drawn = script.figure(saved["levels"])
    assert script.FIGURE.read_text() == drawn, "run benchmarks/groundedness_levels.py --draw-only"
    ElementTree.fromstring(drawn)  # noqa: S314 - our own file
