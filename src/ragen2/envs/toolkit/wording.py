"""Varied wording for scripted reasoning."""

from __future__ import annotations

import numpy as np


def pick(rng: np.random.Generator, *phrases: str) -> str:
    """One of ``phrases`` at random."""
    return phrases[int(rng.integers(len(phrases)))]
