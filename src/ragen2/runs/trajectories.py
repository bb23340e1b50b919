"""Trajectories as JSON lines, with everything needed to replay, audit or re-score them, and their images.

Images are PNG files named by their pixels, each kept once, in one archive per step. Boards are a few hundred
bytes as PNG, and a run shows tens of thousands: as files of their own they would take ten times their size
on most disks. Pillow writes and reads the pixels; whoever only passes the files on, as the report page does,
needs no Pillow.
"""

from __future__ import annotations

import io
import json
import lzma
import math
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NotRequired, cast

import numpy as np
from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from ragen2.errors import DependencyError, RunError
from ragen2.reading import open_file
from ragen2.runs.files import files_by_step, write_atomically
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
Id = Annotated[int, Field(ge=0, lt=2**63)]


class MessageLine(TypedDict):
    """A message of a line."""

    role: Literal["system", "user", "assistant"]
    content: str
    images: NotRequired[list[str] | None]


class ShownTurn(TypedDict):
    """What a page shows of a turn."""

    text: str
    reasoning: str
    actions: list[str]
    executed: list[str]
    effective: NotRequired[list[bool] | None]
    unknown: NotRequired[list[str]]
    """Files of runs before unknown actions were told apart have neither."""
    valid: bool
    problem: str
    observation: str
    reward: FiniteFloat
    penalty: FiniteFloat
    images: NotRequired[list[str] | None]
    shown_image: NotRequired[str | None]


class TurnLine(ShownTurn):
    """All of it."""

    prompt_ids: list[Id]
    ids: list[Id]
    logprobs: list[float | None]
    finish: Literal[*(one.value for one in Finish)]  # type: ignore[valid-type]
    reasoning_span: tuple[Id, Id]
    action_span: NotRequired[tuple[Id, Id]]
    """Files of runs before spans of actions were recorded have none."""


class _Line(TypedDict):
    env: str
    seed: int
    luck: int
    messages: list[MessageLine]
    reward: FiniteFloat
    solved: bool | None
    stop: Literal[*(one.value for one in StopReason)]  # type: ignore[valid-type]
    error: str


class ShownTrajectory(_Line):
    """What a page shows of a line."""

    turns: list[ShownTurn]


class TrajectoryLine(_Line):
    """All of a line."""

    turns: list[TurnLine]


SHOWN = TypeAdapter(ShownTrajectory)
WHOLE = TypeAdapter(TrajectoryLine)


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


def groups_of(
    lines: Iterable[str | bytes], image: Callable[[str], Image] | None = None
) -> list[Group]:
    """The groups that ``group_lines`` wrote, in order; their members may stand anywhere.

    ``image`` finds an image by its name (``ImageStore.read``); None leaves images out.
    """
    members: dict[Prompt, list[Trajectory]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            trajectory = _read_trajectory(WHOLE.validate_json(line, strict=True), image)
        except ValueError as error:
            raise RunError(
                f"line {number} is not a trajectory of a run's rollouts ({first_problem(error)}); "
                "give a rollouts/step_*.jsonl file as training wrote it"
            ) from error
        members.setdefault(trajectory.prompt, []).append(trajectory)
    return [Group(prompt, tuple(trajectories)) for prompt, trajectories in members.items()]


def first_problem(error: ValueError) -> str:
    """The first thing that is wrong with a line, and where, in a few words."""
    if not isinstance(error, ValidationError):
        return str(error)
    found = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, found["loc"]))
    return f"{place}: {found['msg']}" if place else found["msg"]


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
        "effective": None if turn.effective is None else list(turn.effective),
        "unknown": list(turn.unknown),
        "valid": not turn.problem,
        "problem": turn.reply.problem,
        "observation": turn.observation,
        "reward": turn.reward,
        "penalty": turn.penalty,
        **_seen(turn),
    }


