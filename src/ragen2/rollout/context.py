"""History -> what a sampler is given for the next reply: token ids, or messages where it takes text alone.

Sampled ids are carried over as they are, whatever part of the history a prompt shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from ragen2.envs.base import HELD_OUT_SEEDS, Env, Episode
from ragen2.envs.guard import start_episode
from ragen2.errors import ConfigError, ModelError
from ragen2.policy import (
    ChatRequest,
    ChatTokenizer,
    IdsOnly,
    Request,
    Sampler,
    SamplingParams,
    TextSampler,
)
from ragen2.rollout.prompts import Opening, PromptSettings, PromptWriter, TurnState
from ragen2.rollout.reply import ReplyFormat, action_span, reasoning_span
from ragen2.rollout.settings import Rollout
from ragen2.types import Completion, Finish, Image, IntArray, Message

Key = tuple[int | str, ...]
Span = tuple[int, int]
LONGEST_OPENING = 16
"""Tokens that a chat template may open a reply with."""


def shown_image(episode: Episode) -> Image | None:
    """The image that the agent is shown now, if it is shown one."""
    pixels = episode.shown_image
    return None if pixels is None else Image(pixels)


def with_images_of(users: Sequence[Message], window: int) -> list[Message]:
    """The messages with the images of the newest ``window`` alone; 0 keeps all."""
    first = 0 if window == 0 else max(0, len(users) - window)
    return [
        replace(user, images=()) if turn < first and user.images else user
        for turn, user in enumerate(users)
    ]


def first_visible_turn(num_turns: int, window: int) -> int:
    """Index of the oldest turn that stays in a prompt for turn ``num_turns`` (counted from 0).

    ``window`` counts turns including the one about to be written; 0 keeps all.
    """
    return 0 if window == 0 else max(0, num_turns - window + 1)


def prompt_ids(
    tokenizer: ChatTokenizer,
    opening: Opening,
    users: Sequence[Message],
    completions: Sequence[Completion],
    *,
    first: int,
    prefill_ids: Sequence[int],
) -> list[int]:
    """Ids of the opening, the visible turns with their sampled tokens, and the newest user message.

    Replies of examples go in as they are, as sampled ones do: chat templates may leave parts of them out.
    """
    if len(users) != len(completions) + 1:
        raise ValueError(f"{len(users)} user messages need {len(users) - 1} completions")
    shown = [user for user, _ in opening.exchanges] + [users[first]]
    ids = tokenizer.start([opening.system, shown[0]])
    for (_, reply), user in zip(opening.exchanges, shown[1:], strict=True):
        ids += [*tokenizer.encode(reply), *tokenizer.bridge(user, after_eos=False)]
    ids += prefill_ids
    for turn in range(first, len(completions)):
        completion = completions[turn]
        ids.extend(completion.ids_T.tolist())
        ids.extend(tokenizer.bridge(users[turn + 1], after_eos=completion.finish is Finish.EOS))
        ids.extend(prefill_ids)
    return ids


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
    """How replies begin and are read: a sampler may open them by itself, or let nobody open them."""

    def prompt(
        self,
        opening: Opening,
        users: Sequence[Message],
        completions: Sequence[Completion],
        *,
        first: int,
    ) -> ModelInput | None:
        """The opening, the turns from ``first`` on and the newest user message; None if that is too long."""
        ...

    def ask(self, asked: Sequence[tuple[ModelInput, Key]]) -> list[Completion]:
        """One completion each, in order."""
        ...

    def spans(self, completion: Completion) -> tuple[Span, Span]:
        """Where the reasoning is among the sampled tokens, and where the actions are."""
        ...


def adapter_for(
    sampler: Sampler | TextSampler, rollout: Rollout, env: Env, prompt: PromptSettings
) -> SamplerAdapter:
    """What asks this sampler: by token ids, or by messages where it takes text alone."""
    form, params = prompt.form(env, rollout), rollout.sampling(env)
    if isinstance(sampler, TextSampler):
        return ChatAdapter(sampler, form, params)
    arguments = dict(prompt.template_arguments)
    if prompt.style == "native":
        arguments = {"enable_thinking": rollout.thinking, **arguments}
    tokenizer = sampler.tokenizer
    return TokenAdapter(
        sampler, tokenizer.with_arguments(arguments) if arguments else tokenizer, form, params
    )


def opened_by_template(tokenizer: ChatTokenizer, tag: str) -> bool:
    """Whether the model's own chat template opens a reply with ``tag``: it must not get a second."""
    asked = tokenizer.start([Message("user", ".")])
    return tokenizer.decode(asked[-LONGEST_OPENING:]).rstrip().endswith(tag)


