"""How the samples of a step are cut for its optimiser steps."""

from __future__ import annotations

import numpy as np

from ragen2.seeding import stream


def random_parts(count: int, asked: int, seed: int, updates: int, epoch: int) -> list[list[int]]:
    """The policy's: ``asked`` parts of one size or two, drawn anew in each pass; no part is empty.

    ``updates`` is the number of optimiser steps before this pass.
    """
    if asked == 1:
        return [list(range(count))]
    order = stream(seed, "minibatches", updates, epoch).permutation(count)
    return [part.tolist() for part in np.array_split(order, min(asked, count))]


def even_parts(count: int, asked: int) -> list[list[int]]:
    """The critic's: every ``asked``-th sample, so that each part holds members of all groups."""
    parts = min(asked, count)
    return [list(range(part, count, parts)) for part in range(parts)]
