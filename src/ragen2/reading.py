"""Reading files that others wrote: only regular files are opened, and no more is read than fits.

Whatever is wrong with a file (a pipe that nobody writes to, a device, a few packed bytes that unpack to
gigabytes) is an ``OSError`` whose ``strerror`` says so; text that is no JSON is a ``ValueError``.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import json
import lzma
import os
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

LARGEST = 2**30
"""Bytes of a file that is read whole."""
UNPACKED = 64 * 2**20
"""Bytes that a packed file of any size may unpack to."""
RATIO = 200
"""Unpacked bytes per packed one of a larger file: text packs to a tenth, a bomb to a thousandth."""
MOST_ROWS = 2**20
"""Of a small parquet file: equal values of a column take no space there, but time to read."""
FEW_OBJECTS = 2**20
"""Lists and objects that JSON text of any length may hold."""
SPARSE = 16
"""Characters per list or object of longer text: an empty one has three, and takes twenty times the memory."""
PIECE = 2**18
KINDS: dict[Callable[[int], bool], str] = {
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a named pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}
UNPACKERS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
"""By suffix."""


def open_file(path: Path) -> io.BufferedReader:
    """A regular file's bytes; anything else is refused, and never waited for."""
    return os.fdopen(_open_regular(path, os.O_RDONLY), "rb")


def open_own(path: Path, flags: int = 0) -> int:
    """A handle to read and write a file of a run directory, made if need be.

    A link is refused: whoever made the directory could have any file of the user's written to.
    """
    try:
        return _open_regular(path, flags | os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, f"{path.name} is a link, not a file", str(path)) from error


def _open_regular(path: Path, flags: int) -> int:
    # Without O_NONBLOCK the opening of a pipe would wait for its writer.
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        kind = next((name for matches, name in KINDS.items() if matches(mode)), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))
    return handle


def read_bytes(path: Path, at_most: int = LARGEST) -> bytes:
    """All of a file, unpacked where its suffix says that it is packed."""
    data = bytearray()
    with open_unpacked(path) as file:
        while piece := file.read(PIECE):  # one call would set aside memory for all that is allowed
            data += piece
            if len(data) > at_most:
                raise too_large(path, f"it holds more than {at_most // 2**20} MB")
    return bytes(data)


def read_text(path: Path, at_most: int = LARGEST) -> str:
    """The same as text; a ``UnicodeDecodeError``, which is a ``ValueError``, where it is not UTF-8."""
    return read_bytes(path, at_most).decode("utf-8")


def read_json(path: Path, at_most: int = LARGEST) -> Any:
    """A file's JSON value."""
    return parse_json(read_bytes(path, at_most))


def parse_json(text: str | bytes) -> Any:
    """A JSON value; text nested too deep, or of little but brackets, is a ``ValueError`` like any other."""
    marks: Any = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
    objects = sum(map(text.count, marks)) if len(text) > FEW_OBJECTS else 0
    if objects > max(FEW_OBJECTS, len(text) // SPARSE):
        raise ValueError(f"{objects:,} lists and objects in {len(text):,} characters")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def open_unpacked(path: Path) -> io.BufferedReader:
    """A file's bytes, unpacked where its suffix is that of gzip, bzip2 or xz."""
    return unpacked(path, open_file(path))


def unpacked(path: Path, file: io.BufferedReader) -> io.BufferedReader:
    """The same of a file that is open; closing the one closes the other."""
    unpacker = UNPACKERS.get(path.suffix.lower())
    return io.BufferedReader(_Unpacked(path, file, unpacker)) if unpacker else file


def refuse_bomb(path: Path, parquet: Any) -> None:
    """Raise where a parquet file says of itself that it unpacks to more than a packed file may.

    ``parquet`` is what pyarrow calls its metadata.
    """
    size, rows = path.stat().st_size, parquet.num_rows
    groups = (parquet.row_group(number) for number in range(parquet.num_row_groups))
    if sum(group.total_byte_size for group in groups) > most_unpacked(size):
        raise too_large(path, f"it unpacks to more than {most_unpacked(size) // 2**20} MB")
    if rows > max(MOST_ROWS, RATIO * size):
        raise too_large(path, f"it claims {rows:,} rows in {size:,} bytes")


def most_unpacked(size: int) -> int:
    """Bytes that a packed file of ``size`` bytes may unpack to."""
    return max(UNPACKED, RATIO * size)


def too_large(path: Path, why: str) -> OSError:
    """The error for more than is read."""
    return OSError(errno.EFBIG, why, str(path))


class _Unpacked(io.RawIOBase):
    """What a packed file unpacks to, up to its bound."""

    def __init__(self, path: Path, packed: IO[bytes], unpacker: Callable[..., Any]) -> None:
        self._path, self._packed = path, packed
        self._file = unpacker(packed)
        self._most = most_unpacked(os.fstat(packed.fileno()).st_size)
        self._done = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes."""
        try:
            data = self._file.read(len(buffer))
        except (EOFError, zlib.error, lzma.LZMAError) as error:
            raise OSError(errno.EINVAL, f"damaged: {error}", str(self._path)) from error
        self._done += len(data)
        if self._done > self._most:
            raise too_large(self._path, f"it unpacks to more than {self._most // 2**20} MB")
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close both files."""
        self._file.close()
        self._packed.close()
        super().close()
