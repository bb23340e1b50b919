"""One batch of rollouts, and writers that put it into every log format."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SYSTEM = "Reach G. Reply <think>why</think><answer>action</answer>."
PLACES = ("north", "east", "south", "west", "up", "down")
FILLER = ("i", "look", "around", "and", "then", "maybe", "walk", "slowly", "again", "so")


@dataclass(frozen=True)
class Rollout:
    """What all formats can say about one rollout."""

    step: int
    task: int
    member: int
    reasoning: str
    action: str
    reward: float

    @property
    def user(self) -> str:
        return f"Board {self.task}: the goal lies {PLACES[self.task]}"

    @property
    def reply(self) -> str:
        return f"<think>{self.reasoning}</think><answer>{self.action}</answer>"

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": self.user}]


def make_rollouts(
    *, steps: Sequence[int] = (1, 2), tasks: int = 4, members: int = 6, grounded: bool = True
) -> list[Rollout]:
    """Reasonings of varied wording that name their own place, or any place."""
    rng = np.random.default_rng(7)
    made = []
    for step in steps:
        for task in range(tasks):
            for member in range(members):
                place = PLACES[task if grounded else rng.integers(tasks)]
                words = [*rng.choice(FILLER, size=int(rng.integers(3, 9))), "to", "the", place]
                reward = float((task + member) % 2)
                made.append(Rollout(step, task, member, " ".join(words), place.title(), reward))
    return made


def own_row(one: Rollout) -> dict[str, Any]:
    """As ``rollouts/*.jsonl`` has it: the opening tag is pre-filled, so it is not in the text."""
    turn = {
        "text": one.reply.removeprefix("<think>"),
        "reasoning": one.reasoning,
        "observation": "",
        "actions": [one.action],
    }
    return {
        "schema_version": 1,
        "env": "Board",
        "seed": one.task,
        "luck": one.member,
        "step": one.step,
        "messages": one.messages,
        "turns": [turn],
        "reward": one.reward,
        "solved": one.reward > 0,
    }


def verl_row(one: Rollout) -> dict[str, Any]:
    text = f"system\n{SYSTEM}\nuser\n{one.user}\nassistant\n"
    return {
        "input": text,
        "output": one.reply,
        "score": one.reward,
        "step": one.step,
        "uid": one.user,
    }


def ragen_row(one: Rollout) -> dict[str, Any]:
    messages = [*one.messages, {"role": "assistant", "content": one.reply}]
    metadata = {"group_id": one.task, "total_reward": one.reward, "step": one.step}
    return {"custom_id": f"traj_{one.member}", "messages": messages, "metadata": metadata}


def chat_row(one: Rollout) -> dict[str, Any]:
    """A whole conversation and what it earned, as most scripts of one's own write it."""
    messages = [*one.messages, {"role": "assistant", "content": one.reply}]
    return {"messages": messages, "reward": one.reward, "step": one.step, "group": one.task}


def verifiers_row(one: Rollout) -> dict[str, Any]:
    answer = f"<answer>{one.action}</answer>"
    reply = {"role": "assistant", "content": answer, "reasoning_content": one.reasoning}
    nodes = [{"message": message, "sampled": False} for message in one.messages]
    nodes += [{"message": reply, "sampled": True}]
    for index, node in enumerate(nodes[1:]):
        node["parent"] = index
    return {
        "task": {"type": "Board", "key": one.user},
        "run": {"type": "train", "id": "r", "work": {"type": "train", "step": one.step}},
        "traces": [{"nodes": nodes, "rewards": {"all": {"score": one.reward, "weight": 1.0}}}],
    }


def result_row(one: Rollout) -> dict[str, Any]:
    """verifiers' older results.jsonl."""
    completion = [{"role": "assistant", "content": one.reply}]
    known = {"example_id": one.task, "reward": one.reward, "step": one.step}
    return {"prompt": one.messages, "completion": completion, **known}


def trl_row(one: Rollout) -> dict[str, Any]:
    """Two reward functions in TRL's order; half of each group earns 1."""
    part = one.member % 3 / 4
    return {
        "step": one.step,
        "prompt": one.messages,
        "completion": [{"role": "assistant", "content": one.reply}],
        "part": part,
        "rest": one.reward - part,
        "advantage": one.reward - 0.5,
    }


def table_row(one: Rollout) -> dict[str, Any]:
    """Columns of nobody's format; the prompt is JSON text, as CSV must have it."""
    known = {"q": json.dumps(one.messages), "a": one.reply, "r": one.reward}
    return {**known, "at": one.step, "g": one.task}


def write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path
