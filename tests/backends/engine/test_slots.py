"""Rows of the engine's cache: who continues which, who copies whom, and that nothing is lost in growing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ragen2.backends.sampling.gpu.cache import ROUND, Place, SlotCache
from ragen2.types import IntArray


@pytest.fixture
def cache() -> SlotCache:
    made = SlotCache(2, 1, 4, torch.float32, torch.device("cpu"))
    made.reserve(4, 8)
    return made


def ids(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


def test_equal_prompts_are_read_once(cache: SlotCache) -> None:
    places = cache.with_image_ids([ids(1, 2), ids(3), ids(1, 2)])
    assert [place.copy_of for place in places] == [0, 1, 0]
    assert len({place.slot for place in places}) == 3
    assert [place.known for place in places] == [0, 0, 0]


def test_a_prompt_that_continues_a_row_keeps_it(cache: SlotCache) -> None:
    first = cache.with_image_ids([ids(1, 2), ids(3)])
    cache.hold(first[0].slot, ids(1, 2, 9))
    cache.hold(first[1].slot, ids(3, 8))
    places = cache.with_image_ids([ids(3, 8, 5), ids(1, 2, 9, 4, 4)])
    assert places == [Place(first[1].slot, 2, 0), Place(first[0].slot, 3, 1)]


def test_the_longest_row_is_continued(cache: SlotCache) -> None:
    first = cache.with_image_ids([ids(1), ids(2)])
    cache.hold(first[0].slot, ids(1, 2))
    cache.hold(first[1].slot, ids(1, 2, 3))
    assert cache.with_image_ids([ids(1, 2, 3, 4)]) == [Place(first[1].slot, 3, 0)]


def test_a_row_serves_one_prompt_only(cache: SlotCache) -> None:
    first = cache.with_image_ids([ids(1, 2)])
    cache.hold(first[0].slot, ids(1, 2))
    places = cache.with_image_ids([ids(1, 2, 3), ids(1, 2, 4)])
    assert [place.known for place in places] == [2, 0]
    assert places[0].slot != places[1].slot


def test_a_row_that_holds_the_whole_prompt_is_read_again(cache: SlotCache) -> None:
    # At least one token must be read, because its hidden state is what the next is drawn from.
    first = cache.with_image_ids([ids(1, 2)])
    cache.hold(first[0].slot, ids(1, 2))
    assert cache.with_image_ids([ids(1, 2)])[0].known == 0


def test_new_weights_make_rows_useless(cache: SlotCache) -> None:
    first = cache.with_image_ids([ids(1, 2)])
    cache.hold(first[0].slot, ids(1, 2))
    cache.forget()
    assert cache.with_image_ids([ids(1, 2, 3)])[0].known == 0


def test_a_row_given_away_is_not_continued_later(cache: SlotCache) -> None:
    first = cache.with_image_ids([ids(1, 2)])
    cache.hold(first[0].slot, ids(1, 2))
    cache.with_image_ids([ids(7), ids(8), ids(9), ids(10)])
    assert cache.with_image_ids([ids(1, 2, 3)])[0].known == 0


def test_growing_keeps_what_rows_hold(cache: SlotCache) -> None:
    first = cache.with_image_ids([ids(1, 2)])
    cache.hold(first[0].slot, ids(1, 2))
    cache.keys[:, first[0].slot, :, :2] = 7.0
    tokens = cache.num_tokens
    assert not cache.reserve(4, tokens)
    assert cache.reserve(6, tokens + 1)
    assert cache.num_tokens == tokens + ROUND
    assert cache.trash == 6
    assert (cache.keys[:, first[0].slot, :, :2] == 7.0).all()
    assert cache.with_image_ids([ids(1, 2, 3)])[0].known == 2


def test_copying_a_row_copies_its_first_tokens(cache: SlotCache) -> None:
    cache.keys.zero_()
    cache.values.zero_()
    cache.keys[:, 0, :, :3] = 1.0
    cache.values[:, 0, :, :3] = 2.0
    cache.copy_rows([(0, 1), (0, 3)], 2)
    assert cache.keys[:, [1, 3], :, :2].eq(1.0).all()
    assert cache.values[:, [1, 3], :, :2].eq(2.0).all()
    assert cache.keys[:, 1, :, 2].eq(0.0).all()
    assert cache.keys[:, 2].eq(0.0).all()


def test_rows_of_another_cohort_are_counted_and_kept(cache: SlotCache) -> None:
    first = cache.with_image_ids([ids(1), ids(2)])
    cache.hold(first[0].slot, ids(1, 5))
    cache.hold(first[1].slot, ids(2, 5))
    assert cache.waiting([ids(3), ids(4)]) == 2
    assert cache.waiting([ids(1, 5, 7)]) == 1
    second = cache.with_image_ids([ids(3), ids(4)])
    assert {place.slot for place in second}.isdisjoint(place.slot for place in first)
    assert [place.known for place in cache.with_image_ids([ids(1, 5, 7), ids(2, 5, 7)])] == [2, 2]


def test_rows_of_two_calls_ago_no_longer_wait(cache: SlotCache) -> None:
    first = cache.with_image_ids([ids(1)])
    cache.hold(first[0].slot, ids(1, 5))
    cache.hold(cache.with_image_ids([ids(2)])[0].slot, ids(2, 5))
    assert cache.waiting([ids(3)]) == 1


def test_a_cache_leaves_most_of_the_memory_to_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SlotCache(2, 2, 4, torch.float32, torch.device("cpu"))
    a_row = cache.bytes_of(1, 256)
    memory = 40 * a_row
    monkeypatch.setattr(
        cache, "_free_memory", lambda: memory - cache.bytes_of(cache.num_slots, cache.num_tokens)
    )
    assert cache.rows_that_fit(200) == 11  # three tenths of forty, and one for the spare slot
    cache.reserve(11, 200)
    assert cache.rows_that_fit(200) == 11, "what it holds already is not asked for again"
    assert cache.rows_that_fit(400) == 5


def test_longer_rows_that_no_longer_all_fit_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SlotCache(2, 2, 4, torch.float32, torch.device("cpu"))
    memory = 40 * cache.bytes_of(1, ROUND)
    monkeypatch.setattr(
        cache, "_free_memory", lambda: memory - cache.bytes_of(cache.num_slots, cache.num_tokens)
    )
    cache.reserve(11, ROUND)
    cache.with_image_ids([ids(number) for number in range(11)])
    for slot in range(11):
        cache.hold(slot, ids(slot, slot))
    cache.keys[:, 0, :, 0] = 7.0
    assert cache.reserve(1, 4 * ROUND)
    assert (cache.num_slots, cache.num_tokens) == (2, 4 * ROUND)
    assert cache.bytes_of(cache.num_slots, cache.num_tokens) <= 0.3 * memory
    assert bool((cache.keys[:, 0, :, 0] == 7.0).all()), "a row that stays keeps what it holds"
    places = cache.with_image_ids([ids(0, 0, 1), ids(9, 9, 1)])
    assert [place.known for place in places] == [2, 0], "a row that was let go is read again"
