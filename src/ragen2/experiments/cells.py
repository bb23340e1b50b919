"""The runs of an experiment as an analysis reads them: by label and seed, alone or paired by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ragen2.errors import ConfigError
from ragen2.experiments.intervals import Estimate, mean_estimate, paired_estimate
from ragen2.reports.load import Run

SUCCESS = "eval/success"
SCOPE = "collapse/first_turn/"
MI, ENTROPY = f"{SCOPE}mi_estimate", f"{SCOPE}conditional_entropy"
RETRIEVAL = f"{SCOPE}retrieval_above_chance"
LAST = 3
"""Newest measurements whose mean is what a run ended with."""
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
    """The best of all measurements, the one before training among them."""

    def found(run: Run) -> float | None:
        return max(run.series(metric).values, default=None)

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


def late(metric: str) -> Measure:
    """Mean of the last measurements: a single one is noisy."""

    def found(run: Run) -> float | None:
        values = run.series(metric).values[-LAST:]
        return float(np.mean(values)) if values else None

    return found


def early(metric: str) -> Measure:
    """Mean of the first measurements."""

    def found(run: Run) -> float | None:
        values = run.series(metric).values[:LAST]
        return float(np.mean(values)) if values else None

    return found


def average(metric: str) -> Measure:
    """Mean over all measurements."""

    def found(run: Run) -> float | None:
        values = run.series(metric).values
        return float(np.mean(values)) if values else None

    return found


def change(metric: str, *, beside: str = "") -> Measure:
    """From the first measurements to the last; None where the two would share one.

    Only steps count at which ``beside`` was measured too: what is measured at every step and what is
    measured at every fifth change over the same window then.
    """

    def found(run: Run) -> float | None:
        series = run.series(metric)
        shared = set(run.series(beside or metric).steps)
        points = zip(series.steps, series.values, strict=True)
        values = [value for step, value in points if step in shared]
        if len(values) < 2:
            return None
        count = min(LAST, len(values) // 2)
        return float(np.mean(values[-count:]) - np.mean(values[:count]))

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


def seed_gains(cells: Cells, arm: str) -> dict[int, float]:
    """Peak held-out success with a filter less without, of each seed that has both."""
    with_filter = cells.where(filter=arm).by_seed(peak(SUCCESS))
    without = cells.where(filter=NONE).by_seed(peak(SUCCESS))
    shared = sorted(with_filter.keys() & without.keys())
    return {seed: with_filter[seed] - without[seed] for seed in shared}


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


def _has(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(axis) == label for axis, label in wanted.items())
