"""Writing weights: a full disk is an OSError, whichever library found out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from safetensors import SafetensorError


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn what safetensors and torch raise when a file cannot be written into OSError."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        found = error.__context__
        if isinstance(found, OSError):  # torch hides the file's own error behind one of its own
            raise OSError(found.errno, found.strerror) from error
        raise OSError(" ".join(str(error).split())) from error
