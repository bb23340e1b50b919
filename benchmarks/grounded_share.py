"""Planted mixtures of grounded and template reasoning: is the grounded share covered, is the verdict right?

Each batch has P prompts of G traces. A trace is grounded with chance s (0 to 1 in tenths); else it is drawn
without regard to its prompt. Three sources:

- ``tabular``: policies whose probabilities are known exactly, scored by the mixture that wrote the traces;
- ``embedded``: traces that the embedded model wrote on FrozenLake; a template trace is one that it wrote on
  another lake, outside the batch;
- ``text``: logs of short sentences, scored by their wording alone, as `ragen2 audit` does without a model.

    python benchmarks/grounded_share.py [--repetitions 200] [--kinds tabular text]

writes results/grounded_share.json and the tables of docs/diagnostics/grounded-share.md; about 20 minutes on
one core.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ragen2.audit.likelihoods import WordLikelihood
from ragen2.audit.reservoir import TextTrace
from ragen2.backends.agent import open_policy
from ragen2.diagnostics.judging.regime import COLLAPSED, GROUNDED, Entropies, name_regime
from ragen2.diagnostics.metrics.grounding import grounded_share, high_with_unseen, rank_counts
from ragen2.envs import FrozenLake
from ragen2.rollout import Rollout, Task, play
from ragen2.runs.files import write_atomically
from ragen2.scoring import cross_score, first_turn_traces
from ragen2.seeding import stream
from ragen2.types import FloatArray, ScoreMatrix
from tabular_source import NEVER, TabularSource

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "grounded_share.json"
PAGE = ROOT / "docs" / "diagnostics" / "grounded-share.md"
SIZES = ((4, 4), (8, 4), (8, 8), (16, 4), (16, 8), (32, 8), (64, 16))
SHARES = tuple(tenth / 10 for tenth in range(11))
HEALTHY, MOSTLY_TEMPLATE = 0.8, 0.2
"""From the first on a verdict of collapse is wrong; up to the second one of health is."""
SHOWN = (0.0, 0.2, 0.5, 0.8, 1.0)
"""Shares that the tables have columns for."""
POOL_PROMPTS, POOL_TRACES = 96, 16
FILLER = [f"filler{number}" for number in range(40)]
DIRECTIONS = ("up", "down", "left", "right")
Drawn = tuple[ScoreMatrix | None, int | None]
"""Scores, and what a trace was compared with where no model scored it."""
Draw = Callable[[int, int, float, np.random.Generator], Drawn]


@cache
def sources(prompts: int) -> list[tuple[TabularSource, TabularSource]]:
    """Three pairs: a grounded policy, and the policy without its codewords."""
    return [
        tuple(
            TabularSource.make(
                prompts=prompts, vocabulary=8, length=4, groundedness=level, seed=seed
            )
            for level in (0.8, 0.0)
        )
        for seed in range(3)
    ]


def tabular(prompts: int, traces: int, share: float, rng: np.random.Generator) -> Drawn:
    """Scored by the true mixture."""
    grounded, template = sources(prompts)[rng.integers(3)]
    with np.errstate(divide="ignore"):
        mixed_SP = np.log(share * grounded.probability_SP + (1.0 - share) * template.probability_SP)
    owner_N = np.repeat(np.arange(prompts), traces)
    drawn = [
        (grounded if rng.random() < share else template).draw(column, rng) for column in owner_N
    ]
    scores_NP = np.maximum(mixed_SP, NEVER)[drawn]
    return ScoreMatrix(scores_NP, grounded.length_S[drawn], owner_N), None


@cache
def pool() -> ScoreMatrix:
    """What the embedded model writes on many lakes, scored under all of them."""
    policy = open_policy("ragen2-tiny")
    rollout = Rollout(prompts=POOL_PROMPTS, group_size=POOL_TRACES, max_tokens=64)
    tasks = [[Task(seed, luck) for luck in range(POOL_TRACES)] for seed in range(POOL_PROMPTS)]
    groups = play(FrozenLake(max_turns=1), policy, tasks, rollout, key=(0, "pool"))
    traces = first_turn_traces(groups, POOL_PROMPTS * POOL_TRACES, stream(0, "pool"))
    found = cross_score(traces, policy)
    if found is None:
        raise RuntimeError("the embedded model wrote no reasoning")
    return found


def embedded(prompts: int, traces: int, share: float, rng: np.random.Generator) -> Drawn:
    """Some lakes of the pool; template traces come from the others."""
    every = pool()
    columns = rng.permutation(every.logp_NP.shape[1])[:prompts]
    outside = np.flatnonzero(~np.isin(every.owner_N, columns))
    rows, owners = [], []
    for place, column in enumerate(columns):
        own = rng.permutation(np.flatnonzero(every.owner_N == column))
        for index in range(traces):
            is_grounded = rng.random() < share
            rows.append(own[index % len(own)] if is_grounded else rng.choice(outside))
            owners.append(place)
    scores_NP = every.logp_NP[np.ix_(rows, columns)]
    return ScoreMatrix(scores_NP, every.length_N[rows], np.array(owners)), None


def text(prompts: int, traces: int, share: float, rng: np.random.Generator) -> Drawn:
    """A trace names two or three of four facts: its prompt's, or those of a prompt out of the log."""

    def facts() -> list[str]:
        return [
            str(rng.choice(DIRECTIONS)),
            f"row{rng.integers(10)}",
            f"column{rng.integers(10)}",
            f"object{rng.integers(20)}",
        ]

    def reasoning(told: list[str]) -> str:
        words = list(rng.choice(FILLER, size=rng.integers(8, 20)))
        for place in rng.permutation(4)[: rng.integers(2, 4)]:
            words.insert(int(rng.integers(len(words) + 1)), told[place])
        return " ".join(words)

    log = []
    for number in range(prompts):
        own = facts()
        log.append(
            [
                TextTrace(f"task {number}", "", reasoning(own if rng.random() < share else facts()))
                for _ in range(traces)
            ]
        )
    (scored,) = WordLikelihood().score_steps([log])
    return scored.matrix, scored.num_fitted


