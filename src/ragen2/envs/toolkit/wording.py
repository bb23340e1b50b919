"""Wording of scripted reasoning: varied phrases, and where one cell lies from another."""

from __future__ import annotations

import numpy as np


def pick(rng: np.random.Generator, *phrases: str) -> str:
    """One of ``phrases`` at random."""
    return phrases[int(rng.integers(len(phrases)))]


def offset(down: int, right: int) -> str:
    """``2 down and 1 left``; empty when both are 0."""
    vertical = f"{abs(down)} {'down' if down > 0 else 'up'}" if down else ""
    horizontal = f"{abs(right)} {'right' if right > 0 else 'left'}" if right else ""
    return " and ".join(part for part in (vertical, horizontal) if part)
