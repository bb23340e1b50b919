"""Which columns of a TRL table are rewards: its order and its advantages tell, its names do not.

TRL (1.16, ``GRPOTrainer.log``) writes step, prompt, completion, one column per reward function, then whatever
``log_extra`` was called with, then advantage. Where rewards end and extras begin is not written; but the
advantages are made of the rewards, so that the shortest run of columns which explains them holds no extra.
Shape letters: R rows, K columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from ragen2.audit.rollouts import number
from ragen2.types import FloatArray, IntArray

COLUMNS = frozenset({"step", "prompt", "completion", "advantage"})
"""Columns that every table of TRL has."""
UNEXPLAINED = 1e-6
"""Share of the advantages' variance that may be left over: they are rounded to single precision."""
FEWEST = 3
"""Rows of a group that a single column could not fit by chance; one more for each further column."""


@dataclass(frozen=True, slots=True)
class RewardColumns:
    """The rewards of a table, and its other numbers; no names where it cannot be told."""

    names: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """What a reader must know about the rewards; empty where there is no doubt."""
        if self.names:
            left = f"; {', '.join(self.others)} left out, as the advantages do not need them"
            return f"rewards are {' + '.join(self.names)}" + left if self.others else ""
        if not self.others:
            return ""
        return (
            f"rewards are left out: which of {', '.join(self.others)} are rewards cannot be told; "
            f"say --columns reward={'+'.join(self.others[:2])} or the like"
        )


def reward_columns(rows: Sequence[Mapping[str, Any]], known: RewardColumns) -> RewardColumns:
    """The reward columns of a table's first rows; ``known`` were found in earlier tables of the log."""
    numbers = _numbers(rows)
    run = _run(rows, numbers)
    found = run[: _shortest(rows, run)]
    found += (
        list(takewhile(lambda name: "reward" in name.lower(), run[len(found) :])) if found else []
    )
    if not found and numbers and all("reward" in name.lower() for name in run or numbers):
        found = run or numbers
    # A reward that is constant in one table may vary in another: once a reward, always a reward.
    if len(known.names) > len(found) and set(known.names) <= set(numbers):
        found = list(known.names)
    return RewardColumns(tuple(found), tuple(name for name in numbers if name not in found))


def _numbers(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Columns besides TRL's own that hold nothing but numbers, in the order of the table."""
    names = [name for name in rows[0] if name not in COLUMNS]
    return [
        name
        for name in names
        if any(number(row.get(name)) is not None for row in rows)
        and all(_is_number(row.get(name)) for row in rows)
    ]


def _is_number(value: Any) -> bool:
    """NaN and None too: a reward function may pass on a row."""
    return value is None or isinstance(value, float) or number(value) is not None


def _run(rows: Sequence[Mapping[str, Any]], numbers: Sequence[str]) -> list[str]:
    """The numbers that stand together behind the completion; empty where the order is not TRL's.

    A column of anything else is an extra, and so are all behind it.
    """
    order = list(rows[0])
    start, end = order.index("completion") + 1, order.index("advantage")
    between = [name for name in order[start:end] if any(row.get(name) is not None for row in rows)]
    return list(takewhile(lambda name: name in numbers, between))


def _shortest(rows: Sequence[Mapping[str, Any]], run: Sequence[str]) -> int:
    """How many columns of the run explain the advantages; 0 when it cannot be told."""
    if len(run) < 2:
        return len(run)
    scored = [row for row in rows if any(number(row.get(name)) is not None for name in run)]
    values_RK = np.array([[number(row.get(name)) or 0.0 for name in run] for row in scored])
    advantage_R = np.array([number(row["advantage"]) or 0.0 for row in scored])
    places: dict[str, list[int]] = {}
    for place, row in enumerate(scored):
        places.setdefault(repr((row["step"], row["prompt"])), []).append(place)
    groups = [np.array(one) for one in places.values()]
    counts = range(1, len(run) + 1)
    # Rewards are summed as they are unless weights were set; a plain sum is the stricter test.
    for count in counts:
        if _explains(values_RK[:, :count].sum(1, keepdims=True), advantage_R, groups):
            return count
    return next(
        (count for count in counts if _explains(values_RK[:, :count], advantage_R, groups)), 0
    )


def _explains(values_RK: FloatArray, advantage_R: FloatArray, groups: Sequence[IntArray]) -> bool:
    """Whether each group's advantages are linear in its values: scale and offset are the group's own."""
    left = whole = 0.0
    is_tested = False
    for rows in groups:
        if len(rows) < FEWEST - 1 + values_RK.shape[1]:
            continue
        is_tested = True
        centred_RK = values_RK[rows] - values_RK[rows].mean(0)
        around_R = advantage_R[rows] - advantage_R[rows].mean()
        is_dead = np.abs(around_R).max() <= UNEXPLAINED
        if is_dead and np.ptp(centred_RK.sum(1)) > UNEXPLAINED * max(1.0, np.abs(values_RK).max()):
            return False
        slope_K = np.linalg.lstsq(centred_RK, around_R, rcond=None)[0]
        left += float(((around_R - centred_RK @ slope_K) ** 2).sum())
        whole += float((around_R**2).sum())
    return is_tested and left <= UNEXPLAINED * whole
