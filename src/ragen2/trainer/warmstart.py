"""Warm start: a supervised cold start of any model on scripted expert episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field, SerializeAsAny

from ragen2.algorithms import token_weights
from ragen2.backends.settings import LearnerSettings, ModelSettings, NewModel
from ragen2.component import Settings
from ragen2.envs import FrozenLake
from ragen2.envs.base import HELD_OUT_SEEDS, Env, Episode
from ragen2.envs.guard import OPTIONAL, missing_methods, start_episode
from ragen2.errors import MissingMethod
from ragen2.policy import LossInputs, TokenLoss
from ragen2.rollout.context import prompt_ids, shown_image
from ragen2.rollout.prompts import Opening, PromptSettings, PromptWriter, TurnState
from ragen2.rollout.reply import render_reply
from ragen2.rollout.settings import Rollout
from ragen2.seeding import stream
from ragen2.types import FloatArray, Message, Sample

if TYPE_CHECKING:
    from ragen2.backends.learner.learner import TorchLearner
    from ragen2.backends.tokenizer import TemplateTokenizer

CORPUS_EPISODES = 400
"""Scripted episodes of each observation form that a new tokenizer is trained on."""


class WarmstartConfig(Settings):
    """Everything that decides a warm start."""

    seed: int = Field(0, ge=0, description="names every random stream")
    steps: int = Field(300, ge=1, description="optimiser steps")
    batch: int = Field(64, ge=1, le=100_000, description="scripted episodes per step")
    quality: float = Field(
        0.5, ge=0.0, le=1.0, description="chance that a turn plays the expert's move"
    )
    groundedness: float = Field(
        1.0, ge=0.0, le=1.0, description="chance that reasoning describes its own state"
    )
    final_lr_ratio: float = Field(0.1, ge=0.0, le=1.0, description="lr at the last step over lr")
    plugins: tuple[str, ...] = Field(
        (), description="modules, or .py files beside this one, that bring more kinds"
    )
    env: SerializeAsAny[Env] = Field(default_factory=FrozenLake, description="the task")
    model: ModelSettings = Field(
        default_factory=ModelSettings, description="the model to start from"
    )
    new: NewModel | None = Field(None, description="make a new model of this shape instead")
    rollout: Rollout = Field(default_factory=Rollout, description="form of the replies")
    prompt: PromptSettings = Field(
        default_factory=lambda: PromptSettings(style="brief"),
        description="what the model is shown; runs that start from it go on with the same",
    )
    learner: LearnerSettings = Field(
        default_factory=lambda: LearnerSettings(lr=3e-4), description="the optimiser"
    )


def default_recipe() -> Path:
    """The recipe that made the embedded model."""
    return Path(str(resources.files("ragen2") / "recipes" / "ragen2_tiny.toml"))


def require_script(env: Env) -> None:
    """Raise where the environment lacks what lessons are written with."""
    if missing := missing_methods(env):
        raise MissingMethod(
            f"a warm start is written with {', '.join(OPTIONAL)}, and {env.kind} has no "
            f"{', no '.join(missing)}; define {'it' if len(missing) == 1 else 'them'} in its episodes"
        )


def warmstart(
    config: WarmstartConfig,
    learner: TorchLearner,
    report: Callable[[int, float], None] = lambda *_: None,
    *,
    done: int = 0,
) -> float:
    """Train ``learner`` on fresh scripted episodes every step; return the last step's loss.

    ``report`` hears each step's number and mean negative log-likelihood per token. ``done`` steps are behind
    it already: every step has episodes of its own, so the rest is what it would have been.
    """
    require_script(config.env)
    script = Script(config.quality, config.groundedness)
    writer = PromptWriter.of(config.env, config.rollout, config.prompt)
    loss = float("nan")
    for step in range(done, config.steps):
        first = step * config.batch
        samples = [
            dialogue_sample(lesson, learner.tokenizer, writer.form.prefill)
            for i in range(config.batch)
            for lesson in lessons(
                script_episode(writer, script, config.seed, first + i), config.rollout
            )
        ]
        learner.set_lr_scale(_lr_scale(step, config))
        update = learner.update(samples, Supervised(), scale=1.0)
        loss = update.metrics["negative_logp"]
        report(step + 1, loss)
    return loss


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One scripted episode: ``replies[i]`` answers ``users[i]``."""

    opening: Opening
    users: tuple[Message, ...]
    replies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """How the scripted player behaves."""

    quality: float
    """Chance that a turn follows the expert; other turns act at random."""
    groundedness: float
    """Chance that a reasoning trace describes its own state; others are what the same script would
    have written at the start of another task, so that wording and length do not give them away."""


