"""Our environments for verifiers: a taskset of seeded tasks, and an env that plays the user's side.

Episodes are played by ``ragen2.rollout.play``, so that replies are read, rewarded and answered as in our
own loop; verifiers brings the model, the conversation and its record.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
from pydantic import Field

from ragen2.envs import Env, make
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.errors import EnvError
from ragen2.integrations.versions import require_tested
from ragen2.policy import ChatRequest, SamplingParams
from ragen2.rollout import Rollout, Task, play
from ragen2.rollout.context import refuse_images
from ragen2.rollout.prompts import PromptSettings, PromptWriter, Style
from ragen2.types import Completion, Finish, Trajectory, Turn

require_tested("verifiers")

import verifiers.v1 as vf  # noqa: E402 - the version is checked before an import that may fail

THREADS = ThreadPoolExecutor(max_workers=1024, thread_name_prefix="ragen2-play")
"""An episode waits in a thread of its own for the model's replies."""
LUCKS = 2**31
Split = Literal["held_out", "train"]


class RagenTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]  # verifiers is checked as untyped
    """Which tasks, and what replies must look like: ``--env.taskset.kind Sokoban``."""

    kind: str = "FrozenLake"
    """Name of the environment, as ``ragen2 envs list`` shows it."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the environment that differ from its own."""
    split: Split = "held_out"
    """Tasks that our training never plays, or those that it does, without end."""
    thinking: bool = True
    """Replies hold ``<think>..</think>`` before the answer."""
    actions_per_turn: int = Field(2, ge=1)
    """Actions taken from one reply."""
    format_penalty: float | None = Field(None, le=0.0)
    """Added to the return for each reply that is not valid; left out, as our own training has it."""
    style: Style = "reference"
    """Of the prompts: reference, brief or native."""


class RagenData(vf.TaskData):  # type: ignore[misc]
    """A task: all that is needed to play it anywhere."""

    kind: str
    settings: dict[str, Any]
    seed: int
    rollout: dict[str, Any]
    style: Style = "reference"


class RagenTask(vf.Task[RagenData, vf.State, vf.TaskConfig]):  # type: ignore[misc]
    """Scored by the environment itself."""

    @property
    def key(self) -> str:
        """The same task in every run, wherever it stands in the taskset."""
        return f"{self.data.kind}#{self.data.seed}"


class RagenTaskset(vf.Taskset[RagenTask, RagenTasksetConfig]):  # type: ignore[misc]
    """Tasks of one environment, each with its first prompt."""

    def __init__(self, config: RagenTasksetConfig) -> None:
        super().__init__(config)
        self.INFINITE = config.split == "train"

    def load(self) -> Iterator[RagenTask]:
        """Held-out seeds from 0 on, or training seeds without end."""
        config = self.config
        env = make(config.kind, **config.settings)
        refuse_images(env, "a task of verifiers")
        rollout = {
            "thinking": config.thinking,
            "actions_per_turn": config.actions_per_turn,
            "format_penalty": config.format_penalty,
        }
        writer = PromptWriter.of(env, Rollout(**rollout), _prompt(config.style))
        seeds = itertools.count(HELD_OUT_SEEDS) if self.INFINITE else range(HELD_OUT_SEEDS)
        for seed in seeds:
            system, first = writer.first(seed)
            data = RagenData(
                name=f"{config.kind}#{seed}",
                prompt=first.content,
                system_prompt=system.content,
                kind=config.kind,
                settings=config.settings,
                seed=seed,
                rollout=rollout,
                style=config.style,
            )
            yield RagenTask(data, config.task)


class RagenEnvConfig(vf.EnvConfig):  # type: ignore[misc]
    """One player, who only talks: no program of its own, no container."""

    player: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime=vf.SubprocessConfig())


class RagenEnv(vf.Env[RagenEnvConfig]):  # type: ignore[misc]
    """Plays a task with the player; its return is the reward."""

    async def run(self, task: RagenTask, agents: Any) -> None:
        """One episode, under luck of its own: members of a group share the task alone."""
        data, luck = task.data, secrets.randbelow(LUCKS)
        env, rollout = make(data.kind, **data.settings), Rollout(**data.rollout)
        loop = asyncio.get_running_loop()
        async with agents.player.interaction(task) as interaction:
            player = _Player(interaction, loop)
            prompt = _prompt(data.style)
            trajectory = await loop.run_in_executor(
                THREADS, _played, env, player, Task(data.seed, luck), rollout, prompt
            )
        _record(interaction.trace, trajectory, player.replies)


class _Player:
    """A ``TextSampler`` over one conversation of verifiers, asked from a thread."""

    def __init__(self, interaction: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.replies = 0
        """Replies that were given; none comes after a limit of verifiers was met."""
        self._interaction = interaction
        self._loop = loop
        self._is_over = False

    def reply(self, requests: Sequence[ChatRequest], params: SamplingParams) -> list[Completion]:
        """The next reply; verifiers knows the conversation, so only its newest message is sent."""
        del params  # sampling is set in verifiers
        (request,) = requests
        if self._is_over:
            return [_completion("")]
        # The task's own prompt opens the conversation.
        message = request.messages[-1].content if self.replies else None
        asked = asyncio.run_coroutine_threadsafe(self._interaction.turn(message), self._loop)
        segment = asked.result()
        if segment.terminated:
            self._is_over = True
            return [_completion("")]
        self.replies += 1
        return [_completion(segment.last_reply)]


def _prompt(style: Style) -> PromptSettings:
    """A task of verifiers is two messages, which leaves no place for worked examples."""
    return PromptSettings(style=style, examples=0)


def _played(
    env: Env, player: _Player, task: Task, rollout: Rollout, prompt: PromptSettings
) -> Trajectory:
    (group,) = play(env, player, [[task]], rollout, key=(task.luck,), prompt=prompt)
    return group.trajectories[0]


def _completion(text: str) -> Completion:
    no_ids, no_logprobs = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float64)
    return Completion(no_ids, no_logprobs, text, Finish.EOS)


def _record(trace: Any, trajectory: Trajectory, replies: int) -> None:
    """Return, success and format; turns that nobody answered any more do not count.

    An environment that broke is no play at all: verifiers may try the episode again.
    """
    if trajectory.error:
        raise EnvError(trajectory.error)
    turns: Sequence[Turn] = trajectory.turns[:replies]
    is_whole = replies == len(trajectory.turns)
    trace.record_reward("env_return", sum(turn.reward + turn.penalty for turn in turns))
    trace.record_metric("solved", float(trajectory.solved and is_whole))
    if turns:
        trace.record_metric("format_validity", float(np.mean([not t.problem for t in turns])))
    trace.info["luck"] = trajectory.luck
    trace.info["stop"] = trajectory.stop.value if is_whole else "cut"
