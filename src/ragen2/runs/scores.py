"""ScoreRecord: the schema of one file of scores/, the score matrices of one step with their texts.

The file stands for itself: a report shows which trace fits which prompt without the rollouts, which
may not have been saved, and without a tokenizer. Rows and columns beyond ``MAX_ROWS`` and texts beyond
``MAX_CHARACTERS`` are left out; the metrics of the step are about all of them.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from ragen2.errors import RunError
from ragen2.reading import read_bytes, too_large
from ragen2.runs.files import files_by_step, write_atomically
from ragen2.types import Image, ScoreMatrix

FOLDER = "scores"
MAX_ROWS = 128
"""Traces, and prompts, that are kept of a scope."""
MAX_CHARACTERS = 4000
"""Of each text that are kept."""
LARGEST = 32 * 2**20
"""Bytes of a file, unpacked: texts of all scopes within these limits take a few."""
MOST_COMMAS = 2_000_000
"""Between the values of a file and in its texts: a value takes thirty times the memory of its digit."""
CUT = " […]"
DECIMALS = 3


class RowSource(BaseModel):
    """Where a reasoning trace comes from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    label: str
    """Short name: ``seed 17, play 3``."""
    prompt: str
    """What the model was shown last before it wrote."""
    prompt_label: str
    action: str = ""
    """What was done after it; empty where unknown."""
    turn: int = 1
    line: int | None = None
    """Line of the step's rollout file, from 0; None when it is not in there."""
    image: str = ""
    """Names the image that the model was shown last; empty where there was none."""


class ScopeScores(BaseModel):
    """One score matrix: N reasoning traces (rows) under P prompts (columns)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Of the scope: ``first_turn``, ``turn_2``, ``trajectory``, ``probe``."""
    logp: list[list[FiniteFloat | None]]
    """Summed log-prob of each trace under each prompt; None where the pair was not scored."""
    length: list[int]
    """Tokens of each trace."""
    owner: list[int]
    """Column of each trace's own prompt."""
    prompts: list[str]
    """What the model was shown last, of each column."""
    prompt_labels: list[str]
    reasonings: list[str]
    labels: list[str]
    actions: list[str]
    turn: list[int]
    line: list[int | None]
    num_traces: int
    """Traces that were scored; more than there are rows when some were left out here."""
    num_prompts: int
    prompt_images: list[str] = Field(default_factory=list)
    """Name of the image that each column showed last, empty for none; no list where none did."""
    _images: tuple[Image, ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Every row and every column has all its parts."""
        rows: list[Sized] = [self.length, self.owner, self.turn, self.line]
        rows += [self.reasonings, self.labels, self.actions]
        columns: list[Sized] = [self.prompt_labels, self.prompt_images or self.prompts, *self.logp]
        if {len(self.logp)} != {len(part) for part in rows}:
            raise ValueError("its rows are not all of one number")
        if {len(self.prompts)} != {len(part) for part in columns}:
            raise ValueError("its columns are not all of one number")
        if not all(0 <= owner < len(self.prompts) for owner in self.owner):
            raise ValueError("an owner is no column")
        return self

    @property
    def images(self) -> tuple[Image, ...]:
        """The images that ``prompt_images`` names, before they are on disk."""
        return self._images

    @classmethod
    def of(
        cls,
        name: str,
        matrix: ScoreMatrix,
        sources: Sequence[RowSource],
        images: Sequence[Image] = (),
    ) -> ScopeScores:
        """The record of a matrix whose rows come from ``sources``, within the limits.

        ``images`` are those that the sources name.
        """
        rows = [row for row, owner in enumerate(matrix.owner_N.tolist()) if owner < MAX_ROWS]
        rows = rows[:MAX_ROWS]
        columns = min(matrix.logp_NP.shape[1], MAX_ROWS)
        kept = [sources[row] for row in rows]
        owner = matrix.owner_N[rows].tolist()
        shown = dict(zip(owner[::-1], kept[::-1], strict=True))
        named = [shown[p].image if p in shown else "" for p in range(columns)]
        found = cls(
            name=name,
            logp=[[_number(value) for value in matrix.logp_NP[row, :columns]] for row in rows],
            length=matrix.length_N[rows].tolist(),
            owner=owner,
            prompts=[_short(shown[p].prompt) if p in shown else "" for p in range(columns)],
            prompt_labels=[
                _short(shown[p].prompt_label) if p in shown else "" for p in range(columns)
            ],
            reasonings=[_short(one.text) for one in kept],
            labels=[_short(one.label) for one in kept],
            actions=[_short(one.action) for one in kept],
            turn=[one.turn for one in kept],
            line=[one.line for one in kept],
            num_traces=matrix.logp_NP.shape[0],
            num_prompts=matrix.logp_NP.shape[1],
            prompt_images=named if any(named) else [],
        )
        found._images = tuple(image for image in dict.fromkeys(images) if image.digest in named)
        return found


class ScoreRecord(BaseModel):
    """All matrices of one step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    step: int
    scopes: list[ScopeScores]


def scores_file(folder: Path, step: int) -> Path:
    """Where the scores of ``step`` lie in a run directory or an audit folder."""
    return folder / FOLDER / f"step_{step:06d}.json.gz"


def list_scores(folder: Path) -> list[tuple[int, Path]]:
    """Steps that have scores, with their files, earliest first."""
    return files_by_step(folder / FOLDER, ".json.gz")


def write_scores(folder: Path, record: ScoreRecord) -> None:
    """Write a step's file; a crash leaves the old one or the new one. Equal records give equal bytes."""
    path = scores_file(folder, record.step)
    try:
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, gzip.compress(record.model_dump_json().encode(), mtime=0))
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from error


def read_scores(path: Path) -> ScoreRecord:
    """One step's matrices."""
    try:
        data = read_bytes(path, LARGEST)
        if data.count(b",") > MOST_COMMAS:
            raise too_large(path, f"it holds more than {MOST_COMMAS:,} values")
        return ScoreRecord.model_validate_json(data)
    except (OSError, ValidationError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise RunError(
            f"{path} is damaged ({why}); remove it, the rest of the run is intact"
        ) from error


def _number(value: float) -> float | None:
    return round(float(value), DECIMALS) if np.isfinite(value) else None


def _short(text: str) -> str:
    """The text within its limit, and without halves of characters, which no file can hold."""
    whole = text.encode("utf-8", "replace").decode()
    return whole if len(whole) <= MAX_CHARACTERS else whole[:MAX_CHARACTERS] + CUT