def _read_trajectory(data: TrajectoryLine, image: Find) -> Trajectory:
    messages = tuple(
        Message(one["role"], one["content"], _read_images(one, image)) for one in data["messages"]
    )
    return Trajectory(
        Prompt(data["env"], data["seed"], messages),
        data["luck"],
        tuple(_read_turn(turn, image) for turn in data["turns"]),
        StopReason(data["stop"]),
        cast("bool", data["solved"]),  # null stays None: success is not known
        data["error"],
    )


def _read_images(data: MessageLine | TurnLine, image: Find) -> tuple[Image, ...]:
    return tuple(image(name) for name in data.get("images") or ()) if image else ()


def _read_turn(data: TurnLine, image: Find) -> Turn:
    shown = data.get("shown_image")
    return Turn(
        prompt_ids_T=np.array(data["prompt_ids"], dtype=np.int64),
        completion=Completion(
            np.array(data["ids"], dtype=np.int64),
            np.array(data["logprobs"], dtype=np.float64),
            data["text"],
            Finish(data["finish"]),
        ),
        reply=Reply(data["reasoning"], tuple(data["actions"]), data["problem"]),
        reasoning_span=data["reasoning_span"],
        observation=data["observation"],
        reward=data["reward"],
        penalty=data["penalty"],
        executed=tuple(data["executed"]),
        effective=None if (flags := data.get("effective")) is None else tuple(flags),
        unknown=tuple(data.get("unknown", ())),
        action_span=data.get("action_span", (0, 0)),
        images=_read_images(data, image),
        shown_image=image(shown) if image and shown else None,
    )


FOLDER = "images"
SUFFIX = ".png"
MOST_PALETTE_COLOURS = 256
"""What a palette of the PNG format holds."""
LARGEST_IMAGE = 64 * 2**20
"""Bytes of a PNG file."""
MOST_PIXELS = 2**24
NOT_UNPACKED = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError, KeyError, ValueError),
    *(NotImplementedError, RuntimeError),  # another way of packing, a password
)
"""What zipfile raises for an archive that is none, or none of ours."""
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
        path = self.archive(step)
        files = self._members(path) if path.exists() else {}
        files |= {f"{name}{SUFFIX}": png_bytes(image.pixels) for name, image in new.items()}
        try:
            self.folder.mkdir(exist_ok=True)
            write_atomically(path, _archive(files))
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}") from error
        self._places().update(dict.fromkeys(new, path))

    def archive(self, step: int) -> Path:
        """Where the images lie that ``step`` showed first."""
        return self.folder / f"step_{step:06d}.zip"

    def has(self, digest: str) -> bool:
        """Whether an image is kept."""
        return digest in self._places()

    def file(self, digest: str, at_most: int = LARGEST_IMAGE) -> bytes:
        """The PNG file of an image, of at most so many bytes."""
        path = self._places().get(digest)
        if path is None:
            raise RunError(
                f"image {digest}{SUFFIX} is missing from {self.folder}; put back the archive of its step"
            )
        with _opened(path) as archive:
            return _member(archive, f"{digest}{SUFFIX}", at_most)

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
                for name in _names_in(path)
            }
        return self._found

    def _archives(self) -> list[tuple[int, Path]]:
        return files_by_step(self.folder, ".zip")

    def _members(self, path: Path) -> dict[str, bytes]:
        with _opened(path) as archive:
            return {name: _member(archive, name) for name in archive.namelist()}

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
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"it has {image.width} x {image.height} pixels")
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


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            yield archive
    except NOT_UNPACKED as error:
        raise RunError(
            f"{path} is damaged ({error}); put it back, or remove it and the rollouts of its step"
        ) from error


def _names_in(path: Path) -> list[str]:
    with _opened(path) as archive:
        return archive.namelist()


def _member(archive: zipfile.ZipFile, name: str, at_most: int = LARGEST_IMAGE) -> bytes:
    """A file of an archive, of which no more is unpacked than the archive says that there is."""
    size = archive.getinfo(name).file_size
    if size > at_most:
        raise ValueError(f"{name} unpacks to {size} bytes, more than {at_most}")
    return archive.read(name)


def _archive(files: dict[str, bytes]) -> bytes:
    """Stored as they are: PNG is packed already."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, WRITTEN), files[name])
    return data.getvalue()
