"""The computed table of docs/scale.md: its arithmetic, and the page that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scale_estimate import GIB, Shape, Work, estimate, table

ROOT = Path(__file__).parents[2]


def test_estimates_of_a_model_that_can_be_done_by_hand():
    shape = Shape("one", 1e9, 10, 1000, 100, 1000)
    work = Work(episodes=10, tokens=100, written=50, kept=0.5, micro_tokens=100)
    one = estimate(shape, 2, work)
    assert one.state * GIB == pytest.approx(16e9 / 2)
    assert one.served * GIB == pytest.approx(2e9)
    assert one.cache * GIB == pytest.approx(2 * 2 * 10 * 100 * 100 * 10 / 2)
    assert one.update == pytest.approx(8 * 1e9 * 500 / (2 * 989e12 * 0.35))
    assert one.scored == pytest.approx(one.update / 4)


def test_the_page_shows_the_computed_table():
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert "\n".join(table()) in page
