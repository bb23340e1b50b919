"""The tables of the experiment on std-normalisation are those that its committed records give."""

from __future__ import annotations

from pathlib import Path

from normalisation_tables import area, peak, tables

FOLDER = Path(__file__).parents[2] / "results" / "experiments" / "normalisation-small"


def test_the_page_holds_the_tables_of_the_records() -> None:
    assert (FOLDER / "README.md").read_text().rstrip().endswith(tables(FOLDER))


def test_the_area_is_the_mean_height_of_the_curve() -> None:
    assert area({0: 0.0, 8: 1.0, 32: 1.0}) == (0.5 * 8 + 24) / 32


def test_the_peak_leaves_the_start_out() -> None:
    assert peak({0: 0.9, 8: 0.2, 16: 0.4}) == 0.4
