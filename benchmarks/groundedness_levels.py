"""Five warm starts of known groundedness: which signals put them in order, and which do not?

The embedded model is trained on the same scripted games at five levels. At level g a reasoning describes
its own lake with chance g, else some other lake in the same wording. Only g differs, so a signal of collapse
must rise with it. Each model then plays held-out lakes, and everything a trainer might watch is written down.

Run it with `python benchmarks/groundedness_levels.py`; it takes about a minute a model on one core.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ragen2.backends.agent import open_agent, quiet_transformers
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.settings import LearnerSettings
from ragen2.diagnostics import measure, regime, surface
from ragen2.envs import FrozenLake
from ragen2.reports.figures import Chart, chart_figure, standalone
from ragen2.reports.load import Series
from ragen2.rollout import Rollout, Task, play
from ragen2.runs.files import write_atomically
from ragen2.scoring import cross_score, first_turn_traces
from ragen2.seeding import stream
from ragen2.trainer.evaluate import evaluate
from ragen2.trainer.warmstart import WarmstartConfig, warmstart

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "groundedness_levels.json"
PAGE = ROOT / "docs" / "diagnostics" / "training-signals.md"
FIGURE = PAGE.parent / "images" / "groundedness-levels.svg"
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
PROMPTS, GROUP = 16, 16
SIGNALS = {
    "retrieval_accuracy": "retrieval accuracy",
    "mi_estimate": "MI-Est",
    "mi_seq_estimate": "MI-Seq-Est",
    "mi_zscore": "MI-ZScore",
    "conditional_entropy": "H(Z|X) per token",
    "conditional_entropy_seq": "H(Z|X) per trace",
    "reasoning_entropy": "H(Z) per token",
    "reasoning_entropy_seq": "H(Z) per trace",
    "distinct_reasoning_ratio": "distinct traces",
    "reasoning_tokens": "reasoning tokens",
    "format_validity": "format validity",
    "success": "held-out success",
}


def recipe(groundedness: float, seed: int, steps: int) -> WarmstartConfig:
    """Short games, because collapse is read off first turns."""
    return WarmstartConfig(
        seed=seed,
        steps=steps,
        batch=12,
        quality=0.2,
        groundedness=groundedness,
        env=FrozenLake(max_turns=2),
        learner=LearnerSettings(lr=1.5e-3, warmup_steps=5),
    )


def level(groundedness: float, seed: int, steps: int) -> dict[str, Any]:
    """Warm-start one model and measure it."""
    config = recipe(groundedness, seed, steps)
    agent = open_agent(config.model, config.learner, seed=seed)
    loss = warmstart(config, agent.learner)
    found = signals(agent.policy, seed)
    named = regime(found).value
    print(
        f"seed {seed}  groundedness {groundedness:.2f}  retrieval {found['retrieval_accuracy']:.3f}"
    )
    return {"groundedness": groundedness, "seed": seed, "loss": loss, "regime": named, **found}


def signals(policy: HFPolicy, seed: int) -> dict[str, float]:
    """First turns of 16 held-out lakes, 16 each, cross-scored; success on 256 whole games."""
    rollout = Rollout(prompts=PROMPTS, group_size=GROUP, max_tokens=64)
    tasks = [[Task(prompt, luck) for luck in range(GROUP)] for prompt in range(PROMPTS)]
    groups = play(FrozenLake(max_turns=1), policy, tasks, rollout, key=(seed, "levels"))
    traces = first_turn_traces(groups, PROMPTS * GROUP, stream(seed, "levels"))
    scores = cross_score(traces, policy, rollout.temperature)
    if scores is None:
        raise RuntimeError("no reasoning to score: the warm start lost the reply format")
    games, _ = evaluate(FrozenLake(), policy, rollout, tasks=256, seed=seed)
    return {
        **measure(scores.logp_NP, scores.length_N, scores.owner_N, resamples=1000),
        **surface(groups),
        "success": games["eval/success"],
    }


def rank_correlation(values: list[float]) -> float:
    """Spearman's, of a signal with groundedness; equal values share their rank."""
    array = np.array(values)
    rank = [float(np.mean(array < one) + np.mean(array <= one)) for one in array]
    if np.ptp(rank) == 0:
        return 0.0
    return float(np.corrcoef(np.arange(len(values)), rank)[0, 1])


def correlations(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Each signal's rank correlation with groundedness, one number a seed."""
    seeds = sorted({row["seed"] for row in rows})
    ordered = {s: sorted((r for r in rows if r["seed"] == s), key=_groundedness) for s in seeds}
    return {
        name: [rank_correlation([row[name] for row in ordered[seed]]) for seed in seeds]
        for name in SIGNALS
    }


def figure(rows: list[dict[str, Any]]) -> str:
    """Retrieval, MI and entropy against groundedness, with the intervals of the first seed."""
    seed = min(row["seed"] for row in rows)
    chosen = sorted((row for row in rows if row["seed"] == seed), key=_groundedness)

    def line(name: str, metric: str) -> Series:
        columns = [[row[metric + end] for row in chosen] for end in ("", "_low", "_high")]
        across = tuple(round(100 * row["groundedness"]) for row in chosen)
        return Series(name, across, *map(tuple, columns))

    chance = chosen[0]["retrieval_chance"]
    retrieval = Chart(
        "Retrieval accuracy", [line("retrieval", "retrieval_accuracy")], [("chance", chance)],
        floor=0.0, across="groundedness, %",
    )  # fmt: skip
    nats = Chart(
        "Entropy and information",
        [line("H(Z|X)", "conditional_entropy"), line("I(X;Z)", "mi_estimate")],
        unit="nats per token",
        floor=0.0,
        across="groundedness, %",
    )
    return standalone([chart_figure(retrieval), chart_figure(nats)])


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: one row a signal, one column a level (mean over seeds), then the correlations."""
    ranks = correlations(rows)
    lines = [f"| signal | {' | '.join(f'{g:g}' for g in LEVELS)} | rank correlation |"]
    lines.append("|---" * (len(LEVELS) + 2) + "|")
    for name, label in SIGNALS.items():
        means = [np.mean([r[name] for r in rows if r["groundedness"] == g]) for g in LEVELS]
        shown = ", ".join(f"{rank:+.2f}" for rank in ranks[name])
        cells = " | ".join(f"{mean:.3g}" for mean in means)
        lines.append(f"| {label.replace('|', chr(92) + '|')} | {cells} | {shown} |")
    return "\n".join(lines)


def _groundedness(row: dict[str, Any]) -> float:
    return float(row["groundedness"])


def main() -> None:
    """Train, measure, and write the results, the figure and the table of the docs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=150, help="optimiser steps of each warm start")
    parser.add_argument("--draw-only", action="store_true", help="draw from the saved results")
    given = parser.parse_args()
    if not given.draw_only:
        torch.set_num_threads(1)
        quiet_transformers()
        rows = [level(g, seed, given.steps) for seed in given.seeds for g in LEVELS]
        found = {"steps": given.steps, "rank_correlations": correlations(rows), "levels": rows}
        RESULTS.parent.mkdir(exist_ok=True)
        write_atomically(RESULTS, json.dumps(found, indent=1) + "\n")
    rows = json.loads(RESULTS.read_text())["levels"]
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(FIGURE, figure(rows))
    before, mark, rest = PAGE.read_text(encoding="utf-8").partition("<!-- levels -->\n")
    end = "\n<!-- /levels -->"
    write_atomically(PAGE, before + mark + table(rows) + end + rest.partition(end)[2])


if __name__ == "__main__":
    main()
