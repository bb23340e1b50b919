"""The images of a run: PNG files named by their pixels, each kept once, in one archive per step.

Boards are a few hundred bytes as PNG, and a run shows tens of thousands: as files of their own they would
take ten times their size on most disks. Pillow writes and reads the pixels; whoever only passes the files
on, as the report page does, needs no Pillow.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import numpy as np

from ragen2.errors import DependencyError, RunError
from ragen2.runs.files import write_atomically
from ragen2.types import Image, PixelArray

FOLDER = "images"
SUFFIX = ".png"
MOST_PALETTE_COLOURS = 256
"""What a palette of the PNG format holds."""
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


def png_bytes(pixels: PixelArray) -> bytes:
    """An RGB image (height x width x 3) as the contents of a PNG file; equal pixels give equal bytes."""
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
        raise ValueError(f"an image must be height x width x 3 bytes, got {pixels.shape}")
    pillow = _load_pillow()
    image = pillow.fromarray(pixels)
    colours = image.getcolors(MOST_PALETTE_COLOURS)
    if colours is not None:
        # Boards have few colours: a palette halves their files. With as many entries as there are colours
        # each colour has its own, so no pixel changes.
        adaptive = pillow.Palette.ADAPTIVE
        image = image.convert("P", palette=adaptive, colors=len(colours))
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def read_png(data: bytes) -> PixelArray:
    """The pixels of a PNG file; a ValueError says what is wrong with anything else."""
    pillow = _load_pillow()
    try:
        with pillow.open(io.BytesIO(data), formats=["PNG"]) as image:
            return np.asarray(image.convert("RGB"))
    except pillow.UnidentifiedImageError as error:
        raise ValueError("it is not a PNG file") from error
    except (OSError, SyntaxError, EOFError, pillow.DecompressionBombError) as error:
        raise ValueError(f"it is damaged: {error}") from error


def _load_pillow() -> ModuleType:
    try:
        from PIL import Image as pillow
    except ImportError as error:
        raise DependencyError("images need pillow; pip install 'ragen2[vision]'") from error
    return pillow


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
