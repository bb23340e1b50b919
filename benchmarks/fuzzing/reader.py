"""What every reader of the fuzzer is: good inputs to begin with, and the call that reads one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzzing.mutations import Form

Read = Callable[[bytes], object]
"""Returns, or raises a ``RagenError``; whatever else it does is a fault."""


@dataclass(frozen=True, slots=True)
class Reader:
    """One reader, ready to be tried."""

    form: Form
    seeds: Sequence[bytes]
    read: Read

    def variant(self, rng: random.Random) -> bytes:
        """A damaged copy of one of the good inputs."""
        return self.form.mutate(rng.choice(self.seeds), rng)


Make = Callable[[Path], Reader]
"""Prepares a reader in an empty folder."""


def written(file: Path, read: Callable[[], object]) -> Read:
    """A reader of bytes that stand in a file."""

    def put(data: bytes) -> object:
        file.write_bytes(data)
        return read()

    return put
