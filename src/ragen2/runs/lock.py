"""One writer per folder: a lock that ends with the process that holds it, however that process ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from ragen2.errors import RunError
from ragen2.reading import open_own

logger = logging.getLogger(__name__)

LOCK = ".lock"
"""The file that is locked. It stays when the lock ends: a file that comes and goes could be locked twice."""
LONGEST_HOLDER = 200
"""Characters that are repeated of what the holder wrote."""
TRIES, SECONDS_BETWEEN_TRIES = 5, 0.05
"""To lock a file: who only looks whether it is locked locks it for a moment too."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""What file systems without locks answer."""
_held: dict[int, tuple[str, Path]] = {}
"""Open lock files and their folders: the place, and the name that was given, which may be relative."""


class LockedError(RunError):
    """Another process holds the lock."""


@contextlib.contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of ``folder``, made if need be; raises ``LockedError`` where another process writes."""
    lock = WriterLock(folder)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


class WriterLock:
    """The lock of one folder, for writers whose beginning and end lie in different functions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._handle = -1

    def acquire(self) -> None:
        """Take it, unless it is held here already; where the file system has no locks, say so and go on."""
        if self._handle in _held:
            return
        place = os.path.abspath(self.folder)
        if any(held == place for held, _ in _held.values()):
            raise LockedError(f"{self.folder} is written by another part of this program")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._handle = open_own(self.folder / LOCK)
            _held[self._handle] = (place, self.folder)
            holder = "" if try_lock(self._handle) else self._holder()
            if not holder:
                os.ftruncate(self._handle, 0)
                os.pwrite(self._handle, f"{_myself()}\n".encode(), 0)
        except OSError as error:
            self.release()
            raise RunError(
                f"{self.folder} cannot be written: {error.strerror}; choose a folder that can"
            ) from error
        if holder:
            self.release()
            raise LockedError(f"{self.folder} is written by {holder}; wait for it or end it")

    def release(self) -> None:
        """Let others write; nothing, if it is not held here."""
        if self._handle in _held:
            del _held[self._handle]
            os.close(self._handle)
        self._handle = -1

    def _holder(self) -> str:
        told = os.pread(self._handle, LONGEST_HOLDER, 0).decode(errors="replace").splitlines()
        return next((line for line in told if line.strip()), "another process")


def refuse_moved(folder: Path) -> None:
    """Raise where a folder whose lock is held here is no longer in its place: what is there is not ours.

    So it is for a relative name after a change of the working directory, as a plug-in may make it.
    """
    place = os.path.abspath(folder)
    for handle in (one for one, held in _held.items() if place == held[0] or folder == held[1]):
        try:
            is_same = os.path.samestat(os.fstat(handle), os.stat(folder / LOCK))
        except OSError:
            is_same = False
        if not is_same:
            raise RunError(
                f"{folder} was moved or removed while it was written, or the working directory was changed; "
                "nothing more is written; go on where it is now, with --resume"
            )


def try_lock(handle: int, tries: int = TRIES, how: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file, as long as it stays open; False if another process has locked it."""
    for left in reversed(range(tries)):
        try:
            fcntl.flock(handle, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if left:
                time.sleep(SECONDS_BETWEEN_TRIES)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            logger.warning(
                "this file system has no locks (%s): nothing keeps a second process from writing to the "
                "same run; start only one",
                error.strerror,
            )
            return True
        else:
            return True
    return False


def _myself() -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S%z")
    return f"process {os.getpid()} on {socket.gethostname()} since {since}"


def _forget() -> None:
    """A lock belongs to the open file, and a fork would keep it beyond the end of its parent."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_forget)