DRAWS: dict[str, Draw] = {"tabular": tabular, "embedded": embedded, "text": text}


def count(kind: str, prompts: int, traces: int, share: float, repetitions: int) -> dict[str, Any]:
    """Verdicts and coverage of many batches of one case."""
    rng = stream("planted mixtures", kind, prompts, traces, round(10 * share))
    found = []
    named: Counter[str] = Counter()
    for _ in range(repetitions):
        matrix, fitted = DRAWS[kind](prompts, traces, share, rng)
        one = grounded_share([] if matrix is None else [rank_counts(matrix)])
        if fitted is not None:
            one = replace(one, high=high_with_unseen(one.high, fitted))
        found.append((one.share, one.low, one.high))
        named[name_regime(one, Entropies()).value] += 1
    means: FloatArray = np.mean(found, axis=0)
    covered = sum(low - 1e-9 <= share <= high + 1e-9 for _, low, high in found)
    wrong = GROUNDED if share <= MOSTLY_TEMPLATE else COLLAPSED if share >= HEALTHY else ()
    return {
        "kind": kind,
        "prompts": prompts,
        "traces": traces,
        "share": share,
        "repetitions": repetitions,
        "estimate": round(float(means[0]), 3),
        "low": round(float(means[1]), 3),
        "high": round(float(means[2]), 3),
        "covered": covered,
        "verdicts": dict(named),
        "wrong": sum(named[one.value] for one in wrong),
    }


def tables(rows: list[dict[str, Any]]) -> str:
    """Markdown, one table per source: mean intervals, coverage, undecided and wrong verdicts."""
    heads = ["P x G", *(f"{share:.0%}" for share in SHOWN), "covered", "undecided", "wrong"]
    lines = []
    for kind in [one for one in DRAWS if any(row["kind"] == one for row in rows)]:
        lines += ["", f"`{kind}`:", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for size in SIZES:
            of_size = {
                row["share"]: row
                for row in rows
                if row["kind"] == kind and (row["prompts"], row["traces"]) == size
            }
            lines.append(f"| {size[0]} x {size[1]} | {' | '.join(_cells(of_size))} |")
    return "\n".join(lines)


def _cells(rows: dict[float, dict[str, Any]]) -> list[str]:
    """Of one size, by planted share."""
    spans = [f"{100 * rows[one]['low']:.0f}-{100 * rows[one]['high']:.0f}" for one in SHOWN]
    covered = [row["covered"] / row["repetitions"] for row in rows.values()]
    undecided = [str(rows[one]["verdicts"].get("undecided", 0)) for one in SHOWN]
    wrong = max(row["wrong"] for row in rows.values())
    return [
        *spans,
        f"{np.mean(covered):.1%} ({min(covered):.1%})",
        ", ".join(undecided),
        str(wrong),
    ]


def main() -> None:
    """Count all cases, write the results and the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--kinds", nargs="+", default=list(DRAWS), choices=list(DRAWS))
    given = parser.parse_args()
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    rows = [row for row in rows if row["kind"] not in given.kinds]
    for kind in given.kinds:
        for prompts, traces in SIZES:
            for share in SHARES:
                rows.append(count(kind, prompts, traces, share, given.repetitions))
            print(kind, prompts, traces, rows[-1]["verdicts"], flush=True)
        write_atomically(RESULTS, json.dumps(rows, indent=1) + "\n")
    start, end = "<!-- planted mixtures -->", "<!-- end -->"
    page = PAGE.read_text()
    before, _, rest = page.partition(start)
    write_atomically(PAGE, f"{before}{start}\n{tables(rows)}\n\n{end}{rest.partition(end)[2]}")


if __name__ == "__main__":
    main()
