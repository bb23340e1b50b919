"""Trees of tokens: every continuation is a path, shared beginnings are held once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.backends.scoring.tree import grow_trees, shared_length


def arrays(*lists: list[int]) -> list[np.ndarray]:
    return [np.array(ids, dtype=np.int64) for ids in lists]


def test_shared_beginnings_are_one_node_each():
    (tree,) = grow_trees(arrays([7, 8], [7, 9, 4], [5], [7]), width=99)
    assert tree.ids_W.tolist() == [5, 7, 8, 9, 4]
    assert tree.parent_W.tolist() == [-1, -1, 1, 1, 3]
    assert tree.depth_W.tolist() == [0, 0, 1, 1, 2]
    assert tree.end_W.tolist() == [1, 5, 3, 5, 5]
    paths = dict(zip(tree.members, [path.tolist() for path in tree.paths], strict=True))
    assert paths == {0: [1, 2], 1: [1, 3, 4], 2: [0], 3: [1]}


@pytest.mark.parametrize(
    ("one", "other", "length"), [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2], [1, 3], 1)]
)
def test_shared_length_stops_at_the_first_difference(one, other, length):
    assert shared_length(*arrays(one, other)) == length


lists = st.lists(
    st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=12, unique_by=tuple
)


@given(lists, st.integers(1, 20))
def test_any_continuations_come_back_as_paths_of_trees_no_wider_than_asked(continuations, width):
    made = arrays(*continuations)
    trees = grow_trees(made, width)
    assert sorted(i for tree in trees for i in tree.members) == list(range(len(made)))
    for tree in trees:
        longest = max(len(made[i]) for i in tree.members)
        assert len(tree) <= max(width, longest)
        for member, path in zip(tree.members, tree.paths, strict=True):
            assert tree.ids_W[path].tolist() == continuations[member]
            assert tree.parent_W[path].tolist() == [-1, *path[:-1].tolist()]
            assert tree.depth_W[path].tolist() == list(range(len(path)))
            at = path[-1]
            seen = [j for j in range(len(tree)) if j <= at < tree.end_W[j]]
            assert seen == path.tolist(), "a node sees itself and what is above it, nothing else"


@given(lists)
def test_a_wide_tree_has_a_node_for_every_distinct_beginning(continuations):
    (tree,) = grow_trees(arrays(*continuations), width=10_000)
    beginnings = {tuple(ids[:k]) for ids in continuations for k in range(1, len(ids) + 1)}
    assert len(tree) == len(beginnings)


def test_trees_are_about_equally_wide():
    rng = np.random.default_rng(0)
    trees = grow_trees([rng.integers(0, 1000, 10) for _ in range(33)], width=160)
    sizes = [len(tree) for tree in trees]
    assert len(sizes) == 3
    assert min(sizes) > 80
