"""Numbers as the page gets them: finite, and no longer than a reader can use."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")

DIGITS = 6
"""Significant digits; a screen shows three."""


def short(value: float | None) -> float | None:
    """The number with at most ``DIGITS`` digits; None for none, NaN and infinity."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")


def shorts(values: Iterable[float | None]) -> list[float | None]:
    """Each number made short."""
    return [short(value) for value in values]


def spread_over(items: Sequence[Item], most: int) -> list[Item]:
    """At most ``most`` of the items, evenly over them, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    if most == 1:
        return list(items[-1:])
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]
