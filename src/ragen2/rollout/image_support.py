"""Whether a model can read the images that an environment shows: checked before anything is played."""

from __future__ import annotations

from ragen2.envs.base import HELD_OUT_SEEDS, Env
from ragen2.errors import ConfigError, ModelError
from ragen2.policy import IdsOnly, Sampler, TextSampler
from ragen2.rollout.context import shown_image, system_message, turn_message
from ragen2.rollout.settings import Rollout


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


def require_vision(env: Env, sampler: Sampler | TextSampler, rollout: Rollout) -> None:
    """Raise also where the image of a first turn leaves no room for a reply."""
    refuse_blind(env, sampler)
    if not env.shows_images or isinstance(sampler, TextSampler):
        return
    episode = env.start(HELD_OUT_SEEDS, 0)
    image = shown_image(episode)
    user = turn_message(episode.observation, actions_left=env.max_actions, problem="", image=image)
    system = system_message(env, rollout.form)
    prefill = sampler.tokenizer.encode(rollout.form.prefill)
    length = len(sampler.tokenizer.start([system, user])) + len(prefill)
    if image is not None and length + rollout.max_tokens > sampler.max_context:
        height, width = image.size
        raise ModelError(
            f"a first prompt with an image of {width} x {height} pixels is {length} tokens; with "
            f"rollout.max_tokens {rollout.max_tokens} that is more than the {sampler.max_context} this "
            "model reads; show smaller images (env.cell_px) or choose another model"
        )
