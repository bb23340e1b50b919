"""Sharing an update out: every micro-batch once, even loads, the same number of passes under FSDP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ragen2.backends.distributed.parallelism import SINGLE_PROCESS, Replicas, Shards, balance

PARTS = [[0, 1], [2], [3, 4], [5], [6]]
LENGTHS = [10, 20, 50, 5, 5, 40, 1]
"""Loads of the parts: 30, 50, 10, 40, 1."""


@dataclass
class Process:
    """One of several, whose others have said ``others`` before it."""

    rank: int
    size: int
    others: tuple[Any, ...] = ()

    def gather(self, value: Any) -> list[Any]:
        return [*self.others, value]


def test_parts_go_to_the_process_with_the_fewest_tokens_largest_first() -> None:
    assert balance(PARTS, LENGTHS, 2) == [[[2], [3, 4], [6]], [[5], [0, 1]]]


def test_one_process_has_all_parts_in_their_order() -> None:
    assert SINGLE_PROCESS.share(PARTS, LENGTHS) == [(part, True) for part in PARTS]
    assert SINGLE_PROCESS.budget(2048, 100) == 2048


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_replicas_read_every_part_once(size: int) -> None:
    processes = [Replicas(Process(rank, size)).share(PARTS, LENGTHS) for rank in range(size)]
    read = [part for one in processes for part, is_real in one if is_real]
    assert sorted(read) == sorted(PARTS)
    assert sum(len(one) for one in processes) == len(PARTS)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_shards_read_every_part_once_and_all_make_as_many_passes(size: int) -> None:
    processes = [Shards(Process(rank, size)).share(PARTS, LENGTHS) for rank in range(size)]
    assert len({len(one) for one in processes}) == 1
    assert sorted(part for one in processes for part, is_real in one if is_real) == sorted(PARTS)


def test_fsdp_averages_so_losses_are_multiplied_by_the_number_of_processes() -> None:
    assert Shards(Process(0, 3)).loss_factor == 3.0
    assert Shards(Process(0, 3)).replicas.loss_factor == 1.0
    assert Replicas(Process(0, 3)).loss_factor == 1.0


def test_micro_batches_shrink_until_every_process_has_one() -> None:
    replicas = Replicas(Process(0, 4))
    assert replicas.budget(2048, 1001) == 251
    assert replicas.budget(100, 1001) == 100


def test_numbers_of_a_process_without_a_share_do_not_count() -> None:
    replicas = Replicas(Process(2, 3, ({"loss": 1.0, "kl": 0.5}, {})))
    assert replicas.sum_numbers({"loss": 2.0, "kl": 0.25}) == {"loss": 3.0, "kl": 0.75}


def test_rows_of_all_processes_are_put_together() -> None:
    replicas = Replicas(Process(1, 2, ({0: np.array([1.0])},)))
    joined = replicas.join({1: np.array([2.0])})
    assert {row: values.tolist() for row, values in joined.items()} == {0: [1.0], 1: [2.0]}
