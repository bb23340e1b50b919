"""Which process of a job this is, read from the variables that torchrun sets; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ragen2.errors import ConfigError

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Rank:
    """Process ``index`` of a job of ``world_size``; a process alone is number 0 of 1."""

    index: int = 0
    world_size: int = 1
    local_index: int = 0

    @property
    def is_zero(self) -> bool:
        """Whether this process runs the loop and writes the run directory."""
        return self.index == 0


def rank_of(variables: Mapping[str, str]) -> Rank:
    """The rank of a process with this environment; alone unless all variables are there."""
    if any(name not in variables for name in NAMES):
        return Rank()
    found = {name: variables[name] for name in NAMES[:3]}
    for name, value in found.items():
        if not value.isdecimal():
            raise ConfigError(f"the variable {name} must be a number, got {value!r}; use torchrun")
    rank = Rank(*(int(found[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")))
    if rank.index >= rank.world_size:
        raise ConfigError(f"RANK is {rank.index} of WORLD_SIZE {rank.world_size}; use torchrun")
    if rank.index != rank.local_index:
        raise ConfigError(
            f"process {rank.index} is number {rank.local_index} of its machine: a job of several "
            "machines was started; --processes and torchrun are for one"
        )
    return rank
