"""Which process of a job this is, by torchrun's variables."""

from __future__ import annotations

import pytest

from ragen2.backends.distributed.world import World, world_of
from ragen2.errors import ConfigError

SECOND = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def test_the_second_of_two_follows() -> None:
    world = world_of(SECOND)
    assert world == World(1, 2, 1)
    assert not world.leads


def test_a_process_alone_leads_and_a_variable_of_others_changes_nothing() -> None:
    assert world_of({}) == World(0, 1, 0)
    assert world_of({"WORLD_SIZE": "4", "RANK": "3"}).leads


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
        world_of({**SECOND, **changed})
