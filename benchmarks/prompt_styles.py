"""Which prompts do real models answer well? First replies to each environment, in each style.

    python benchmarks/prompt_styles.py MODEL --out results/prompt_styles.json
    python benchmarks/prompt_styles.py MODEL --envs Sokoban --styles reference mine.toml --show 3

A style is ``brief``, ``reference``, ``native`` or a template file of one's own. The tasks are training tasks,
the same for every style. Rows are added to what the file holds of other models, environments and styles.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ragen2.diagnostics import measure
from ragen2.diagnostics.metrics.problems import reply_problems
from ragen2.diagnostics.metrics.surface import surface
from ragen2.envs import Env, make
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.rollout import Rollout, Task, play
from ragen2.rollout.prompts import PromptSettings
from ragen2.scoring import cross_score, first_turn_traces
from ragen2.seeding import stream
from ragen2.types import Group

if TYPE_CHECKING:
    from ragen2.policy import Policy

FIRST_TASK = HELD_OUT_SEEDS + 900_000_000
"""Far from the tasks that runs of small seeds train on."""
SHARED_WORDS = 6
"""A run of so many words of the system message in a reasoning trace counts as copied."""
SCORED = 64
"""Reasoning traces that are cross-scored at most."""


def prompt_of(style: str) -> PromptSettings:
    """A style by its name, or by the template file that holds it."""
    return PromptSettings(template=style) if Path(style).suffix else PromptSettings(style=style)


def first_replies(
    policy: Policy, env: Env, prompt: PromptSettings, tasks: int, replies: int
) -> list[Group]:
    """``replies`` first replies to each of ``tasks`` tasks, as training would sample them."""
    one_turn = env.model_copy(update={"max_turns": 1})
    groups = [[Task(FIRST_TASK + task, luck) for luck in range(replies)] for task in range(tasks)]
    return play(one_turn, policy, groups, Rollout(), key=("prompt styles",), prompt=prompt)


def copied_ratio(groups: list[Group]) -> float:
    """Share of replies whose reasoning takes a run of words from the system message."""
    found = []
    for group in groups:
        given = _runs(group.prompt.messages[0].content)
        for one in group.trajectories:
            found.append(bool(given & _runs(one.turns[0].reply.reasoning)))
    return float(np.mean(found))


def _runs(text: str) -> set[tuple[str, ...]]:
    words = text.lower().split()
    return {tuple(words[at : at + SHARED_WORDS]) for at in range(len(words) - SHARED_WORDS + 1)}


def row_of(groups: list[Group]) -> dict[str, Any]:
    """What the replies are like, in numbers."""
    turns = [one.turns[0] for group in groups for one in group.trajectories]
    found = surface(groups)
    words = [len(turn.reply.reasoning.split()) for turn in turns]
    return {
        "replies": len(turns),
        "executable": found["format_validity"],
        "parsed": found["parsed_ratio"],
        "known_actions": found.get("known_actions_ratio"),
        "effective_actions": found.get("effective_actions_ratio"),
        "cut": found["cut_ratio"],
        "reasoning_words": float(np.median(words)),
        "reasoning_tokens": found["reasoning_tokens"],
        "distinct_reasoning": found["distinct_reasoning_ratio"],
        "copied": copied_ratio(groups),
        "solved_at_once": found["success"],
        "prompt_tokens": float(np.mean([len(turn.prompt_ids_T) for turn in turns])),
        "problems": {one.kind: one.count for one in reply_problems(groups)},
    }


def grounding_of(groups: list[Group], policy: Policy) -> dict[str, float]:
    """How much the reasoning tells of its prompt; empty where there is too little of it."""
    traces = first_turn_traces(groups, SCORED, stream("prompt styles", "traces"))
    scores = cross_score(traces, policy)
    if scores is None:
        return {}
    found = measure(scores.logp_NP, scores.length_N, scores.owner_N)
    names = ("mi_estimate", "retrieval_above_chance", "grounded_share", "conditional_entropy")
    return {name: found[name] for name in names if name in found}


COLUMNS = {
    "replies": "replies",
    "executable": "executable",
    "known_actions": "known actions",
    "effective_actions": "effective actions",
    "reasoning_words": "words of reasoning",
    "copied": "copied",
}
"""What the table of the docs shows of a row."""


def table(rows: dict[str, Any]) -> str:
    """Markdown: a line per model, environment and style."""
    head = f"| model | environment | style | {' | '.join(COLUMNS.values())} |"
    lines = [head, "|---" * (3 + len(COLUMNS)) + "|"]
    for name, row in sorted(rows.items()):
        shown = ["-" if row[one] is None else f"{row[one]:.3g}" for one in COLUMNS]
        lines.append(f"| {' | '.join([*name.split('/'), *shown])} |")
    return "\n".join(lines)


def main() -> None:
    """Measure every combination and add its row to the file."""
    from ragen2.backends.agent import open_policy, quiet_transformers

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--envs", nargs="+", default=sorted(Env.kinds()))
    parser.add_argument("--styles", nargs="+", default=["brief", "reference"])
    parser.add_argument("--tasks", type=int, default=32)
    parser.add_argument("--replies", type=int, default=4)
    parser.add_argument("--grounded", action="store_true", help="also cross-score the reasoning")
    parser.add_argument("--show", type=int, default=0, help="replies to print of each")
    parser.add_argument("--name", help="what the model is called in the file")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    quiet_transformers()
    policy = open_policy(given.model)
    rows: dict[str, Any] = {}
    if given.out and given.out.exists():
        rows = json.loads(given.out.read_text())
    for kind in given.envs:
        for style in given.styles:
            began = time.monotonic()
            groups = first_replies(policy, make(kind), prompt_of(style), given.tasks, given.replies)
            row = row_of(groups) | (grounding_of(groups, policy) if given.grounded else {})
            rows[f"{given.name or Path(given.model).name}/{kind}/{Path(style).stem}"] = row
            told = {name: value for name, value in row.items() if isinstance(value, float)}
            shown = " ".join(f"{name} {value:.2f}" for name, value in told.items())
            print(f"{kind} {style}: {shown} ({time.monotonic() - began:.0f} s)", flush=True)
            print(f"    {Counter(row['problems']).most_common(4)}", flush=True)
            for one in [one for group in groups for one in group.trajectories][: given.show]:
                print(f"    | {' '.join(one.turns[0].completion.text.split())[:300]}", flush=True)
            if given.out:
                given.out.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
