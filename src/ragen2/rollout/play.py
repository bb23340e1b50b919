"""Play groups of episodes in lockstep: one batched sample a turn for all that still run."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ragen2.envs.base import Env, Episode, Step
from ragen2.policy import Request, Sampler
from ragen2.rollout.context import first_visible_turn, prompt_ids, system_message, turn_message
from ragen2.rollout.reply import action_span, parse_reply, reasoning_span
from ragen2.rollout.settings import Rollout
from ragen2.types import Completion, Group, Message, Prompt, Reply, StopReason, Trajectory, Turn

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """One episode to play."""

    seed: int
    luck: int


def play(
    env: Env,
    sampler: Sampler,
    groups: Sequence[Sequence[Task]],
    rollout: Rollout,
    *,
    key: tuple[int | str, ...],
) -> list[Group]:
    """Play every task of every group; members of a group must share their seed.

    ``key`` names the random streams of sampling: the same key, weights and tasks give the same groups.
    """
    plays = [[_Play(env, rollout, task) for task in group] for group in groups]
    everyone = [one for group in plays for one in group]
    prefill_ids = sampler.tokenizer.encode(rollout.form.prefill)
    while running := [one for one in everyone if one.stop is None]:
        asked = [one for one in running if one.prepare(sampler, prefill_ids)]
        requests = [one.request(key) for one in asked]
        completions = sampler.sample(requests, rollout.sampling) if requests else []
        for one, completion in zip(asked, completions, strict=True):
            one.take(completion, sampler)
    return [
        Group(members[0].prompt, tuple(one.trajectory() for one in members)) for members in plays
    ]


@dataclass(slots=True)
class _Play:
    """An episode under way."""

    env: Env
    rollout: Rollout
    task: Task
    episode: Episode = field(init=False)
    system: Message = field(init=False)
    users: list[Message] = field(init=False)
    turns: list[Turn] = field(default_factory=list)
    next_ids: list[int] = field(default_factory=list)
    actions_taken: int = 0
    stop: StopReason | None = None
    solved: bool = False
    error: str = ""

    def __post_init__(self) -> None:
        self.episode = self.env.start(self.task.seed, self.task.luck)
        self.system = system_message(self.env, self.rollout.form)
        self.users = [self._user_message(self.episode.observation, problem="")]

    @property
    def prompt(self) -> Prompt:
        return Prompt(self.env.kind, self.task.seed, (self.system, self.users[0]))

    def prepare(self, sampler: Sampler, prefill_ids: list[int]) -> bool:
        """Build the next prompt; False (and the end) when it does not fit the model's context."""
        self.next_ids = prompt_ids(
            sampler.tokenizer,
            self.system,
            self.users,
            [turn.completion for turn in self.turns],
            first=first_visible_turn(len(self.turns), self.rollout.visible_turns),
            prefill_ids=prefill_ids,
        )
        if len(self.next_ids) + self.rollout.max_tokens > sampler.max_context:
            self.stop = StopReason.CONTEXT_FULL
        return self.stop is None

    def request(self, key: tuple[int | str, ...]) -> Request:
        return Request(
            np.array(self.next_ids, dtype=np.int64),
            (*key, self.task.seed, self.task.luck, len(self.turns)),
        )

    def take(self, completion: Completion, sampler: Sampler) -> None:
        """Parse the reply, take its actions, record the turn."""
        reply = parse_reply(completion, self.rollout.form)
        steps, executed, observation = self._act(reply)
        is_bad = not reply.valid or any(not step.valid for step in steps)
        self.turns.append(
            Turn(
                prompt_ids_T=np.array(self.next_ids, dtype=np.int64),
                completion=completion,
                reply=reply,
                reasoning_span=reasoning_span(completion, self.rollout.form, sampler.tokenizer),
                observation=observation,
                reward=float(sum(step.reward for step in steps)),
                penalty=self.rollout.format_penalty if is_bad else 0.0,
                executed=tuple(executed),
                action_span=action_span(completion, self.rollout.form, sampler.tokenizer),
            )
        )
        if self.stop is None and self.actions_taken >= self.env.max_actions:
            self.stop = StopReason.MAX_ACTIONS
        if self.stop is None and len(self.turns) >= self.env.max_turns:
            self.stop = StopReason.MAX_TURNS
        unknown = [action for step, action in zip(steps, executed, strict=True) if not step.valid]
        problem = reply.problem or (f"unknown action {unknown[0][:40]!r}" if unknown else "")
        self.users.append(self._user_message(observation, problem))

    def trajectory(self) -> Trajectory:
        assert self.stop is not None  # noqa: S101 - play() runs until every episode has stopped
        return Trajectory(
            self.prompt, self.task.luck, tuple(self.turns), self.stop, self.solved, self.error
        )

    def _act(self, reply: Reply) -> tuple[list[Step], list[str], str]:
        """The steps taken, their actions, and what is shown after them; nothing if that raised."""
        steps: list[Step] = []
        executed: list[str] = []
        try:
            for action in reply.actions[: self.env.max_actions - self.actions_taken]:
                steps.append(self.episode.step(action))
                executed.append(action)
                self.actions_taken += 1
                if steps[-1].done:
                    self.stop, self.solved = StopReason.DONE, steps[-1].solved
                    break
            observation = self.episode.observation
        except Exception:  # noqa: BLE001 - the one boundary where a broken environment becomes data
            self.error, observation = traceback.format_exc(), ""
            self.stop, self.solved = StopReason.ENV_ERROR, False
            logger.warning("%s seed %d raised: %s", self.env.kind, self.task.seed, self.error)
        return steps, executed, observation

    def _user_message(self, observation: str, problem: str) -> Message:
        left = self.env.max_actions - self.actions_taken
        return turn_message(observation, actions_left=left, problem=problem)
