"""Rows of the CPU cache: found again, moved, copied and grown without losing what they hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ragen2.backends.sampling.cpu.forward import BLOCK, CPUCache, shared_beginning
from ragen2.types import IntArray

LAYERS, HEADS, DIM = 2, 3, 4


def ids(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


def filled(num_rows: int, slots: int = 5, shared: IntArray | None = None) -> CPUCache:
    """A cache whose every number tells its row: layer, row and slot in decimal places."""
    cache = CPUCache((LAYERS, HEADS, DIM), num_rows, ids() if shared is None else shared)
    cache.reserve(slots)
    for sign, tensors in ((1, cache.keys), (-1, cache.values)):
        for layer, tensor in enumerate(tensors):
            rows = torch.arange(num_rows)[:, None, None, None] * 10
            slots_S = torch.arange(tensor.shape[2])[None, None, :, None] / 100
            tensor.copy_((rows + slots_S + 1000 * layer).expand_as(tensor) * sign)
    for row in range(num_rows):
        cache.hold(row, ids(*range(cache.num_shared + slots - 1), 100 + row))
    return cache


def continued(cache: CPUCache, prompts: list[IntArray]) -> dict[int, int]:
    return cache.continued([prompt.tobytes() for prompt in prompts])


def rows_of(cache: CPUCache, slots: int) -> list[list[float]]:
    """Per tensor, which row each row's numbers come from."""
    found = []
    for tensor in (*cache.keys, *cache.values):
        used = tensor[:, :, :slots].abs() % 1000
        assert torch.equal(used, used[:, :1, :, :1].expand_as(used))
        found.append((used[:, 0, :, 0] // 10).amax(1).tolist())
        assert torch.equal(used[:, 0, :, 0] // 10, (used[:, 0, :1, 0] // 10).expand(-1, slots))
    return found


def test_growing_keeps_what_is_held() -> None:
    cache = filled(2)
    before = [tensor[:, :, :5].clone() for tensor in (*cache.keys, *cache.values)]
    cache.reserve(BLOCK + 1)
    assert cache.num_slots > BLOCK
    after = [tensor[:, :, :5] for tensor in (*cache.keys, *cache.values)]
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    assert not cache.keys[0][:, :, BLOCK:].any()


def test_new_tokens_go_to_their_row_slot_and_head() -> None:
    cache = CPUCache((LAYERS, HEADS, DIM), 3, ids())
    cache.reserve(4)
    rows, slots = torch.tensor([2, 0]), torch.tensor([[0, 1], [3, 4]])
    new = torch.arange(2 * 2 * HEADS * DIM, dtype=torch.float32).view(2, 2, HEADS, DIM) + 1
    flat = new.view(-1, DIM)
    cache.write(1, cache.flat_slots(rows, slots), flat, -flat)
    wanted = torch.zeros(3, HEADS, cache.num_slots, DIM)
    for number, row in enumerate((2, 0)):
        for token in range(2):
            wanted[row, :, int(slots[number, token])] = new[number, token]
    assert torch.equal(cache.keys[1], wanted)
    assert torch.equal(cache.values[1], -wanted)
    assert not cache.keys[0].any()


@pytest.mark.parametrize("wanted", [[4, 1], [3, 4, 2], [0, 1, 2], [4, 3, 2, 1, 0], [2]])
def test_wanted_rows_come_to_the_front_and_no_row_is_lost(wanted: list[int]) -> None:
    cache = filled(5)
    fronts = cache.to_front(wanted)
    assert sorted(fronts) == list(range(len(wanted)))
    for found in rows_of(cache, 5):
        assert [found[row] for row in fronts] == wanted
        assert sorted(found) == [0, 1, 2, 3, 4]
    prompts = [ids(0, 1, 2, 3, 100 + row, 7) for row in wanted]
    assert list(continued(cache, prompts).values()) == fronts


def test_copied_rows_hold_the_same_numbers() -> None:
    cache = filled(4)
    cache.copy_rows([0, 0], [2, 3], 5)
    assert all(found == [0, 1, 0, 0] for found in rows_of(cache, 5))


def test_a_prompt_continues_the_longest_row_that_it_begins_with() -> None:
    cache = CPUCache((LAYERS, HEADS, DIM), 4, ids())
    for row, held in enumerate([ids(1, 2), ids(1, 2, 3), ids(9)]):
        cache.hold(row, held)
    assert continued(cache, [ids(1, 2, 3, 4)]) == {0: 1}
    assert continued(cache, [ids(1, 2, 4), ids(5), ids(9, 9)]) == {0: 0, 2: 2}
    assert [cache.known(row) for row in range(4)] == [2, 3, 1, 0]


def test_a_row_is_not_continued_by_what_it_already_holds_nor_twice() -> None:
    cache = CPUCache((LAYERS, HEADS, DIM), 3, ids())
    cache.hold(0, ids(1, 2))
    cache.hold(1, ids(1, 2))
    assert continued(cache, [ids(1, 2)]) == {}
    assert continued(cache, [ids(1, 2, n) for n in range(3)]) == {0: 0, 1: 1}


@pytest.mark.parametrize(
    ("prompts", "least", "wanted"),
    [
        ([ids(1, 2, 3, 4), ids(1, 2, 5)], 1, [1, 2]),
        ([ids(1, 2, 3, 4), ids(1, 2, 5)], 3, []),
        ([ids(1, 2, 3), ids(1, 2, 3)], 1, [1, 2]),
        ([ids(1, 2, 3, 4), ids(1, 2)], 1, [1]),
        ([ids(7, 8, 9)], 1, [7, 8]),
        ([ids(1, 2), ids(3, 2)], 0, []),
    ],
)
def test_what_prompts_share_never_is_all_of_one(
    prompts: list[IntArray], least: int, wanted: list[int]
) -> None:
    assert shared_beginning(prompts, least).tolist() == wanted
