"""How many prompts the proxies need: smaller batches drawn out of the score matrices that runs stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ragen2.diagnostics.metrics.mutual_information import measure
from ragen2.experiments.cells import Cells, require_axes
from ragen2.experiments.charts import lines_figure
from ragen2.experiments.findings import Claim, Entry, Findings, Table, claimed
from ragen2.experiments.intervals import Estimate, mean_estimate
from ragen2.reports.figures import Figure, NamedFigure
from ragen2.reports.load import Run
from ragen2.runs.scores import ScopeScores, list_scores, read_scores
from ragen2.seeding import stream

SCOPE = "probe"
"""The held-out prompts: the same ones in every run and at every evaluation."""
PROXIES = ("mi_estimate", "retrieval_above_chance")
SIZES = (2, 4, 8, 16, 32, 64)
DRAWS = 40
"""Batches of each size, out of one matrix."""
SHARE = 0.1
"""Spread of a proxy, as a share of its value, that counts as enough."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A proxy over batches of one size, out of one matrix."""

    size: int
    mean: float
    std: float


def analyse(cells: Cells) -> Findings:
    """Mean and spread of each proxy by number of prompts, and how many keep the spread small."""
    require_axes(cells, "task")
    rows: list[tuple[Entry, ...]] = []
    claims: list[Claim] = []
    figures = []
    for (task,), mine in cells.groups("task"):
        for proxy in PROXIES:
            found = [drawn_batches(one.run, proxy, one.seed) for one in mine.runs]
            known = [one for one in found if one]
            points = []
            for size in sorted({one.size for run in known for one in run}):
                here = [one for run in known for one in run if one.size == size]
                mean = mean_estimate([one.mean for one in here], "t over runs")
                spread = mean_estimate(
                    [one.std / one.mean for one in here if one.mean > 0.0], "t over runs"
                )
                rows.append((task, proxy, size, len(here), mean, spread))
                points.append((float(size), spread))
                claims += claimed(f"spread/{task}/{proxy}/{size}", spread, "of the value")
            figures.append(NamedFigure(f"prompts-{task}-{proxy}", [_figure(task, proxy, points)]))
            enough = enough_size(points)
            if enough is not None:
                only = Estimate(
                    float(enough),
                    None,
                    None,
                    len(known),
                    "smallest size with a spread of at most a tenth",
                )
                claims.append(Claim(f"enough/{task}/{proxy}", only, "prompts", 0))
    columns = (
        "task",
        "proxy",
        "prompts",
        "matrices",
        "mean",
        "spread over batches, share of the mean",
    )
    note = (
        f"Each matrix gives {DRAWS} batches of every size up to half its prompts: larger ones overlap and "
        "are too alike."
    )
    return Findings(
        [Table("Proxies of smaller batches", columns, tuple(rows), digits=3)],
        claims,
        figures,
        [note],
    )


def drawn_batches(run: Run, proxy: str, seed: int) -> list[Drawn]:
    """Batches out of the newest matrix of the held-out prompts; nothing where a run stored none."""
    scores = _newest(run)
    if scores is None:
        return []
    logp_NP = np.array(
        [[np.nan if value is None else value for value in row] for row in scores.logp]
    )
    if np.isnan(logp_NP).any():
        return []
    owner_N, length_N = np.array(scores.owner), np.array(scores.length)
    there = np.unique(owner_N)
    found = []
    for size in (size for size in SIZES if size <= len(there) // 2):
        rng = stream("experiment", "prompts", seed, size)
        values = []
        for _ in range(DRAWS):
            chosen = np.sort(rng.permutation(there)[:size])
            rows = np.flatnonzero(np.isin(owner_N, chosen))
            owner = np.searchsorted(chosen, owner_N[rows])
            measured = measure(logp_NP[np.ix_(rows, chosen)], length_N[rows], owner, resamples=0)
            values.append(measured[proxy])
        found.append(Drawn(size, float(np.mean(values)), float(np.std(values, ddof=1))))
    return found


def enough_size(points: Sequence[tuple[float, Estimate | None]]) -> int | None:
    """The smallest size from which on the spread is at most a tenth of the value."""
    small = [one is not None and one.value <= SHARE for _, one in points]
    for place in range(len(points)):
        if all(small[place:]):
            return int(points[place][0])
    return None


def _newest(run: Run) -> ScopeScores | None:
    for _, path in reversed(list_scores(run.path)):
        for scores in read_scores(path).scopes:
            if scores.name == SCOPE:
                return scores
    return None


def _figure(task: str, proxy: str, points: Sequence[tuple[float, Estimate | None]]) -> Figure:
    return lines_figure(f"{task}: {proxy}", {proxy: points}, "prompts", "spread over the mean")
