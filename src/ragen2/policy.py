"""Contracts of everything that can be sampled from, scored with, or trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, Self, runtime_checkable

from ragen2.types import Completion, FloatArray, Image, IntArray, Message, Sample, Update

if TYPE_CHECKING:
    from torch import Tensor

KLEstimator = Literal["k1", "k2", "k3", "abs", "k1+", "k3+"]


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One micro-batch's loss positions, all of length N. ``ref_logp_N`` is None when no KL is asked for."""

    logp_N: Tensor
    old_logp_N: Tensor
    advantages_N: Tensor
    entropy_N: Tensor
    ref_logp_N: Tensor | None


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Loss of each token and the parts it is made of (the parts are for the log only)."""

    total_N: Tensor
    parts: dict[str, Tensor]


class Objective(Protocol):
    """What a learner needs of whatever it minimises."""

    @property
    def needs_reference(self) -> bool:
        """Whether ``loss`` wants ``ref_logp_N``."""
        ...

    def loss(self, inputs: LossInputs) -> TokenLoss:
        """Loss of each token."""
        ...

    def token_weights(self, lengths: Sequence[int]) -> FloatArray:
        """Weight of each sequence's tokens."""
        ...


@dataclass(frozen=True, slots=True)
class CriticSettings:
    """How the critic of an algorithm that has one is trained."""

    lr: float
    warmup: int = 0
    """First steps that train the critic alone."""
    value_clip: float = 0.0
    """How far one update may move a value before it is cut; 0 is off."""


class Gradient(Protocol):
    """One number per trained parameter, where the learner has memory for them."""

    def dot(self, other: Self) -> float:
        """Inner product, summed in double precision."""
        ...

    def added_to(self, total: Self | None, factor: float) -> Self:
        """``factor`` times this, added to a sum, which is changed; without one, a new sum."""
        ...


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample. ``top_p`` of 1 and ``top_k`` of 0 switch those cuts off.

    A temperature of 0 takes the likeliest token; log-probs are then those of temperature 1.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 128
    stop: tuple[str, ...] = ("</answer>",)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One completion asked for. ``key`` names its own random stream, whatever else is in the batch."""

    prompt_ids_T: IntArray
    key: tuple[int | str, ...]
    images: tuple[Image, ...] = ()
    """Those in the prompt, in the order of their tokens."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One reply asked for in text; ``key`` names its random stream, as far as the writer has one."""

    messages: tuple[Message, ...]
    key: tuple[int | str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A continuation to be scored after a context."""

    context_ids_T: IntArray
    continuation_ids_T: IntArray
    images: tuple[Image, ...] = ()
    """Those in the context, in the order of their tokens."""


class ChatTokenizer(Protocol):
    """Turns chat into token ids, piece by piece, so that sampled ids are never touched.

    The images of a message become the model's own image tokens.
    """

    @property
    def blind_because(self) -> str:
        """Why messages may not hold images; empty where they may."""
        ...

    def start(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation up to the point where the assistant writes."""
        ...

    def start_text(self, text: str) -> list[int]:
        """Ids of a plain text as a prompt, with what the tokenizer begins every text with."""
        ...

    def bridge(self, message: Message, *, after_eos: bool) -> list[int]:
        """Ids between an assistant's sampled tokens and its next turn, ``message`` in between."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, without special tokens."""
        ...

    def decode(self, ids_T: Sequence[int]) -> str:
        """Text of ids; special tokens left out."""
        ...

    def with_arguments(self, arguments: Mapping[str, bool | int | float | str]) -> Self:
        """The same with arguments for its chat template; one without a template is the same."""
        ...


class Sampler(Protocol):
    """Writes completions."""

    max_context: int

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The tokenizer that prompts must be made with."""
        ...

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """One completion per request, in order."""
        ...


@runtime_checkable
class TextSampler(Protocol):
    """Writes replies to conversations and gives nothing of their tokens: ids and log-probs are empty.

    So it can be played and judged by what it does; it can be neither cross-scored nor trained.
    """

    def reply(self, requests: Sequence[ChatRequest], params: SamplingParams) -> list[Completion]:
        """One completion per request, in order."""
        ...


@runtime_checkable
class IdsOnly(Protocol):
    """A sampler that is given prompts as token ids and nothing else: images would be lost."""

    ids_only: str
    """What it is, for messages to a user."""


class Scorer(Protocol):
    """Gives log-probs of text it did not necessarily write."""

    def score(self, pairs: Sequence[Pair], temperature: float = 1.0) -> list[FloatArray]:
        """Log-prob of every continuation token, one array per pair."""
        ...


class Policy(Sampler, Scorer, Protocol):
    """Samples, and scores with the same weights."""


class Learner(Protocol):
    """Holds trainable weights."""

    def update(self, samples: Sequence[Sample], objective: Objective, *, scale: float) -> Update:
        """One pass of optimisation over ``samples``; the loss is multiplied by ``scale``."""
        ...

    def gradient(self, samples: Sequence[Sample], objective: Objective) -> Gradient:
        """The gradient of the loss over all samples; nothing is changed."""
        ...

    def kl_to_reference(
        self, samples: Sequence[Sample], estimator: KLEstimator
    ) -> list[FloatArray]:
        """Estimated KL to the starting model at each written token, under the sampling log-probs."""
        ...

    def values(self, samples: Sequence[Sample]) -> list[FloatArray]:
        """The critic's value before each written token."""
        ...

    def update_critic(
        self, samples: Sequence[Sample], settings: CriticSettings
    ) -> dict[str, float]:
        """Train the critic towards each sample's ``returns_T``; metrics of what was done."""
        ...

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder plus the optimiser's state into an existing folder."""
        ...

    def load(self, folder: Path) -> None:
        """Restore weights and optimiser exactly from ``save``."""
        ...

    def describe(self) -> Mapping[str, str]:
        """Facts for the log: parameters, device, type."""
        ...
