"""Figure 8: Spearman's correlation of each MI proxy and each entropy with success, over a sweep."""

from __future__ import annotations

from ragen2.experiments.cells import SUCCESS, Cells, final, late, require_axes
from ragen2.experiments.charts import estimates_figure, scatter_figure
from ragen2.experiments.findings import Claim, Findings, Table
from ragen2.experiments.intervals import Estimate, ValuePair, spearman_estimate
from ragen2.reports.figures import Figure, NamedFigure

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


def analyse(cells: Cells) -> Findings:
    """One row per proxy and scope; runs are the pairs, ranked inside each task."""
    require_axes(cells, "task")
    rows, claims, drawn = [], [], []
    for scope in SCOPES:
        for proxy in PROXIES:
            found = correlation(cells, f"collapse/{scope}/{proxy}")
            rows.append((scope, proxy, found, None if found is None else found.num))
            if found is not None:
                claims.append(Claim(f"rho/{scope}/{proxy}", found, ""))
                drawn.append((f"{scope} {proxy}", found))
    token = correlation(cells, "update/entropy")
    rows.append(("tokens", "update/entropy", token, None if token is None else token.num))
    if token is not None:
        claims.append(Claim("rho/tokens/entropy", token, ""))
        drawn.append(("token entropy", token))
    figures = [
        NamedFigure(
            "correlations",
            [estimates_figure("Correlation with success", drawn, "Spearman")],
        ),
        NamedFigure(
            "scatter", [_scatter(cells, "mi_estimate"), _scatter(cells, "conditional_entropy")]
        ),
    ]
    table = Table(
        "Spearman's correlation with final held-out success",
        ("scope", "proxy", "rho", "runs"),
        tuple(rows),
    )
    note = (
        "Proxies are means of the last three measurements. Runs are compared inside their task; intervals "
        "draw runs anew."
    )
    return Findings([table], claims, figures, [note])


def success_table(cells: Cells) -> tuple[Table, list[Claim]]:
    """Whether dependence or variety goes with success, over an experiment's runs."""
    found = [(name, correlation(cells, metric)) for name, metric in SHOWN]
    table = Table(
        "Rank correlation of late values with final held-out success, inside each task",
        ("what", "rho", "runs"),
        tuple((name, rho, None if rho is None else rho.num) for name, rho in found),
    )
    return table, [Claim(f"rho/{name}", rho, "") for name, rho in found if rho is not None]


def correlation(cells: Cells, metric: str) -> Estimate | None:
    """Of a metric's late value with final success, over runs, inside each task."""
    strata = [_pairs(mine, metric) for _, mine in cells.groups("task")]
    return spearman_estimate(strata, metric)


def _pairs(cells: Cells, metric: str) -> list[ValuePair]:
    return Cells(cells.distinct).points(late(metric), final(SUCCESS))


def _scatter(cells: Cells, proxy: str) -> Figure:
    metric = f"collapse/first_turn/{proxy}"
    points = {task: _pairs(mine, metric) for (task,), mine in cells.groups("task")}
    return scatter_figure(f"{proxy} and success", points, proxy, "final success")
