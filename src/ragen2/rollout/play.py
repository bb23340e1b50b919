"""Play groups of episodes: one batched sample per turn for all that still run.

Where a step of the environment waits for something else, the episodes are cut into fixed cohorts: while one
is sampled, the steps of the others run in threads. Which episodes are sampled together, and in which order,
never depends on how long anything takes, so the groups do not either.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Protocol, Self, TypeVar, runtime_checkable

from ragen2.envs.base import Env, Episode, Step
from ragen2.policy import Sampler, TextSampler
from ragen2.rollout.context import (
    Key,
    ModelInput,
    SamplerAdapter,
    adapter_for,
    first_visible_turn,
    refuse_blind,
    shown_image,
    system_message,
    turn_message,
    with_images_of,
)
from ragen2.rollout.reply import parse_reply
from ragen2.rollout.settings import Rollout
from ragen2.types import (
    Completion,
    Group,
    Image,
    Message,
    Prompt,
    Reply,
    StopReason,
    Trajectory,
    Turn,
)

SERVER_WORKERS = 32
"""Requests that a server gets at once, unless `rollout.env_workers` says otherwise."""
Result = TypeVar("Result")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """One episode to play."""

    seed: int
    luck: int


@runtime_checkable
class GroupPlayer(Protocol):
    """A sampler of several processes: whole groups are shared out among them, not single replies."""

    def play_groups(
        self, env: Env, groups: Sequence[Sequence[Task]], rollout: Rollout, key: Key
    ) -> list[Group]:
        """Every task of every group, as ``play`` does it."""
        ...


def play(
    env: Env,
    sampler: Sampler | TextSampler,
    groups: Sequence[Sequence[Task]],
    rollout: Rollout,
    *,
    key: Key,
) -> list[Group]:
    """Play every task of every group; members of a group must share their seed.

    ``key`` names the random streams of sampling: the same key, weights and tasks give the same groups.
    """
    refuse_blind(env, sampler)
    if isinstance(sampler, GroupPlayer):
        return sampler.play_groups(env, groups, rollout, key)
    adapter = adapter_for(sampler, rollout)
    plays = [[_Play(env, rollout, task) for task in group] for group in groups]
    everyone = [one for group in plays for one in group]
    workers = num_workers(env, rollout.env_workers)
    cohorts = _cohorts(everyone, rollout.cohorts or (2 if workers else 1))
    with Pool(workers) as pool:
        while any(cohort.is_running for cohort in cohorts):
            for cohort in cohorts:
                cohort.end_turn(adapter)
                cohort.begin_turn(adapter, key, pool)
    return [
        Group(members[0].prompt, tuple(one.trajectory() for one in members)) for members in plays
    ]


def _cohorts(everyone: list[_Play], count: int) -> list[_Cohort]:
    """Equal parts in order, so that members of a group, who share a prompt, mostly stay together."""
    size = max(1, -(-len(everyone) // count))
    return [_Cohort(everyone[at : at + size]) for at in range(0, len(everyone), size)]


@dataclass(slots=True)
class _Cohort:
    """Episodes that are sampled together."""

    plays: list[_Play]
    asked: list[tuple[_Play, Completion, Reply]] = field(default_factory=list)
    """The completion and reply of each episode in the turn under way."""
    acted: Callable[[], list[_Acted]] = list
    """Waits for what the environment made of it."""

    @property
    def is_running(self) -> bool:
        return bool(self.asked) or any(one.stop is None for one in self.plays)

    def begin_turn(self, adapter: SamplerAdapter, key: Key, pool: Pool) -> None:
        """Sample the next replies and start to act on them."""
        going = [one for one in self.plays if one.stop is None]
        ready = [one for one in going if one.prepare(adapter)]
        completions = adapter.ask([(one.model_input, one.key(key)) for one in ready])
        self.asked = [
            (one, completion, parse_reply(completion, adapter.form))
            for one, completion in zip(ready, completions, strict=True)
        ]
        self.acted = pool.begin([partial(one.act, reply) for one, _, reply in self.asked])

    def end_turn(self, adapter: SamplerAdapter) -> None:
        """Wait for the actions of the turn under way, if there is one, and record it."""
        for (one, completion, reply), acted in zip(self.asked, self.acted(), strict=True):
            one.record(completion, reply, acted, adapter)
        self.asked, self.acted = [], list


@dataclass(frozen=True, slots=True)
class _Acted:
    """The steps taken, their actions, and what is shown after them; nothing if that raised."""

    steps: list[Step]
    executed: list[str]
    observation: str
    image: Image | None = None
    error: str = ""


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
    model_input: ModelInput = field(default_factory=ModelInput)
    """What the model is shown before its next reply."""
    actions_taken: int = 0
    stop: StopReason | None = None
    solved: bool = False
    error: str = ""

    def __post_init__(self) -> None:
        self.episode = self.env.start(self.task.seed, self.luck)
        self.system = system_message(self.env, self.rollout.form)
        image = shown_image(self.episode)
        self.users = [self._user_message(self.episode.observation, image, problem="")]

    @property
    def luck(self) -> int:
        """What the environment draws from; the replies of members that share it differ all the same."""
        return self.rollout.luck_of(self.task.luck)

    @property
    def prompt(self) -> Prompt:
        return Prompt(self.env.kind, self.task.seed, (self.system, self.users[0]))

    def prepare(self, adapter: SamplerAdapter) -> bool:
        """Build the next prompt; False (and the end) when it does not fit the model's context."""
        model_input = adapter.prompt(
            self.system,
            with_images_of(self.users, self.rollout.image_window),
            [turn.completion for turn in self.turns],
            first=first_visible_turn(len(self.turns), self.rollout.visible_turns),
        )
        if model_input is None:
            self.stop = StopReason.CONTEXT_FULL
            return False
        self.model_input = model_input
        return True

    def key(self, key: Key) -> Key:
        """The random stream of the next reply."""
        return (*key, self.task.seed, self.task.luck, len(self.turns))

    def act(self, reply: Reply) -> _Acted:
        """Take the actions of a reply. May run in a thread of its own: it changes only the episode."""
        steps: list[Step] = []
        executed: list[str] = []
        try:
            for action in reply.actions[: self.env.max_actions - self.actions_taken]:
                steps.append(self.episode.step(action))
                executed.append(action)
                if steps[-1].done:
                    break
            return _Acted(steps, executed, self.episode.observation, shown_image(self.episode))
        except Exception:  # noqa: BLE001 - the one boundary where a broken environment becomes data
            return _Acted(steps, executed, "", error=traceback.format_exc())

    def record(
        self, completion: Completion, reply: Reply, acted: _Acted, adapter: SamplerAdapter
    ) -> None:
        """Note the turn, and whether it was the last."""
        steps, executed = acted.steps, acted.executed
        reasoning_span, action_span = adapter.spans(completion)
        self.actions_taken += len(steps)
        self._note_end(acted)
        is_bad = not reply.valid or any(not step.valid for step in steps)
        self.turns.append(
            Turn(
                prompt_ids_T=self.model_input.ids_T,
                completion=completion,
                reply=reply,
                reasoning_span=reasoning_span,
                observation=acted.observation,
                reward=float(sum(step.reward for step in steps)),
                penalty=self.rollout.format_penalty if is_bad else 0.0,
                executed=tuple(executed),
                action_span=action_span,
                images=self.model_input.images,
                shown_image=acted.image,
            )
        )
        if self.stop is None and len(self.turns) >= self.env.max_turns:
            self.stop = StopReason.MAX_TURNS
        unknown = [action for step, action in zip(steps, executed, strict=True) if not step.valid]
        problem = reply.problem or (f"unknown action {unknown[0][:40]!r}" if unknown else "")
        self.users.append(self._user_message(acted.observation, acted.image, problem))

    def trajectory(self) -> Trajectory:
        assert self.stop is not None  # noqa: S101 - play() runs until every episode has stopped
        return Trajectory(
            self.prompt, self.luck, tuple(self.turns), self.stop, self.solved, self.error
        )

    def _note_end(self, acted: _Acted) -> None:
        if acted.error:
            self.stop, self.error = StopReason.ENV_ERROR, acted.error
            logger.warning("%s seed %d raised: %s", self.env.kind, self.task.seed, acted.error)
        elif acted.steps and acted.steps[-1].done:
            self.stop, self.solved = StopReason.DONE, acted.steps[-1].solved
        elif self.actions_taken >= self.env.max_actions:
            self.stop = StopReason.MAX_ACTIONS

    def _user_message(self, observation: str, image: Image | None, problem: str) -> Message:
        left = self.env.max_actions - self.actions_taken
        return turn_message(observation, actions_left=left, problem=problem, image=image)


def usable_cores() -> int:
    """Cores that this process may load: ``OMP_NUM_THREADS`` where that is set, else all it may run on."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdecimal() and int(named) > 0:
        return int(named)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_workers(env: Env, asked: int) -> int:
    """Threads to step ``env`` in, ``asked`` of them unless that is 0; none for a quick environment.

    No more than there are cores where a step is work: time limits of programs count on that.
    """
    if env.waits_for == "nothing":
        return 0
    return asked or (usable_cores() if env.waits_for == "cores" else SERVER_WORKERS)


class Pool:
    """Does pieces of work in ``workers`` threads, or at once in this one when there are none."""

    def __init__(self, workers: int) -> None:
        self._threads = ThreadPoolExecutor(workers, "env") if workers else None

    def begin(self, pieces: Sequence[Callable[[], Result]]) -> Callable[[], list[Result]]:
        """Start all pieces; the value returned waits for their results and gives them in order."""
        if self._threads is None:
            done = [piece() for piece in pieces]
            return lambda: done
        futures = [self._threads.submit(piece) for piece in pieces]
        return lambda: [future.result() for future in futures]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._threads is not None:
            # After an error, such as an interrupt, steps still under way are not waited for.
            self._threads.shutdown(wait=error is None, cancel_futures=True)
