"""The nouns of the system: immutable values that flow from prompt to report.

Shape letters used here and everywhere: P prompts (groups), G trajectories of a group, N traces,
T tokens. Arrays carry them as a suffix: ``rewards_G``, ``logp_NP``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
PixelArray = npt.NDArray[np.uint8]

Role = Literal["system", "user", "assistant"]


class Finish(StrEnum):
    """Why the sampler stopped writing."""

    STOP = "stop"
    """A stop string was written."""
    EOS = "eos"
    """The model ended its message."""
    LENGTH = "length"
    """The token limit cut the reply."""


class StopReason(StrEnum):
    """Why an episode ended."""

    DONE = "done"
    """The environment reached a terminal state."""
    MAX_TURNS = "max_turns"
    MAX_ACTIONS = "max_actions"
    CONTEXT_FULL = "context_full"
    """The next prompt would not have fitted into the model's context."""
    ENV_ERROR = "env_error"
    """The environment raised; the trajectory keeps the traceback."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Image:
    """An image as an agent is shown it, height x width x 3 bytes. Equal pixels are equal values."""

    pixels: PixelArray
    digest: str = field(init=False)
    """Names the pixels: 32 hexadecimal digits of their SHA-256."""

    def __post_init__(self) -> None:
        pixels = self.pixels
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.size:
            raise ValueError(
                f"an image must be height x width x 3 bytes, got {pixels.shape} of {pixels.dtype}"
            )
        frozen = np.ascontiguousarray(pixels)
        if frozen is pixels:
            frozen = pixels.copy()
        frozen.flags.writeable = False
        hashed = hashlib.sha256(f"{frozen.shape}".encode() + frozen.tobytes()).hexdigest()[:32]
        object.__setattr__(self, "pixels", frozen)
        object.__setattr__(self, "digest", hashed)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.pixels.shape[0], self.pixels.shape[1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Image) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message; its images come before its text."""

    role: Role
    content: str
    images: tuple[Image, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """X: what a group shares. Equal prompts are equal values."""

    env: str
    seed: int
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """Exactly what the sampler produced: never cleaned, never tokenised again.

    ``logprobs_T`` are at the sampling temperature, one per sampled token. Of a model that gives text
    alone, neither ids nor log-probs are known, and both are empty.
    """

    ids_T: IntArray
    logprobs_T: FloatArray
    text: str
    finish: Finish

    def __post_init__(self) -> None:
        if self.ids_T.ndim != 1 or self.ids_T.shape != self.logprobs_T.shape:
            raise ValueError(
                f"a completion needs one log-prob per token, got {self.ids_T.size} ids and "
                f"{self.logprobs_T.size} log-probs"
            )


@dataclass(frozen=True, slots=True)
class Reply:
    """The parsed view of a completion: Z (reasoning) and A (actions)."""

    reasoning: str
    actions: tuple[str, ...]
    problem: str = ""
    """Why the reply is not well-formed, in one phrase; empty when it is."""

    @property
    def valid(self) -> bool:
        """The reply had the asked-for form and at least one action."""
        return not self.problem


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One exchange: what the model saw, what it wrote, what came of it."""

    prompt_ids_T: IntArray
    """Every token the model saw before it wrote, including a pre-filled opening tag. The places of an
    image hold the model's own image token."""
    completion: Completion
    reply: Reply
    reasoning_span: tuple[int, int]
    """Half-open range of ``completion.ids_T`` that is the reasoning; empty when there is none."""
    observation: str
    """What the environment showed after the actions."""
    reward: float
    """Sum of the environment's rewards of this turn, without the format penalty."""
    penalty: float
    executed: tuple[str, ...]
    """The actions that the environment knew and took, in order."""
    effective: tuple[bool, ...] | None = None
    """Which of them changed the state; None where that was not recorded."""
    unknown: tuple[str, ...] = ()
    """Actions that the environment does not know; they did nothing."""
    action_span: tuple[int, int] = (0, 0)
    """Half-open range of ``completion.ids_T`` between the answer's tags; empty without an action."""
    images: tuple[Image, ...] = ()
    """The images in ``prompt_ids_T``, in the order of their tokens."""
    shown_image: Image | None = None
    """What the environment showed after the actions, beside ``observation``."""

    @property
    def problem(self) -> str:
        """Why the reply could not be executed as written, in one phrase; empty when it could."""
        unknown = f"unknown action {self.unknown[0][:40]!r}" if self.unknown else ""
        return self.reply.problem or unknown

    @property
    def shown(self) -> tuple[str, str]:
        """What was shown after the actions as a value to compare: text, and name of the image."""
        return self.observation, self.shown_image.digest if self.shown_image else ""

    @property
    def reasoning_ids_T(self) -> IntArray:
        """The sampled tokens of the reasoning."""
        start, end = self.reasoning_span
        return self.completion.ids_T[start:end]

    @property
    def action_ids_T(self) -> IntArray:
        """The sampled tokens of the answer."""
        start, end = self.action_span
        return self.completion.ids_T[start:end]


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One whole episode."""

    prompt: Prompt
    luck: int
    turns: tuple[Turn, ...]
    stop: StopReason
    solved: bool
    error: str = ""
    """Traceback when ``stop`` is ``ENV_ERROR``."""

    @property
    def reward(self) -> float:
        """Return of the episode: all rewards and format penalties."""
        return float(sum(turn.reward + turn.penalty for turn in self.turns))

    @property
    def num_tokens(self) -> int:
        """Sampled tokens over all turns."""
        return sum(len(turn.completion.ids_T) for turn in self.turns)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """All trajectories of one prompt."""

    prompt: Prompt
    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        if not self.trajectories:
            raise ValueError(f"group {self.prompt.env}/{self.prompt.seed} has no trajectories")
        for trajectory in self.trajectories:
            if trajectory.prompt != self.prompt:
                raise ValueError(
                    f"members of group {self.prompt.env}/{self.prompt.seed} have different prompts; "
                    "within-group variance would compare different tasks"
                )

    @property
    def rewards_G(self) -> FloatArray:
        """Returns of the members, in order."""
        return np.array([trajectory.reward for trajectory in self.trajectories])


@dataclass(frozen=True, slots=True, eq=False)
class ScoreMatrix:
    """Summed log-probs of N traces under P distinct prompts: everything MI needs.

    NaN means that the pair was not scored. A trace is scored under its own prompt and, where there are
    others, under one of them at least.
    """

    logp_NP: FloatArray
    length_N: IntArray
    owner_N: IntArray
    """Column of each trace's true prompt."""

    def __post_init__(self) -> None:
        if self.logp_NP.ndim != 2 or self.logp_NP.size == 0:
            raise ValueError(f"logp_NP must be N x P and not empty, got {self.logp_NP.shape}")
        rows, columns = self.logp_NP.shape
        if self.length_N.shape != (rows,) or self.owner_N.shape != (rows,):
            raise ValueError(
                f"length_N and owner_N must have one entry for each of {rows} traces, got "
                f"{self.length_N.shape} and {self.owner_N.shape}"
            )
        if np.isinf(self.logp_NP).any():
            raise ValueError("logp_NP holds infinite scores; drop those traces first")
        if (self.length_N < 1).any():
            raise ValueError("length_N must be at least 1: a trace without tokens has no score")
        if (self.owner_N < 0).any() or (self.owner_N >= columns).any():
            raise ValueError(f"owner_N must name columns 0..{columns - 1}")
        self._check_scored()

    def _check_scored(self) -> None:
        scored_NP = np.isfinite(self.logp_NP)
        lacking_N = ~scored_NP[np.arange(len(self.owner_N)), self.owner_N]
        if lacking_N.any():
            raise ValueError(
                f"trace {lacking_N.argmax()} is not scored under its own prompt (NaN); score it or "
                "drop the trace"
            )
        alone_N = scored_NP.sum(1) < min(2, self.logp_NP.shape[1])
        if alone_N.any():
            raise ValueError(
                f"trace {alone_N.argmax()} is scored under its own prompt alone; it needs another to "
                "be compared with"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Which prompts a filter keeps, and why. A filter describes; it never edits the batch."""

    kept_P: BoolArray
    scores_P: FloatArray
    reason: str = ""
    """Why nothing was kept; empty otherwise."""
    weights_P: FloatArray | None = None
    """What each prompt's advantages are multiplied by; None is 1 for all."""
    members: tuple[BoolArray, ...] | None = None
    """Which members of each group are updated on; None is all. Credit still compares whole groups."""

    @property
    def kept_weights(self) -> FloatArray:
        """Weight of each kept prompt, in order."""
        if self.weights_P is None:
            return np.ones(int(self.kept_P.sum()))
        return np.asarray(self.weights_P[self.kept_P])

    def kept_members(self, kept: Sequence[Group]) -> list[BoolArray]:
        """For each kept group which of its members are updated on."""
        if self.members is None:
            return [np.ones(len(group.trajectories), dtype=np.bool_) for group in kept]
        return [rows for rows, is_kept in zip(self.members, self.kept_P, strict=True) if is_kept]

    @property
    def kept_ratio(self) -> float:
        """Kept prompts over all prompts."""
        return float(self.kept_P.mean())

    def apply(self, groups: Sequence[Group]) -> list[Group]:
        """The kept groups, in their old order."""
        return [group for group, kept in zip(groups, self.kept_P, strict=True) if kept]


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One training sequence. ``loss_mask_T`` is true exactly at sampled tokens."""

    ids_T: IntArray
    loss_mask_T: BoolArray
    old_logprobs_T: FloatArray
    """Sampling log-probs at loss positions, 0 elsewhere."""
    advantages_T: FloatArray
    """Advantage at loss positions, 0 elsewhere."""
    temperature: float = 1.0
    """Temperature the tokens were sampled at; their log-probs are taken at the same."""
    values_T: FloatArray | None = None
    """The critic's value before each written token, 0 elsewhere; None without a critic."""
    returns_T: FloatArray | None = None
    """What the critic should have said, 0 elsewhere; None without a critic."""
    images: tuple[Image, ...] = ()
    """The images in ``ids_T``, in the order of their tokens."""

    def __post_init__(self) -> None:
        shapes = {
            self.ids_T.shape,
            self.loss_mask_T.shape,
            self.old_logprobs_T.shape,
            self.advantages_T.shape,
        }
        if len(shapes) != 1:
            raise ValueError(f"a sample's arrays must have one length, got {sorted(shapes)}")
        if self.loss_mask_T.size and self.loss_mask_T[0]:
            raise ValueError(
                "the first token of a sample has nothing before it to be predicted from"
            )


@dataclass(frozen=True, slots=True)
class Update:
    """What one optimiser phase did."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    num_tokens: int = 0
    """Tokens that carried loss."""
    num_steps: int = 0
    """Optimiser steps taken."""


def context_key(ids_T: IntArray, images: Sequence[Image] = ()) -> bytes:
    """What a model reads, as a value to compare: equal ids with other images are something else."""
    return ids_T.tobytes() + "".join(image.digest for image in images).encode()
