"""History -> token ids of the next prompt. Sampled ids are carried over as they are, in every mode."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ragen2.envs.base import Env, Episode
from ragen2.policy import ChatTokenizer
from ragen2.rollout.reply import ReplyFormat
from ragen2.types import Completion, Finish, Image, Message


def system_message(env: Env, form: ReplyFormat) -> Message:
    """Rules of the environment, then the reply format."""
    return Message("system", f"{env.instruction}\n{form.description}")


def turn_message(
    observation: str, *, actions_left: int, problem: str, image: Image | None = None
) -> Message:
    """What the user says at the start of a turn; ``problem`` is what was wrong with the last reply."""
    warning = f"Your last reply was not valid: {problem}.\n" if problem else ""
    shown = f"{observation}\n" if observation or image is None else ""
    images = () if image is None else (image,)
    return Message("user", f"{warning}{shown}Actions left {actions_left}", images)


def shown_image(episode: Episode) -> Image | None:
    """The image that the agent is shown now, if it is shown one."""
    pixels = episode.shown_image
    return None if pixels is None else Image(pixels)


def with_images_of(users: Sequence[Message], window: int) -> list[Message]:
    """The messages with the images of the newest ``window`` alone; 0 keeps all."""
    first = 0 if window == 0 else max(0, len(users) - window)
    return [
        dataclasses.replace(user, images=()) if turn < first and user.images else user
        for turn, user in enumerate(users)
    ]


def first_visible_turn(num_turns: int, window: int) -> int:
    """Index of the oldest turn that stays in a prompt for turn ``num_turns`` (counted from 0).

    ``window`` counts turns including the one about to be written; 0 keeps all.
    """
    return 0 if window == 0 else max(0, num_turns - window + 1)


def prompt_ids(
    tokenizer: ChatTokenizer,
    system: Message,
    users: Sequence[Message],
    completions: Sequence[Completion],
    *,
    first: int,
    prefill_ids: Sequence[int],
) -> list[int]:
    """Ids of system, the visible turns with their sampled tokens, and the newest user message."""
    if len(users) != len(completions) + 1:
        raise ValueError(f"{len(users)} user messages need {len(users) - 1} completions")
    ids = [*tokenizer.start([system, users[first]]), *prefill_ids]
    for turn in range(first, len(completions)):
        completion = completions[turn]
        ids.extend(completion.ids_T.tolist())
        ids.extend(tokenizer.bridge(users[turn + 1], after_eos=completion.finish is Finish.EOS))
        ids.extend(prefill_ids)
    return ids
