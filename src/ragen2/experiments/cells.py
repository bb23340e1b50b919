"""The runs of an experiment as an analysis reads them: by label and seed, alone or paired by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ragen2.errors import ConfigError
from ragen2.experiments.findings import Claim, claimed
from ragen2.experiments.intervals import Estimate, mean_estimate, paired_estimate
from ragen2.reports.load import Run

SUCCESS = "eval/success"
SCOPE = "collapse/first_turn/"
MI, ENTROPY = f"{SCOPE}mi_estimate", f"{SCOPE}conditional_entropy"
RETRIEVAL = f"{SCOPE}retrieval_above_chance"
WINDOW = 3
"""Steps that are a run's beginning, and its end: a single measurement is noisy."""
Measure = Callable[[Run], float | None]
NONE = "none"
"""Label of the arm without a filter."""
POINTS = 100.0
"""Percentage points of a share."""


@dataclass(frozen=True)
class CellRun:
    """One run of a cell."""

    labels: Mapping[str, str]
    seed: int
    name: str
    run: Run

    @property
    def arm(self) -> str:
        """Its name without the seed: what the runs of one arm share."""
        return self.name.rpartition("-seed")[0] or self.name

    def has(self, **labels: str) -> bool:
        """Whether its labels are these."""
        return _has(self.labels, labels)


@dataclass(frozen=True)
class Cells:
    """The finished runs of an experiment."""

    runs: Sequence[CellRun]
    others: Sequence[CellRun] = field(default_factory=list)
    """Finished runs of other experiments in the same folder."""
    plan: Sequence[Mapping[str, str]] | None = None
    """Labels of every cell that was planned, finished or not; None where only the runs tell."""

    @property
    def planned(self) -> Sequence[Mapping[str, str]]:
        """Labels of the cells that there should be."""
        return [one.labels for one in self.runs] if self.plan is None else self.plan

    def where(self, **labels: str) -> Cells:
        """Those with these labels."""
        runs = [one for one in self.runs if one.has(**labels)]
        if self.plan is None:
            return Cells(runs, self.others)
        return Cells(runs, self.others, [one for one in self.plan if _has(one, labels)])

    def axis(self, name: str) -> list[str]:
        """The labels that an axis has among the runs, in the order of the grid."""
        return list(dict.fromkeys(one.labels[name] for one in self.runs if name in one.labels))

    def planned_axis(self, name: str) -> list[str]:
        """The labels that an axis should have, those without a finished run among them."""
        return list(dict.fromkeys(labels[name] for labels in self.planned if name in labels))

    def by_seed(self, measure: Measure) -> dict[int, float]:
        """The measure of each seed; runs that do not have it are left out.

        Raises where a seed has several runs: which of them would count is not for us to choose.
        """
        of_seed: dict[int, CellRun] = {}
        for one in self.runs:
            other = of_seed.setdefault(one.seed, one)
            if other.name != one.name:
                apart = [axis for axis in one.labels if one.labels[axis] != other.labels.get(axis)]
                raise ConfigError(
                    f"this analysis reads one run per seed, but the list {apart[0]!r} makes several; give "
                    "it one value, or take another analysis"
                )
        found = {seed: measure(one.run) for seed, one in of_seed.items()}
        return {seed: value for seed, value in found.items() if value is not None}

    @property
    def distinct(self) -> list[CellRun]:
        """Each run once; cells that want the same run share it."""
        return list({one.name: one for one in self.runs}.values())

    def values(self, measure: Measure) -> list[float]:
        """The measure of every run that has it."""
        found = [measure(one.run) for one in self.runs]
        return [value for value in found if value is not None]

    def points(self, across: Measure, up: Measure) -> list[tuple[float, float]]:
        """Two measures of every run that has both."""
        found = [(across(one.run), up(one.run)) for one in self.runs]
        return [(x, y) for x, y in found if x is not None and y is not None]

    def groups(self, *axes: str) -> Iterator[tuple[tuple[str, ...], Cells]]:
        """Runs that share the labels of these axes, in the order of the grid."""
        shared = [one for one in self.runs if all(axis in one.labels for axis in axes)]
        for key in dict.fromkeys(tuple(one.labels[axis] for axis in axes) for one in shared):
            yield key, self.where(**dict(zip(axes, key, strict=True)))

    def split(self, axis: str) -> dict[str, Cells]:
        """The runs of each label of an axis, in the order of the grid."""
        return {label: self.where(**{axis: label}) for label in self.axis(axis)}

    def __len__(self) -> int:
        return len(self.runs)


def peak(metric: str = SUCCESS) -> Measure:
    """The best measurement after step 0, which is before training."""

    def found(run: Run) -> float | None:
        series = run.series(metric)
        points = zip(series.steps, series.values, strict=True)
        return max((value for step, value in points if step > 0), default=None)

    return found


