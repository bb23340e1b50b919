"""The images of a run: PNG files named by their pixels, each kept once, in one archive a step.

Boards are a few hundred bytes as PNG, and a run shows tens of thousands: as files of their own they would
take ten times their size on most disks.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from pathlib import Path

from ragen2.errors import RunError
from ragen2.runs.files import write_atomically
from ragen2.runs.png import png_bytes, read_png
from ragen2.types import Image

FOLDER = "images"
SUFFIX = ".png"
WRITTEN = (1980, 1, 1, 0, 0, 0)
"""The same time for all, so that equal images give equal archives."""


class ImageStore:
    """The folder ``images`` of a run directory; an image stands in the archive of its first step."""

    def __init__(self, run: Path) -> None:
        self.folder = run / FOLDER
        self._found: dict[str, Path] | None = None

    def save(self, step: int, images: Iterable[Image]) -> None:
        """Keep those that are not kept yet; without any, nothing is written."""
        new = {image.digest: image for image in images if image.digest not in self._places()}
        if not new:
            return
        path = self.folder / f"step_{step:06d}.zip"
        files = self._members(path) if path.exists() else {}
        files |= {f"{name}{SUFFIX}": png_bytes(image.pixels) for name, image in new.items()}
        try:
            self.folder.mkdir(exist_ok=True)
            write_atomically(path, _archive(files))
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}") from error
        self._places().update(dict.fromkeys(new, path))

    def has(self, digest: str) -> bool:
        """Whether an image is kept."""
        return digest in self._places()

    def file(self, digest: str) -> bytes:
        """The PNG file of an image."""
        path = self._places().get(digest)
        if path is None:
            raise RunError(
                f"image {digest}{SUFFIX} is missing from {self.folder}; put back the archive of its step"
            )
        try:
            with _opened(path) as archive:
                return archive.read(f"{digest}{SUFFIX}")
        except (zipfile.BadZipFile, OSError) as error:
            raise _unreadable(path, error) from error

    def read(self, digest: str) -> Image:
        """An image by its name."""
        try:
            image = Image(read_png(self.file(digest)))
        except ValueError as error:
            raise self._damaged(digest, str(error)) from error
        if image.digest != digest:
            raise self._damaged(digest, "its pixels are others than its name says")
        return image

    def rewind(self, step: int) -> None:
        """Forget the images that were first shown after ``step``."""
        for number, path in self._archives():
            if number > step:
                path.unlink()
        self._found = None

    def _places(self) -> dict[str, Path]:
        """Where each image is."""
        if self._found is None:
            self._found = {
                name.removesuffix(SUFFIX): path
                for _, path in self._archives()
                for name in _opened(path).namelist()
            }
        return self._found

    def _archives(self) -> list[tuple[int, Path]]:
        found = self.folder.glob("step_*.zip")
        return sorted((int(path.stem.removeprefix("step_")), path) for path in found)

    def _members(self, path: Path) -> dict[str, bytes]:
        try:
            with _opened(path) as archive:
                return {name: archive.read(name) for name in archive.namelist()}
        except (zipfile.BadZipFile, OSError) as error:
            raise _unreadable(path, error) from error

    def _damaged(self, digest: str, why: str) -> RunError:
        path = self._places()[digest]
        return RunError(f"image {digest}{SUFFIX} of {path} cannot be read: {why}")


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> RunError:
    return RunError(
        f"{path} is damaged ({error}); put it back, or remove it and the rollouts of its step"
    )


def _archive(files: dict[str, bytes]) -> bytes:
    """Stored as they are: PNG is packed already."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, WRITTEN), files[name])
    return data.getvalue()
