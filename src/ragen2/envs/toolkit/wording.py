"""Wording that environments share: varied phrases, where one cell lies from another, names of moves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

DIRECTIONS: Mapping[str, str] = {
    word: name
    for name, words in {
        "Up": ("u", "north", "upward", "upwards", "↑", "⬆"),
        "Down": ("d", "south", "downward", "downwards", "↓", "⬇"),
        "Left": ("l", "west", "leftward", "leftwards", "←", "⬅"),
        "Right": ("r", "east", "rightward", "rightwards", "→", "➡"),
    }.items()
    for word in words
}
"""Other words for the four moves."""


def pick(rng: np.random.Generator, *phrases: str) -> str:
    """One of ``phrases`` at random."""
    return phrases[int(rng.integers(len(phrases)))]


def offset(down: int, right: int) -> str:
    """``2 down and 1 left``; empty when both are 0."""
    vertical = f"{abs(down)} {'down' if down > 0 else 'up'}" if down else ""
    horizontal = f"{abs(right)} {'right' if right > 0 else 'left'}" if right else ""
    return " and ".join(part for part in (vertical, horizontal) if part)
