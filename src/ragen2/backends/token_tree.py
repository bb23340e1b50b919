"""Continuations as a tree of tokens: what several of them begin with is held once.

W is the number of tokens (nodes) of a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ragen2.types import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class TokenTree:
    """Tokens in depth-first order, so that what stands below a node is one stretch after it.

    Node j is node i itself or before it on its path exactly when ``j <= i < end_W[j]``.
    """

    ids_W: IntArray
    parent_W: IntArray
    """Node read just before; -1 where that is the last token of the context."""
    depth_W: IntArray
    end_W: IntArray
    paths: tuple[IntArray, ...]
    """The nodes of each continuation, from its first token to its last."""
    members: tuple[int, ...]
    """Which continuation each path is: its place in the list the trees were grown from."""

    def __len__(self) -> int:
        return len(self.ids_W)


def grow_trees(continuations: Sequence[IntArray], width: int) -> list[TokenTree]:
    """Trees that hold every continuation once, each of at most ``width`` tokens.

    A continuation longer than ``width`` makes its tree as wide as it needs. Neighbours in
    lexicographic order share most, so they go into one tree; trees are about equally wide.
    """
    order = sorted(range(len(continuations)), key=lambda i: continuations[i].tolist())
    shared = [0] + [
        shared_length(continuations[before], continuations[after])
        for before, after in pairwise(order)
    ]
    total = sum(len(continuations[i]) - known for i, known in zip(order, shared, strict=True))
    limit = _even_limit(total, width, max(len(ids) for ids in continuations))
    trees: list[TokenTree] = []
    chosen: list[int] = []
    size = 0
    for index, known in zip(order, shared, strict=True):
        if chosen and size + len(continuations[index]) - known > limit:
            trees.append(_grow(chosen, continuations))
            chosen, size = [], 0
        size += len(continuations[index]) - (known if chosen else 0)
        chosen.append(index)
    return [*trees, _grow(chosen, continuations)]


def shared_length(one: IntArray, other: IntArray) -> int:
    """Tokens that both begin with."""
    most = min(len(one), len(other))
    differs = np.flatnonzero(one[:most] != other[:most])
    return int(differs[0]) if len(differs) else most


def _even_limit(total: int, width: int, longest: int) -> int:
    """Largest size of a tree, so that the fewest trees are needed and none is nearly empty."""
    least = -(-total // max(1, -(-total // width)))
    return min(width, least + longest)


def _grow(order: Sequence[int], continuations: Sequence[IntArray]) -> TokenTree:
    ids: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    ends: list[int] = []
    paths: list[IntArray] = []
    path: list[int] = []
    last = np.empty(0, dtype=np.int64)
    for index in order:
        tokens = continuations[index]
        known = shared_length(last, tokens)
        for node in path[known:]:
            ends[node] = len(ids)
        path = path[:known]
        for depth in range(known, len(tokens)):
            parents.append(path[-1] if path else -1)
            path.append(len(ids))
            ids.append(int(tokens[depth]))
            depths.append(depth)
            ends.append(0)
        paths.append(np.array(path, dtype=np.int64))
        last = tokens
    for node in path:
        ends[node] = len(ids)
    return TokenTree(
        ids_W=np.array(ids, dtype=np.int64),
        parent_W=np.array(parents, dtype=np.int64),
        depth_W=np.array(depths, dtype=np.int64),
        end_W=np.array(ends, dtype=np.int64),
        paths=tuple(paths),
        members=tuple(order),
    )
