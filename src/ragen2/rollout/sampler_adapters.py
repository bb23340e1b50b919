"""How a sampler is model_input to: in token ids, or in words alone where a server knows nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from ragen2.policy import ChatRequest, Request, Sampler, SamplingParams, TextSampler
from ragen2.rollout.context import prompt_ids
from ragen2.rollout.reply import ReplyFormat, action_span, reasoning_span
from ragen2.rollout.settings import Rollout
from ragen2.types import Completion, Image, IntArray, Message

Key = tuple[int | str, ...]
Span = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class ModelInput:
    """What a model is shown before it writes: ids, or messages where there are no ids."""

    ids_T: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    messages: tuple[Message, ...] = ()
    images: tuple[Image, ...] = ()
    """Those among the ids, in the order of their tokens."""


class SamplerAdapter(Protocol):
    """Asks one kind of sampler."""

    form: ReplyFormat

    def prompt(
        self,
        system: Message,
        users: Sequence[Message],
        completions: Sequence[Completion],
        *,
        first: int,
    ) -> ModelInput | None:
        """System, the turns from ``first`` on and the newest user message; None if that is too long."""
        ...

    def ask(self, asked: Sequence[tuple[ModelInput, Key]]) -> list[Completion]:
        """One completion each, in order."""
        ...

    def spans(self, completion: Completion) -> tuple[Span, Span]:
        """Where the reasoning is among the sampled tokens, and where the actions are."""
        ...


def adapter_for(sampler: Sampler | TextSampler, rollout: Rollout) -> SamplerAdapter:
    """The way to speak to this sampler."""
    if isinstance(sampler, TextSampler):
        return ChatAdapter(sampler, rollout)
    return TokenAdapter(sampler, rollout)


class TokenAdapter:
    """Sampled ids are carried over as they are."""

    def __init__(self, sampler: Sampler, rollout: Rollout) -> None:
        self.form = rollout.form
        self._sampler = sampler
        self._rollout = rollout
        self._prefill_ids = sampler.tokenizer.encode(self.form.prefill)

    def prompt(
        self,
        system: Message,
        users: Sequence[Message],
        completions: Sequence[Completion],
        *,
        first: int,
    ) -> ModelInput | None:
        """Ids, if they and a whole reply fit the model's context."""
        tokenizer = self._sampler.tokenizer
        ids = prompt_ids(
            tokenizer, system, users, completions, first=first, prefill_ids=self._prefill_ids
        )
        if len(ids) + self._rollout.max_tokens > self._sampler.max_context:
            return None
        images = tuple(image for user in users[first:] for image in user.images)
        return ModelInput(np.array(ids, dtype=np.int64), images=images)

    def ask(self, asked: Sequence[tuple[ModelInput, Key]]) -> list[Completion]:
        """One batch."""
        if not asked:
            return []
        requests = [
            Request(model_input.ids_T, key, model_input.images) for model_input, key in asked
        ]
        return self._sampler.sample(requests, self._rollout.sampling)

    def spans(self, completion: Completion) -> tuple[Span, Span]:
        """Found by decoding."""
        tokenizer = self._sampler.tokenizer
        return (
            reasoning_span(completion, self.form, tokenizer),
            action_span(completion, self.form, tokenizer),
        )


class ChatAdapter:
    """Messages in, text out. Nothing opens the reply for the model, and nothing is known of its tokens."""

    def __init__(self, sampler: TextSampler, rollout: Rollout) -> None:
        self.form = replace(rollout.form, prefilled=False)
        self._sampler = sampler
        self._sampling: SamplingParams = rollout.sampling

    def prompt(
        self,
        system: Message,
        users: Sequence[Message],
        completions: Sequence[Completion],
        *,
        first: int,
    ) -> ModelInput | None:
        """Messages; only the server knows whether they fit."""
        messages = [system, users[first]]
        for turn in range(first, len(completions)):
            messages += [Message("assistant", completions[turn].text), users[turn + 1]]
        return ModelInput(messages=tuple(messages))

    def ask(self, asked: Sequence[tuple[ModelInput, Key]]) -> list[Completion]:
        """One batch."""
        if not asked:
            return []
        requests = [ChatRequest(model_input.messages, key) for model_input, key in asked]
        return self._sampler.reply(requests, self._sampling)

    def spans(self, completion: Completion) -> tuple[Span, Span]:
        """No tokens, no spans."""
        del completion
        return (0, 0), (0, 0)