class TokenAdapter:
    """Sampled ids are carried over as they are."""

    def __init__(
        self, sampler: Sampler, tokenizer: ChatTokenizer, form: ReplyFormat, params: SamplingParams
    ) -> None:
        is_open = opened_by_template(tokenizer, form.opening)
        self.form = replace(form, prefilled=form.prefilled or is_open)
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._params = params
        self._prefill_ids = [] if is_open else tokenizer.encode(form.prefill)

    def prompt(
        self,
        opening: Opening,
        users: Sequence[Message],
        completions: Sequence[Completion],
        *,
        first: int,
    ) -> ModelInput | None:
        """Ids, if they and a whole reply fit the model's context."""
        ids = prompt_ids(
            self._tokenizer, opening, users, completions, first=first, prefill_ids=self._prefill_ids
        )
        if len(ids) + self._params.max_tokens > self._sampler.max_context:
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
        return self._sampler.sample(requests, self._params)

    def spans(self, completion: Completion) -> tuple[Span, Span]:
        """Found by decoding."""
        return (
            reasoning_span(completion, self.form, self._tokenizer),
            action_span(completion, self.form, self._tokenizer),
        )


class ChatAdapter:
    """Messages in, text out. Nothing opens the reply for the model, and nothing is known of its tokens."""

    def __init__(self, sampler: TextSampler, form: ReplyFormat, params: SamplingParams) -> None:
        self.form = replace(form, prefilled=False)
        self._sampler = sampler
        self._params = params

    def prompt(
        self,
        opening: Opening,
        users: Sequence[Message],
        completions: Sequence[Completion],
        *,
        first: int,
    ) -> ModelInput | None:
        """Messages; only the server knows whether they fit."""
        messages = [*opening.messages, users[first]]
        for turn in range(first, len(completions)):
            messages += [Message("assistant", completions[turn].text), users[turn + 1]]
        return ModelInput(messages=tuple(messages))

    def ask(self, asked: Sequence[tuple[ModelInput, Key]]) -> list[Completion]:
        """One batch."""
        if not asked:
            return []
        requests = [ChatRequest(model_input.messages, key) for model_input, key in asked]
        return self._sampler.reply(requests, self._params)

    def spans(self, completion: Completion) -> tuple[Span, Span]:
        """No tokens, no spans."""
        del completion
        return (0, 0), (0, 0)


def refuse_blind(env: Env, sampler: Sampler | TextSampler) -> None:
    """Raise where images are shown to a model that cannot read them, or through one that drops them."""
    if not env.shows_images:
        return
    if isinstance(sampler, TextSampler):
        reason, cure = "this server is sent text alone", "let a model of this machine play"
    elif isinstance(sampler, IdsOnly):
        reason, cure = f"{sampler.ids_only} is sent token ids alone", "let the model itself play"
    else:
        reason = sampler.tokenizer.blind_because
        cure = "choose a vision-language model such as ragen2-tiny-vl"
    if reason:
        raise ModelError(
            f"{env.kind} shows images, but {reason}; {cure}, or take an env.observation without images"
        )


def refuse_images(env: Env, holder: str) -> None:
    """Raise where an environment shows images to ``holder``, which would drop them."""
    if env.shows_images:
        raise ConfigError(
            f"{env.kind} shows images, and {holder} holds text only; use ragen2 train, or an "
            "observation without images"
        )


def require_vision(
    env: Env, sampler: Sampler | TextSampler, rollout: Rollout, prompt: PromptSettings
) -> None:
    """Raise also where the image of a first turn leaves no room for a reply."""
    refuse_blind(env, sampler)
    if not env.shows_images or isinstance(sampler, TextSampler):
        return
    episode = start_episode(env, HELD_OUT_SEEDS, 0)
    image, writer = shown_image(episode), PromptWriter.of(env, rollout, prompt)
    user = writer.turn(TurnState(episode.observation, env.max_actions, image=image))
    asked = adapter_for(sampler, rollout, env, prompt).prompt(
        writer.opening(episode.observation), [user], [], first=0
    )
    if image is not None and asked is None:
        height, width = image.size
        raise ModelError(
            f"a first prompt with an image of {width} x {height} pixels and a reply of "
            f"{rollout.reply_tokens(env)} tokens (rollout.max_tokens) are more than the "
            f"{sampler.max_context} tokens this model reads; show smaller images (env.cell_px) or choose "
            "another model"
        )
