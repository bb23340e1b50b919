"""Which generated tasks are held out, so that training and evaluation never share one."""

from __future__ import annotations

from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.seeding import stream_key

ONE_IN = 5
"""One task in this many is held out."""


def belongs(seed: int, *task: int | str) -> bool:
    """Whether ``task`` may be given for ``seed``: held-out tasks for held-out seeds, others else.

    The side depends on the task alone, so an environment that redraws until this is true gives no
    training seed a task that a held-out seed can give, however few tasks there are.
    """
    return (seed < HELD_OUT_SEEDS) == (stream_key("held out", *task) % ONE_IN == 0)