def script_episode(writer: PromptWriter, script: Script, seed: int, index: int) -> Dialogue:
    """Episode ``index`` of the script named ``seed``, on a task that is never evaluated on.

    The game, and every grounded reasoning trace, is the same at every groundedness: reasoning about other
    tasks draws from a stream of its own.
    """
    env, form = writer.env, writer.form
    rng = stream("script", seed, index)
    elsewhere = stream("script elsewhere", seed, index)
    task = HELD_OUT_SEEDS + int(rng.integers(2**40))
    episode = start_episode(env, task, index)
    opening = writer.opening(episode.observation)
    users: list[Message] = []
    replies: list[str] = []
    taken, is_done, reward = 0, False, None
    while not is_done and len(users) < env.max_turns and taken < env.max_actions:
        state = TurnState(
            episode.observation,
            env.max_actions - taken,
            turn=len(users) + 1,
            reward=reward,
            image=shown_image(episode),
        )
        users.append(writer.turn(state))
        most = min(form.max_actions, env.max_actions - taken)
        actions = _choose(episode, script, rng, most)
        is_grounded = rng.random() < script.groundedness
        reasoning = episode.explain(actions, rng)
        if not is_grounded:
            reasoning = _reason_elsewhere(env, script, elsewhere, most)
        replies.append(render_reply(reasoning, actions, form))
        reward = 0.0
        for action in actions:
            step = episode.step(action)
            taken, is_done, reward = taken + 1, step.done, reward + step.reward
            if is_done:
                break
    return Dialogue(opening, tuple(users), tuple(replies))


def lessons(dialogue: Dialogue, rollout: Rollout) -> list[Dialogue]:
    """The dialogue, or each of its turns alone where a prompt will hold no more than that."""
    if rollout.history != "current":
        return [dialogue]
    turns = zip(dialogue.users, dialogue.replies, strict=True)
    return [Dialogue(dialogue.opening, (user,), (reply,)) for user, reply in turns]


def dialogue_sample(dialogue: Dialogue, tokenizer: TemplateTokenizer, prefill: str) -> Sample:
    """A dialogue as one training sequence; loss on replies and on the end of each message."""
    prefill_ids = tokenizer.encode(prefill)
    first = dialogue.users[:1]
    ids = prompt_ids(tokenizer, dialogue.opening, first, [], first=0, prefill_ids=prefill_ids)
    is_written = [False] * len(ids)
    for turn, reply in enumerate(dialogue.replies):
        reply_ids = tokenizer.encode(reply)
        ids += reply_ids
        is_written += [True] * len(reply_ids)
        following = (
            dialogue.users[turn + 1] if turn + 1 < len(dialogue.users) else dialogue.users[turn]
        )
        bridge = tokenizer.bridge(following, after_eos=False)
        ends = bool(bridge) and bridge[0] in tokenizer.eos_ids
        if turn + 1 == len(dialogue.replies):
            bridge = bridge[:1] if ends else []
            ids += bridge
            is_written += [True] * len(bridge)
        else:
            ids += [*bridge, *prefill_ids]
            is_written += [ends] + [False] * (len(bridge) - 1 + len(prefill_ids))
    loss_mask_T = np.array(is_written)
    return Sample(
        ids_T=np.array(ids, dtype=np.int64),
        loss_mask_T=loss_mask_T,
        old_logprobs_T=np.zeros(len(ids)),
        advantages_T=loss_mask_T.astype(np.float64),
        images=tuple(image for user in dialogue.users for image in user.images),
    )


def tokenizer_corpus(config: WarmstartConfig) -> list[str]:
    """Texts a new model's tokenizer is trained on: scripted dialogues in every observation form."""
    texts = [f"{role}\n" for role in ("system", "user", "assistant")] * CORPUS_EPISODES
    script = Script(config.quality, config.groundedness)
    rng = stream("corpus", config.seed)
    for env in _observation_forms(config.env):
        writer = PromptWriter.of(env, config.rollout, config.prompt)
        for _ in range(CORPUS_EPISODES):
            index = int(rng.integers(2**31))
            dialogue = script_episode(writer, script, config.seed, index)
            texts.extend(message.content for message in dialogue.opening.messages)
            texts.extend(message.content for message in dialogue.users)
            texts.extend(writer.form.prefill + reply for reply in dialogue.replies)
    return texts


def _observation_forms(env: Env) -> list[Env]:
    if not isinstance(env, FrozenLake) or env.shows_images:
        return [env]
    return [
        env.model_copy(update={"observation": form}) for form in ("coord", "grid", "grid_coord")
    ]


def _lr_scale(step: int, config: WarmstartConfig) -> float:
    """Linear fall from 1 to ``final_lr_ratio``."""
    share = step / max(1, config.steps - 1)
    return 1.0 - share * (1.0 - config.final_lr_ratio)


def _choose(
    episode: Episode, script: Script, rng: np.random.Generator, most: int
) -> tuple[str, ...]:
    plan = episode.expert()
    count = int(rng.integers(1, most + 1))
    if plan and rng.random() < script.quality:
        return plan[:count]
    return tuple(episode.random_action(rng) for _ in range(count))


def _reason_elsewhere(env: Env, script: Script, rng: np.random.Generator, most: int) -> str:
    other = start_episode(env, HELD_OUT_SEEDS + int(rng.integers(2**40)), 0)
    return other.explain(_choose(other, script, rng, most), rng)


@dataclass(frozen=True, slots=True)
class Supervised:
    """Cross-entropy in the shape of an algorithm's loss; advantages are not looked at."""

    needs_reference: bool = False

    def loss(self, inputs: LossInputs) -> TokenLoss:
        """Minus log-prob."""
        return TokenLoss(-inputs.logp_N, {"negative_logp": -inputs.logp_N})

    def token_weights(self, lengths: Sequence[int]) -> FloatArray:
        """Each token of the batch counts the same."""
        return token_weights(lengths, "token_mean")
