"""Curves over seeds: the mean at steps that all runs measured, and a band where there are runs enough."""

from __future__ import annotations

import pytest
from made_runs import run_of

from ragen2.experiments.cells import CellRun, Cells
from ragen2.experiments.charts import estimates_figure, mean_series
from ragen2.experiments.intervals import Estimate
from ragen2.reports.figures import HEIGHT, picture


def cells(*curves: list[float | None]) -> Cells:
    return Cells(
        [CellRun({}, seed, f"run {seed}", run_of({"m": one})) for seed, one in enumerate(curves)]
    )


def test_the_mean_of_three_has_its_students_interval():
    found = mean_series(cells([1.0, 4.0], [2.0, 4.0], [3.0, 4.0]), "m", "arm", factor=2.0)
    assert found.steps == (0, 1)
    assert found.values == (4.0, 8.0)
    # Standard error 2 / sqrt(3), Student's t of two degrees 4.303.
    assert found.low == pytest.approx((4.0 - 4.303 * 2 / 3**0.5, 8.0), abs=1e-3)
    assert found.high == pytest.approx((4.0 + 4.303 * 2 / 3**0.5, 8.0), abs=1e-3)


def test_two_runs_have_no_band_and_steps_that_one_lacks_are_left_out():
    found = mean_series(cells([1.0, None, 3.0], [2.0, 4.0, 5.0]), "m", "arm")
    assert found.steps == (0, 2)
    assert found.values == (1.5, 4.0)
    assert found.low == found.high == ()


def test_many_rows_of_estimates_do_not_lie_over_each_other():
    rows = [(f"row {i}", Estimate(float(i), i - 1.0, i + 1.0, 3, "")) for i in range(30)]
    few, many = (estimates_figure("Gains", rows[:count], "points") for count in (4, 30))
    assert few.height == HEIGHT
    assert many.height / 30 > 12 / 72, "inches a row, for letters of about ten points"
    png = picture([few, many], "png")
    assert int.from_bytes(png[20:24]) == round(200 * many.height), "side by side the highest counts"
