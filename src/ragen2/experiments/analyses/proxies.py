"""How good the MI proxies are: against success, under interventions, and from how many prompts.

- Figure 8: Spearman's correlation of each MI proxy and each entropy with success, over a sweep.
- Figures 12 and 13: where entropy bonus, KL and filter move a run in the plane of H(Z|X) and MI.
- Smaller batches drawn out of the score matrices that runs stored: how many prompts are enough?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ragen2.diagnostics.metrics.mutual_information import measure
from ragen2.experiments.cells import (
    ENTROPY,
    MI,
    POINTS,
    SUCCESS,
    CellRun,
    Cells,
    Measure,
    final,
    late,
    level,
    require_axes,
)
from ragen2.experiments.charts import estimates_figure, lines_figure, scatter_figure
from ragen2.experiments.findings import Claim, Entry, Findings, Table, claimed
from ragen2.experiments.intervals import (
    Estimate,
    ValuePair,
    clustered_spearman,
    mean_estimate,
    share_estimate,
    spearman_estimate,
)
from ragen2.reports.figures import Figure, NamedFigure
from ragen2.reports.load import Run
from ragen2.runs.scores import ScopeScores, list_scores, read_scores
from ragen2.seeding import stream

PROXIES = (
    "mi_estimate",
    "mi_seq_estimate",
    "mi_zscore",
    "mi_zscore_seq",
    "mi_zscore_ema",
    "retrieval_accuracy",
    "conditional_entropy",
    "reasoning_entropy",
)
SCOPES = ("first_turn", "trajectory")
SHOWN = (
    ("MI", "collapse/first_turn/mi_estimate"),
    ("retrieval", "collapse/first_turn/retrieval_accuracy"),
    ("H(Z|X)", "collapse/first_turn/conditional_entropy"),
    ("H(Z)", "collapse/first_turn/reasoning_entropy"),
    ("token entropy", "update/entropy"),
)
"""Dependence and variety, for experiments that ask something else."""


def analyse_correlation(cells: Cells) -> Findings:
    """One row per proxy and scope; runs are the pairs, ranked inside each task, and drawn by arms."""
    require_axes(cells, "task")
    asked = [
        (f"{scope}/{proxy}", f"collapse/{scope}/{proxy}") for scope in SCOPES for proxy in PROXIES
    ]
    table, claims = _correlation_table(cells, [*asked, ("tokens/entropy", "update/entropy")])
    drawn = [(one.name.removeprefix("rho/"), one.estimate) for one in claims]
    figures = [
        NamedFigure(
            "correlations",
            [estimates_figure("Correlation with success", drawn, "Spearman")],
        ),
        NamedFigure(
            "scatter", [_scatter(cells, "mi_estimate"), _scatter(cells, "conditional_entropy")]
        ),
    ]
    return Findings([table], claims, figures, [OF_ARMS])


OF_ARMS = (
    "A proxy's value is its mean over the last three steps of a run. Runs are compared inside their task. "
    "Seeds of one arm are alike, so intervals draw whole arms anew, and fewer than ten arms have none; "
    "between arms: of their means; within: of what is left when an arm's mean is taken off."
)


def success_table(cells: Cells) -> tuple[Table, list[Claim]]:
    """Whether dependence or variety goes with success, over an experiment's runs."""
    return _correlation_table(cells, SHOWN)


def _correlation_table(cells: Cells, asked: Sequence[tuple[str, str]]) -> tuple[Table, list[Claim]]:
    rows: list[tuple[Entry, ...]] = []
    claims: list[Claim] = []
    for name, metric in asked:
        strata = [_arms(mine, late(metric), final(SUCCESS)) for _, mine in cells.groups("task")]
        rho = clustered_spearman(strata, metric)
        num_runs = sum(len(arm) for arms in strata for arm in arms)
        num_arms = sum(map(len, strata))
        rows.append((name, rho.total, rho.between, rho.within, num_arms, num_runs))
        claims += claimed(f"rho/{name}", rho.total, "")
    title = "Rank correlation of late values with final held-out success, inside each task"
    columns = ("what", "over runs", "between arms", "within arms", "arms", "runs")
    return Table(title, columns, tuple(rows)), claims


def _arms(cells: Cells, across: Measure, up: Measure) -> list[list[ValuePair]]:
    """Two measures of the runs of each arm."""
    arms: dict[str, list[CellRun]] = {}
    for one in cells.distinct:
        arms.setdefault(one.arm, []).append(one)
    found = [Cells(runs).points(across, up) for runs in arms.values()]
    return [pairs for pairs in found if pairs]


