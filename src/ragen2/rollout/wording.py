"""Wordings of prompts: texts with names in braces. A line whose names are all empty is left out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NAME = re.compile(r"\{([a-z_]+)\}")
Part = tuple[str, str]
"""A piece of a message, with the name that it stands for; the wording itself has none."""


@dataclass(frozen=True, slots=True)
class Wording:
    """The texts of a style."""

    system: str
    turn: str
    with_thinking: str
    """Says what a reply must be, as ``{form}`` of the system message."""
    without_thinking: str
    examples: int = 0
    """Worked replies to other tasks that come before the task, each as an exchange of its own."""


BRIEF = Wording(
    system="{instruction}\n{form}",
    turn="{problem}\n{observation}\nActions left {actions_left}",
    with_thinking="Reply <think>why</think><answer>{count}</answer>.",
    without_thinking="Reply <answer>{count}</answer>.",
)
"""The shortest; embedded models are taught with it. Others copy its "why" and take "left 10" for a move."""

REFERENCE = Wording(
    system="You are an agent that solves a task turn by turn.\n{rules}\nActions: {actions}.\n\n{form}",
    turn="{problem}\nThe last turn earned {reward}.\nTurn {turn} of {turns}.\n{observation}\n{budget}",
    with_thinking="Every reply has two parts:\n1. {think} {thoughts} {end_think}\n"
    "2. <answer> {answer} </answer>",
    without_thinking="Every reply is <answer> {answer} </answer>",
    examples=1,
)
"""The parts of the reference system's prompt in our words; benchmarks/prompt_styles.py compares styles."""

NATIVE = Wording(
    system="{rules}\nActions: {actions}.\n\n{form}",
    turn=REFERENCE.turn,
    with_thinking="Think first. Then reply with <answer> {answer} </answer> and nothing else.",
    without_thinking=REFERENCE.without_thinking,
)
"""For models with a thinking mode of their own: how to think is left to them."""

WORDINGS: Mapping[str, Wording] = {"reference": REFERENCE, "brief": BRIEF, "native": NATIVE}
SYSTEM_NAMES = frozenset(
    {"rules", "instruction", "actions", "form", "think", "end_think", "thoughts", "answer"}
    | {"count", "turns", "max_actions"}
)
TURN_NAMES = frozenset(
    {"problem", "reward", "turn", "turns", "observation", "actions_left", "budget", "actions"}
    | {"answer"}
)


def fill_parts(text: str, values: Mapping[str, str]) -> list[Part]:
    """Put values in place of their names; a line whose names are all empty is left out."""
    parts: list[Part] = []
    for line in text.split("\n"):
        pieces = NAME.split(line)  # text, name, text, name, ..., text
        names = pieces[1::2]
        if names and not any(values[name] for name in names):
            continue
        parts.append(("", "\n" if parts else ""))
        for index, piece in enumerate(pieces):
            parts.append((piece, values[piece]) if index % 2 else ("", piece))
    return [part for part in parts if part[1]]


def joined(parts: Sequence[Part]) -> str:
    """The text that parts make."""
    return "".join(text for _, text in parts)
