"""Rows of the engine's cache: who continues which, who copies whom, and that nothing is lost in growing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ragen2.backends.sampling.gpu.cache import ROUND, GPUCache, RowAssignment
from ragen2.types import IntArray


@pytest.fixture
def cache() -> GPUCache:
    made = GPUCache(2, 1, 4, torch.float32, torch.device("cpu"))
    made.reserve(4, 8)
    return made


def ids(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


def test_equal_prompts_are_read_once(cache: GPUCache) -> None:
    assigned = cache.assign([ids(1, 2), ids(3), ids(1, 2)])
    assert [one.copy_of for one in assigned] == [0, 1, 0]
    assert len({one.row for one in assigned}) == 3
    assert [one.known for one in assigned] == [0, 0, 0]


def test_a_prompt_that_continues_a_row_keeps_it(cache: GPUCache) -> None:
    first = cache.assign([ids(1, 2), ids(3)])
    cache.hold(first[0].row, ids(1, 2, 9))
    cache.hold(first[1].row, ids(3, 8))
    assigned = cache.assign([ids(3, 8, 5), ids(1, 2, 9, 4, 4)])
    assert assigned == [RowAssignment(first[1].row, 2, 0), RowAssignment(first[0].row, 3, 1)]


def test_the_longest_row_is_continued(cache: GPUCache) -> None:
    first = cache.assign([ids(1), ids(2)])
    cache.hold(first[0].row, ids(1, 2))
    cache.hold(first[1].row, ids(1, 2, 3))
    assert cache.assign([ids(1, 2, 3, 4)]) == [RowAssignment(first[1].row, 3, 0)]


def test_a_row_serves_one_prompt_only(cache: GPUCache) -> None:
    first = cache.assign([ids(1, 2)])
    cache.hold(first[0].row, ids(1, 2))
    assigned = cache.assign([ids(1, 2, 3), ids(1, 2, 4)])
    assert [one.known for one in assigned] == [2, 0]
    assert assigned[0].row != assigned[1].row


def test_equal_conversations_are_both_continued_on_a_gpu(cache: GPUCache) -> None:
    for one in cache.assign([ids(1, 2), ids(1, 2)]):
        cache.hold(one.row, ids(1, 2, 9))
    assigned = cache.assign([ids(1, 2, 9, 3), ids(1, 2, 9, 4)])
    assert [one.known for one in assigned] == [3, 3]
    assert assigned[0].row != assigned[1].row


def test_a_row_that_holds_the_whole_prompt_is_read_again(cache: GPUCache) -> None:
    # At least one token must be read, because its hidden state is what the next is drawn from.
    first = cache.assign([ids(1, 2)])
    cache.hold(first[0].row, ids(1, 2))
    assert cache.assign([ids(1, 2)])[0].known == 0


def test_new_weights_make_rows_useless(cache: GPUCache) -> None:
    first = cache.assign([ids(1, 2)])
    cache.hold(first[0].row, ids(1, 2))
    cache.forget()
    assert cache.assign([ids(1, 2, 3)])[0].known == 0


def test_a_row_given_away_is_not_continued_later(cache: GPUCache) -> None:
    first = cache.assign([ids(1, 2)])
    cache.hold(first[0].row, ids(1, 2))
    cache.assign([ids(7), ids(8), ids(9), ids(10)])
    assert cache.assign([ids(1, 2, 3)])[0].known == 0


def test_growing_keeps_what_rows_hold(cache: GPUCache) -> None:
    first = cache.assign([ids(1, 2)])
    cache.hold(first[0].row, ids(1, 2))
    cache.keys[:, first[0].row, :, :2] = 7.0
    tokens = cache.num_tokens
    assert not cache.reserve(4, tokens)
    assert cache.reserve(6, tokens + 1)
    assert cache.num_tokens == tokens + ROUND
    assert cache.trash == 6
    assert (cache.keys[:, first[0].row, :, :2] == 7.0).all()
    assert cache.assign([ids(1, 2, 3)])[0].known == 2


def test_copying_a_row_copies_its_first_tokens(cache: GPUCache) -> None:
    cache.keys.zero_()
    cache.values.zero_()
    cache.keys[:, 0, :, :3] = 1.0
    cache.values[:, 0, :, :3] = 2.0
    cache.copy_rows([0, 0], [1, 3], 2)
    assert cache.keys[:, [1, 3], :, :2].eq(1.0).all()
    assert cache.values[:, [1, 3], :, :2].eq(2.0).all()
    assert cache.keys[:, 1, :, 2].eq(0.0).all()
    assert cache.keys[:, 2].eq(0.0).all()


def test_rows_of_another_cohort_are_counted_and_kept(cache: GPUCache) -> None:
    first = cache.assign([ids(1), ids(2)])
    cache.hold(first[0].row, ids(1, 5))
    cache.hold(first[1].row, ids(2, 5))
    assert cache.waiting([ids(3), ids(4)]) == 2
    assert cache.waiting([ids(1, 5, 7)]) == 1
    second = cache.assign([ids(3), ids(4)])
    assert {one.row for one in second}.isdisjoint(one.row for one in first)
    assert [one.known for one in cache.assign([ids(1, 5, 7), ids(2, 5, 7)])] == [2, 2]


def test_rows_of_two_calls_ago_no_longer_wait(cache: GPUCache) -> None:
    first = cache.assign([ids(1)])
    cache.hold(first[0].row, ids(1, 5))
    cache.hold(cache.assign([ids(2)])[0].row, ids(2, 5))
    assert cache.waiting([ids(3)]) == 1


def test_a_cache_leaves_most_of_the_memory_to_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = GPUCache(2, 2, 4, torch.float32, torch.device("cpu"))
    a_row = cache.bytes_of(1, 256)
    memory = 40 * a_row
    monkeypatch.setattr(
        cache, "_free_memory", lambda: memory - cache.bytes_of(cache.num_rows, cache.num_tokens)
    )
    assert cache.rows_that_fit(200) == 11  # three tenths of forty, and one for the spare row
    cache.reserve(11, 200)
    assert cache.rows_that_fit(200) == 11, "what it holds already is not asked for again"
    assert cache.rows_that_fit(400) == 5


def test_longer_rows_that_no_longer_all_fit_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = GPUCache(2, 2, 4, torch.float32, torch.device("cpu"))
    memory = 40 * cache.bytes_of(1, ROUND)
    monkeypatch.setattr(
        cache, "_free_memory", lambda: memory - cache.bytes_of(cache.num_rows, cache.num_tokens)
    )
    cache.reserve(11, ROUND)
    cache.assign([ids(number) for number in range(11)])
    for row in range(11):
        cache.hold(row, ids(row, row))
    cache.keys[:, 0, :, 0] = 7.0
    assert cache.reserve(1, 4 * ROUND)
    assert (cache.num_rows, cache.num_tokens) == (2, 4 * ROUND)
    assert cache.bytes_of(cache.num_rows, cache.num_tokens) <= 0.3 * memory
    assert bool((cache.keys[:, 0, :, 0] == 7.0).all()), "a row that stays keeps what it holds"
    assigned = cache.assign([ids(0, 0, 1), ids(9, 9, 1)])
    assert [one.known for one in assigned] == [2, 0], "a row that was let go is read again"


def test_where_old_and_new_do_not_fit_at_once_the_old_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three tenths of all are asked for, but less than that is free while the old cache is held."""
    cache = GPUCache(2, 2, 4, torch.float32, torch.device("cpu"))
    memory = 40 * cache.bytes_of(1, ROUND)
    taken = 0

    def free() -> int:
        return memory - taken - cache.bytes_of(cache.num_rows, cache.num_tokens)

    monkeypatch.setattr(cache, "_free_memory", free)
    held_at_once: list[int] = []
    empty = cache._empty

    def counted(rows: int, tokens: int) -> torch.Tensor:
        held_at_once.append(cache.num_rows)
        return empty(rows, tokens)

    cache.reserve(5, ROUND)
    cache.hold(0, ids(1, 2))
    taken = 30 * cache.bytes_of(1, ROUND)
    monkeypatch.setattr(cache, "_empty", counted)
    assert cache.reserve(2, 3 * ROUND)
    assert held_at_once[-2:] == [0, 0]
    assert cache.assign([ids(1, 2, 3)])[0].known == 0, "what was held is read again"


def test_a_thrifty_cache_takes_half_as_much_and_one_that_is_dropped_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = GPUCache(2, 2, 4, torch.float32, torch.device("cpu"))
    memory = 40 * cache.bytes_of(1, ROUND)
    monkeypatch.setattr(cache, "_free_memory", lambda: memory)
    assert cache.rows_that_fit(ROUND) == 11
    cache.be_thrifty()
    assert cache.rows_that_fit(ROUND) == 5
    cache.reserve(5, ROUND)
    cache.drop()
    assert (cache.num_rows, cache.num_tokens, cache.keys.numel()) == (0, 0, 0)
    assert cache.reserve(3, ROUND)
    assert cache.num_rows == 3
