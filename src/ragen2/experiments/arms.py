"""Arms of a comparison: what a filter gains over no filter, paired by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ragen2.errors import ConfigError
from ragen2.experiments.cells import SUCCESS, Cells, Measure, final, peak
from ragen2.experiments.intervals import Estimate, mean_estimate, paired_estimate

NONE = "none"
"""Label of the arm without a filter."""
POINTS = 100.0
"""Percentage points of a share."""


def require_axes(cells: Cells, *axes: str) -> None:
    """Raise when the cells, planned or run, lack an axis that the analysis reads."""
    for axis in axes:
        if cells.planned and not cells.planned_axis(axis):
            raise ConfigError(
                f"this analysis reads the list {axis!r}, which the grid does not have; add it, or take "
                "another analysis"
            )


def difference(
    cells: Cells, axis: str, one: str, other: str, measure: Measure, factor: float = 1.0
) -> Estimate | None:
    """How much larger a measure is with one label of an axis than with another, paired by seed."""
    first = cells.where(**{axis: one}).by_seed(measure)
    second = cells.where(**{axis: other}).by_seed(measure)
    found = paired_estimate(first, second)
    return None if found is None else found.times(factor)


def filter_gain(cells: Cells, arm: str, *, at_peak: bool = True) -> Estimate | None:
    """Points of held-out success that a filter adds, at the best or at the last evaluation."""
    measure = peak(SUCCESS) if at_peak else final(SUCCESS)
    return difference(cells, "filter", arm, NONE, measure, POINTS)


def level(cells: Cells, measure: Measure, factor: float = 1.0) -> Estimate | None:
    """Mean of a measure over seeds."""
    found = mean_estimate(cells.values(measure))
    return None if found is None else found.times(factor)


def averaged(parts: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean of several measures, seed by seed; seeds that lack one are left out."""
    if not parts:
        return {}
    shared = set.intersection(*(set(part) for part in parts))
    return {seed: sum(part[seed] for part in parts) / len(parts) for seed in sorted(shared)}
