"""Which process of a job this is, read from the variables that torchrun sets; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ragen2.errors import ConfigError

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class World:
    """Process ``rank`` of ``size``; the first one leads."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        """Whether this process runs the loop and writes the run directory."""
        return self.rank == 0


def world_of(variables: Mapping[str, str]) -> World:
    """The world of a process; one alone unless all variables are there."""
    if any(name not in variables for name in NAMES):
        return World()
    found = {name: variables[name] for name in NAMES[:3]}
    for name, value in found.items():
        if not value.isdecimal():
            raise ConfigError(f"the variable {name} must be a number, got {value!r}; use torchrun")
    world = World(*(int(found[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")))
    if world.rank >= world.size:
        raise ConfigError(f"RANK is {world.rank} of WORLD_SIZE {world.size}; use torchrun")
    if world.rank != world.local_rank:
        raise ConfigError(
            f"process {world.rank} is number {world.local_rank} of its machine: a job of several "
            "machines was started; --processes and torchrun are for one"
        )
    return world
