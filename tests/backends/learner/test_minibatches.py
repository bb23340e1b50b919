"""How the samples of a step are cut."""

from __future__ import annotations

import pytest

from ragen2.backends.learner.microbatches import even_parts, random_parts


@pytest.mark.parametrize("cut", [lambda n, k: random_parts(n, k, 3, 5, 0), even_parts])
@pytest.mark.parametrize(
    ("count", "asked", "sizes"), [(7, 3, [3, 2, 2]), (4, 1, [4]), (2, 5, [1, 1])]
)
def test_every_sample_is_in_one_part_and_none_is_empty(cut, count, asked, sizes):
    parts = cut(count, asked)
    assert [len(part) for part in parts] == sizes
    assert sorted(row for part in parts for row in part) == list(range(count))


def test_one_part_keeps_the_order():
    assert random_parts(4, 1, 0, 0, 0) == [[0, 1, 2, 3]]


def test_each_pass_is_drawn_anew_and_the_same_when_it_is_repeated():
    first = random_parts(20, 2, 7, 4, 0)
    assert first == random_parts(20, 2, 7, 4, 0)
    others = [random_parts(20, 2, *drawn) for drawn in [(8, 4, 0), (7, 5, 0), (7, 4, 1)]]
    assert first not in others


def test_each_part_of_the_critic_holds_members_of_all_groups():
    assert even_parts(6, 2) == [[0, 2, 4], [1, 3, 5]]