def _pairs(cells: Cells, metric: str) -> list[ValuePair]:
    return Cells(cells.distinct).points(late(metric), final(SUCCESS))


def _scatter(cells: Cells, proxy: str) -> Figure:
    metric = f"collapse/first_turn/{proxy}"
    points = {task: _pairs(mine, metric) for (task,), mine in cells.groups("task")}
    return scatter_figure(f"{proxy} and success", points, proxy, "final success")


VALIDITY = "rollout/format_validity"
VALID = 0.95
AXES: tuple[tuple[str, Measure], ...] = (
    ("entropy", late(ENTROPY)),
    ("mi", late(MI)),
    ("success", final(SUCCESS)),
)
STRENGTH = {
    "entropy bonus": "algorithm.entropy_coefficient",
    "KL": "algorithm.kl_coefficient",
    "filter": "filter.mass",
}
"""The setting that each sweep turns up."""


def analyse_interventions(cells: Cells) -> Findings:
    """One row per strength of each intervention, and how each strength goes with H, MI and success."""
    require_axes(cells, "block", "task")
    rows: list[tuple[Entry, ...]] = []
    claims: list[Claim] = []
    for (sweep, task), mine in cells.groups("block", "task"):
        setting = STRENGTH.get(sweep)
        if setting is None or not mine.axis(setting):
            continue
        for (strength,), here in mine.groups(setting):
            rows.append(
                (
                    sweep,
                    task,
                    strength,
                    len(here),
                    level(here, late(ENTROPY)),
                    level(here, late(MI)),
                    level(here, final(SUCCESS), POINTS),
                    level(here, late(VALIDITY)),
                )
            )
    for (sweep,), mine in cells.groups("block"):
        for name, read in AXES:
            strata = [
                _strength_pairs(here, STRENGTH.get(sweep, ""), read)
                for _, here in mine.groups("task")
            ]
            trend = spearman_estimate(strata, f"interventions {sweep} {name}")
            claims += claimed(f"trend/{sweep}/{name}", trend, "rank correlation")
    claims += _validity_claims(cells)
    columns = (
        "intervention",
        "task",
        "strength",
        "runs",
        "H(Z|X)",
        "MI",
        "final success, %",
        "format validity",
    )
    sweeps = cells.split("block").items()
    plane = {sweep: mine.points(late(ENTROPY), late(MI)) for sweep, mine in sweeps}
    validity = {sweep: mine.points(late(VALIDITY), late(MI)) for sweep, mine in sweeps}
    figures = [
        NamedFigure(
            "plane",
            [
                scatter_figure(
                    "Where runs end", plane, "H(Z|X), nats per token", "MI, nats per token"
                )
            ],
        ),
        NamedFigure(
            "validity",
            [scatter_figure("Format and MI", validity, "format validity", "MI, nats per token")],
        ),
    ]
    note = "A filter is turned up by keeping less mass, so its trends are those of 1 - mass."
    return Findings(
        [Table("At the last steps", columns, tuple(rows), digits=3)], claims, figures, [note]
    )


def _strength_pairs(cells: Cells, setting: str, measure: Measure) -> list[ValuePair]:
    sign = -1.0 if setting == "filter.mass" else 1.0
    found = [(one.labels.get(setting), measure(one.run)) for one in cells.runs]
    return [(sign * float(x), y) for x, y in found if x is not None and y is not None]


def _validity_claims(cells: Cells) -> list[Claim]:
    pairs = Cells(cells.distinct).points(late(VALIDITY), late(MI))
    claims: list[Claim] = []
    rho = clustered_spearman([_arms(cells, late(VALIDITY), late(MI))], "interventions validity")
    claims += claimed("rho/validity/mi", rho.total, "rank correlation")
    share = share_estimate([x >= VALID for x, _ in pairs])
    claims += claimed("share/valid", share, "of runs have a format validity of at least 0.95")
    return claims


SCOPE = "probe"
"""The held-out prompts: the same ones in every run and at every evaluation."""
SUBSAMPLED = ("mi_estimate", "retrieval_above_chance")
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


def analyse_prompts(cells: Cells) -> Findings:
    """Mean and spread of each proxy by number of prompts, and how many keep the spread small."""
    require_axes(cells, "task")
    rows: list[tuple[Entry, ...]] = []
    claims: list[Claim] = []
    figures = []
    for (task,), mine in cells.groups("task"):
        for proxy in SUBSAMPLED:
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
