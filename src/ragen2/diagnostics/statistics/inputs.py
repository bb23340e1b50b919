"""What a user may pass as scores: checked once, for everything that takes the same arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ragen2.types import IntArray, ScoreMatrix

ROUNDING = 1e-3
"""Nats per token by which a log-prob may lie above 0: what half precision makes of a certain token."""


def score_matrix(logp_NP: ArrayLike, length_N: ArrayLike, owner_N: ArrayLike) -> ScoreMatrix:
    """The matrix of these arrays; a ValueError names the first entry that cannot be one."""
    matrix = ScoreMatrix(
        np.asarray(logp_NP, dtype=np.float64),
        _whole("length_N", length_N, "its number of tokens"),
        _whole("owner_N", owner_N, "the column of its own prompt"),
    )
    above_NP = matrix.logp_NP > ROUNDING * matrix.length_N[:, None]
    if above_NP.any():
        row, column = np.argwhere(above_NP)[0]
        raise ValueError(
            f"logp_NP must hold log-probs, at most 0, got {matrix.logp_NP[row, column]:g} for trace {row} "
            f"under prompt {column}; turn the sign of losses, take the log of probabilities"
        )
    return matrix


def check_name(argument: str, value: object, names: Sequence[str]) -> None:
    """Refuse what is none of ``names``."""
    if value not in names:
        known = " or ".join(map(repr, names))
        raise ValueError(f"{argument} must be {known}, got {value!r}")


def check_resamples(resamples: object) -> None:
    """Refuse what is no number of draws."""
    if not isinstance(resamples, int | np.integer) or resamples < 0:
        raise ValueError(
            f"resamples must be a whole number from 0 on, got {resamples!r}; 0 leaves intervals and "
            "p-values out"
        )


def _whole(argument: str, values: ArrayLike, cure: str) -> IntArray:
    """Integers, also where they come as floats; a cast would cut 0.7 to 0."""
    given = np.asarray(values)
    if given.dtype.kind in "iub":
        return given.astype(np.int64)
    for index, value in enumerate(given.ravel().tolist()):
        if not isinstance(value, int | float) or not float(value).is_integer():
            raise ValueError(
                f"{argument} must hold whole numbers, got {value!r} for trace {index}; give {cure}"
            )
    return given.astype(np.int64)
