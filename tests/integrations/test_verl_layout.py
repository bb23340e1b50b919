"""Rows lie so that verl cuts the mini-batches of our own learner."""

from __future__ import annotations

import pytest

from ragen2.backends.learner.microbatches import random_parts
from ragen2.integrations.verl.layout import rows_by_rank


def cut_as_verl_does(order: list[int], ranks: int, count: int) -> list[set[int]]:
    """Each rank takes one stretch and goes through it mini-batch by mini-batch."""
    share = len(order) // ranks
    by_rank = [order[rank * share : (rank + 1) * share] for rank in range(ranks)]
    size = share // count
    return [
        {row for rows in by_rank for row in rows[part * size : (part + 1) * size]}
        for part in range(count)
    ]


@pytest.mark.parametrize(
    ("rows", "ranks", "asked"),
    [(16, 2, 4), (16, 1, 4), (9, 2, 4), (5, 2, 4), (1, 8, 1), (12, 4, 1), (3, 2, 3)],
)
def test_the_mini_batches_are_those_asked_for_each_with_some_rows(rows, ranks, asked):
    parts = random_parts(rows, asked, 1, 0, 0)
    padding = list(range(rows, rows + -rows % (ranks * len(parts))))
    lengths = [10 + 7 * row % 13 for row in range(rows)] + [1] * len(padding)
    order = rows_by_rank(parts, lengths, padding, ranks)
    assert sorted(order) == list(range(rows + len(padding)))
    found = cut_as_verl_does(order, ranks, len(parts))
    assert [part - set(padding) for part in found] == [set(part) for part in parts]


def test_ranks_get_long_and_short_rows_in_turn():
    lengths = [8, 7, 6, 5, 4, 3, 2, 1]
    order = rows_by_rank([list(range(8))], lengths, [], 2)
    loads = [sum(lengths[row] for row in stretch) for stretch in (order[:4], order[4:])]
    assert loads == [18, 18]


def test_rows_that_do_not_divide_are_a_mistake_of_ours():
    with pytest.raises(AssertionError, match="padding"):
        rows_by_rank([[0], [1]], [1, 1], [], 2)
