"""Whether a model can see what an environment shows: asked before anything is played."""

from __future__ import annotations

from ragen2.envs.base import HELD_OUT_SEEDS, Env
from ragen2.errors import ModelError
from ragen2.policy import Sampler, TextSampler
from ragen2.rollout.context import shown_image, system_message, turn_message
from ragen2.rollout.settings import Rollout


def refuse_blind(env: Env, sampler: Sampler | TextSampler) -> None:
    """Raise where images are shown to a model that cannot read them."""
    if env.shows_images and (reason := _blind_because(sampler)):
        raise ModelError(
            f"{env.kind} shows images, but {reason}; choose a vision-language model such as "
            "ragen2-tiny-vl, or an env.observation without images"
        )


def refuse_unseen(env: Env, sampler: Sampler, rollout: Rollout) -> None:
    """Raise also where the image of a first turn leaves no room for a reply."""
    refuse_blind(env, sampler)
    if not env.shows_images:
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


def _blind_because(sampler: Sampler | TextSampler) -> str:
    if isinstance(sampler, TextSampler):
        return "this server is sent words alone"
    return sampler.tokenizer.blind_because
