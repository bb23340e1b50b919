"""Trajectories as JSON lines, with everything needed to replay, audit or re-score them, and their images.

Images are PNG files named by their pixels, each kept once, in one archive per step. Boards are a few hundred
bytes as PNG, and a run shows tens of thousands: as files of their own they would take ten times their size
on most disks. Pillow writes and reads the pixels; whoever only passes the files on, as the report page does,
needs no Pillow.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ragen2.errors import DependencyError, RunError
from ragen2.runs.files import write_atomically
from ragen2.types import (
    Completion,
    Finish,
    Group,
    Image,
    Message,
    PixelArray,
    Prompt,
    Reply,
    StopReason,
    Trajectory,
    Turn,
)

Find = Callable[[str], Image] | None


def group_lines(group: Group, step: int, knows_success: bool = True) -> list[str]:
    """One line per trajectory; null where success or a log-prob is not known."""
    lines = []
    for one in group.trajectories:
        data = _trajectory(one, step)
        if not knows_success:
            data["solved"] = None
        lines.append(json.dumps(data, ensure_ascii=False))
    return lines


def images_of(group: Group) -> Iterator[Image]:
    """Every image that the lines of a group name; the same one may come more than once."""
    for trajectory in group.trajectories:
        for message in trajectory.prompt.messages:
            yield from message.images
        for turn in trajectory.turns:
            yield from turn.images
            if turn.shown_image is not None:
                yield turn.shown_image


def groups_of(lines: Iterable[str], image: Callable[[str], Image] | None = None) -> list[Group]:
    """The groups that ``group_lines`` wrote, in order; their members may stand anywhere.

    ``image`` finds an image by its name (``ImageStore.read``); None leaves images out.
    """
    members: dict[Prompt, list[Trajectory]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            trajectory = _read_trajectory(json.loads(line), image)
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"line {number} is not a trajectory of a run's rollouts ({error!r}); "
                "give a rollouts/step_*.jsonl file as training wrote it"
            ) from error
        members.setdefault(trajectory.prompt, []).append(trajectory)
    return [Group(prompt, tuple(trajectories)) for prompt, trajectories in members.items()]


def _trajectory(trajectory: Trajectory, step: int) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "env": trajectory.prompt.env,
        "seed": trajectory.prompt.seed,
        "luck": trajectory.luck,
        "step": step,
        "messages": [_message(message) for message in trajectory.prompt.messages],
        "turns": [_turn(turn) for turn in trajectory.turns],
        "reward": trajectory.reward,
        "solved": trajectory.solved,
        "stop": trajectory.stop.value,
        "error": trajectory.error,
    }


def _message(message: Message) -> dict[str, Any]:
    written: dict[str, Any] = {"role": message.role, "content": message.content}
    return {**written, "images": _names(message.images)} if message.images else written


def _names(images: Iterable[Image]) -> list[str]:
    return [image.digest for image in images]


def _seen(turn: Turn) -> dict[str, Any]:
    """What only a turn of an agent that is shown images has."""
    seen: dict[str, Any] = {"images": _names(turn.images)} if turn.images else {}
    return {**seen, "shown_image": turn.shown_image.digest} if turn.shown_image else seen


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "prompt_ids": turn.prompt_ids_T.tolist(),
        "ids": turn.completion.ids_T.tolist(),
        "logprobs": [
            None if math.isnan(value) else round(value, 6)
            for value in turn.completion.logprobs_T.tolist()
        ],
        "text": turn.completion.text,
        "finish": turn.completion.finish.value,
        "reasoning": turn.reply.reasoning,
        "reasoning_span": list(turn.reasoning_span),
        "actions": list(turn.reply.actions),
        "action_span": list(turn.action_span),
        "executed": list(turn.executed),
        "valid": turn.reply.valid,
        "problem": turn.reply.problem,
        "observation": turn.observation,
        "reward": turn.reward,
        "penalty": turn.penalty,
        **_seen(turn),
    }


def _read_trajectory(data: dict[str, Any], image: Find) -> Trajectory:
    messages = tuple(
        Message(one["role"], one["content"], _read_images(one, image)) for one in data["messages"]
    )
    return Trajectory(
        Prompt(data["env"], data["seed"], messages),
        data["luck"],
        tuple(_read_turn(turn, image) for turn in data["turns"]),
        StopReason(data["stop"]),
        data["solved"],
        data["error"],
    )


def _read_images(data: dict[str, Any], image: Find) -> tuple[Image, ...]:
    return tuple(image(name) for name in data.get("images", ())) if image else ()


def _read_turn(data: dict[str, Any], image: Find) -> Turn:
    start, end = data["reasoning_span"]
    # Files of runs before spans of actions were recorded have none.
    action_start, action_end = data.get("action_span", (0, 0))
    return Turn(
        prompt_ids_T=np.array(data["prompt_ids"], dtype=np.int64),
        completion=Completion(
            np.array(data["ids"], dtype=np.int64),
            np.array(data["logprobs"], dtype=np.float64),
            data["text"],
            Finish(data["finish"]),
        ),
        reply=Reply(data["reasoning"], tuple(data["actions"]), data["problem"]),
        reasoning_span=(start, end),
        observation=data["observation"],
        reward=data["reward"],
        penalty=data["penalty"],
        executed=tuple(data["executed"]),
        action_span=(action_start, action_end),
        images=_read_images(data, image),
        shown_image=image(data["shown_image"]) if image and "shown_image" in data else None,
    )


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
