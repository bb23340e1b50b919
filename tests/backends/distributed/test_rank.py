"""Which process of a job this is, by torchrun's variables."""

from __future__ import annotations

import pytest

from ragen2.backends.distributed.rank import Rank, rank_of
from ragen2.errors import ConfigError

SECOND = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def test_the_second_of_two_is_not_rank_zero() -> None:
    rank = rank_of(SECOND)
    assert rank == Rank(1, 2, 1)
    assert not rank.is_zero


def test_a_process_alone_is_rank_zero_and_a_variable_of_others_changes_nothing() -> None:
    assert rank_of({}) == Rank(0, 1, 0)
    assert rank_of({"WORLD_SIZE": "4", "RANK": "3"}).is_zero


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"RANK": "one"}, "the variable RANK must be a number, got 'one'"),
        ({"RANK": "2"}, "RANK is 2 of WORLD_SIZE 2"),
        ({"LOCAL_RANK": "0"}, "a job of several machines was started"),
    ],
)
def test_variables_that_cannot_be_are_told(changed: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        rank_of({**SECOND, **changed})
