"""Named, independent random streams: the same name always gives the same numbers.

A stream depends on its whole name and on nothing else: not on call order, not on global state,
not on the process (Python's salted ``hash`` is never used).
"""

from __future__ import annotations

import hashlib

import numpy as np


def stream_key(*name: int | str) -> int:
    """A 128-bit integer that depends on every part of ``name`` and on their order.

    Parts are length-prefixed and typed, so ``("ab", "c")``, ``("a", "bc")`` and ``(1,)``, ``("1",)``
    are four different names.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in name:
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(4, "big"))
        digest.update(text)
    return int.from_bytes(digest.digest(), "big")


def stream(*name: int | str) -> np.random.Generator:
    """The random generator called ``name``, always at its start: ``stream(7, "slip", 3)``."""
    return np.random.Generator(np.random.PCG64(stream_key(*name)))