def area(metric: str = SUCCESS) -> Measure:
    """Mean height of the curve, by trapezoids from the first measurement to the last."""

    def found(run: Run) -> float | None:
        series = run.series(metric)
        points = list(zip(series.steps, series.values, strict=True))
        if len(points) < 2:
            return None
        total = sum((b[0] - a[0]) * (a[1] + b[1]) / 2.0 for a, b in pairwise(points))
        return total / (points[-1][0] - points[0][0])

    return found


def first(metric: str = SUCCESS) -> Measure:
    """The first measurement: of success, that before training."""

    def found(run: Run) -> float | None:
        values = run.series(metric).values
        return values[0] if values else None

    return found


def final(metric: str = SUCCESS) -> Measure:
    """The last measurement."""

    def found(run: Run) -> float | None:
        values = run.series(metric).values
        return values[-1] if values else None

    return found


def early(metric: str) -> Measure:
    """Mean over the first three steps of a run."""
    return lambda run: _mean_of(_early(run, metric))


def late(metric: str) -> Measure:
    """Mean over the last three steps of a run; None where nothing was measured there.

    Step 1 never counts: its rollouts are sampled before the first update.
    """
    return lambda run: _mean_of(_late(run, metric))


def average(metric: str) -> Measure:
    """Mean over all measurements."""

    def found(run: Run) -> float | None:
        values = run.series(metric).values
        return float(np.mean(values)) if values else None

    return found


def change(metric: str, *, beside: str = "") -> Measure:
    """From the first three steps of a run to the last three; None where either has no measurement.

    Only steps count at which ``beside`` was measured too: what is measured at every step and what is
    measured at every fifth change over the same window then.
    """

    def found(run: Run) -> float | None:
        before = _mean_of(_early(run, metric, beside))
        after = _mean_of(_late(run, metric, beside))
        return None if before is None or after is None else after - before

    return found


def gain(metric: str = SUCCESS) -> Measure:
    """The last measurement less the first."""

    def found(run: Run) -> float | None:
        values = run.series(metric).values
        return values[-1] - values[0] if len(values) > 1 else None

    return found


def training_seconds(run: Run) -> float | None:
    """Seconds of a step without evaluation and diagnosis; the first, which warms up, is left out."""
    spent = [
        record.seconds["rollout"] + record.seconds["update"]
        for record in run.records
        if record.step > 1 and {"rollout", "update"} <= record.seconds.keys()
    ]
    return float(np.mean(spent)) if spent else None


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
    return paired_estimate(first, second, factor)


def filters(cells: Cells) -> list[str]:
    """Labels of the arms that have a filter."""
    return [label for label in cells.axis("filter") if label != NONE]


def first_filter(cells: Cells) -> str:
    """The filter that an analysis of one filter is about; the paper's where no run has one yet."""
    return (filters(cells) or ["top_p"])[0]


def seed_gains(cells: Cells, arm: str, measure: Measure | None = None) -> dict[int, float]:
    """Held-out success with a filter less without, of each seed that has both; at the peak if not said."""
    read = measure or peak(SUCCESS)
    with_filter = cells.where(filter=arm).by_seed(read)
    without = cells.where(filter=NONE).by_seed(read)
    shared = sorted(with_filter.keys() & without.keys())
    return {seed: with_filter[seed] - without[seed] for seed in shared}


def filter_gain(cells: Cells, arm: str, measure: Measure | None = None) -> Estimate | None:
    """Points of held-out success that a filter adds; at the peak if not said."""
    return difference(cells, "filter", arm, NONE, measure or peak(SUCCESS), POINTS)


def success_claims(name: str, find: Callable[[Measure], Estimate | None]) -> list[Claim]:
    """A comparison of success in points, read three ways.

    ``NAME`` is at the peak, as the paper has it; ``NAME/end`` at the last evaluation; ``NAME/area`` over
    the mean height of the curve, which a single lucky evaluation hardly moves.
    """
    readings = {"": peak(SUCCESS), "/end": final(SUCCESS), "/area": area(SUCCESS)}
    return [
        claim
        for ending, measure in readings.items()
        for claim in claimed(f"{name}{ending}", find(measure), "points", 1)
    ]


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


def _early(run: Run, metric: str, beside: str = "") -> list[float]:
    return [value for step, value in _shared(run, metric, beside) if step <= _width(run)]


def _late(run: Run, metric: str, beside: str = "") -> list[float]:
    after = max(run.records[-1].step - _width(run), 1) if run.records else 0
    return [value for step, value in _shared(run, metric, beside) if step > after]


def _shared(run: Run, metric: str, beside: str) -> list[tuple[int, float]]:
    series = run.series(metric)
    there = set(run.series(beside or metric).steps)
    points = zip(series.steps, series.values, strict=True)
    return [(step, value) for step, value in points if step in there]


def _width(run: Run) -> int:
    """Of a run's ends, which do not overlap."""
    return max(min(WINDOW, run.records[-1].step // 2), 1) if run.records else 0


def _mean_of(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _has(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(axis) == label for axis, label in wanted.items())
