"""Play groups of episodes: one batched sample per turn for all that still run.

Where a step of the environment waits for something else, the episodes are cut into fixed cohorts: while one
is sampled, the steps of the others run in threads. Which episodes are sampled together, and in which order,
never depends on how long anything takes, so the groups do not either.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, runtime_checkable

from ragen2.envs.base import Env, Episode, Step
from ragen2.envs.guard import start_episode
from ragen2.errors import EnvError, GradingError
from ragen2.policy import Sampler, TextSampler
from ragen2.progress import part
from ragen2.rollout.context import (
    Key,
    ModelInput,
    SamplerAdapter,
    adapter_for,
    first_visible_turn,
    refuse_blind,
    shown_image,
    with_images_of,
)
from ragen2.rollout.pool import Pool, num_workers
from ragen2.rollout.prompts import Opening, PromptSettings, PromptWriter, TurnState
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

logger = logging.getLogger(__name__)

DEFAULT_PROMPT = PromptSettings()


@dataclass(frozen=True, slots=True)
class Task:
    """One episode to play."""

    seed: int
    luck: int


@runtime_checkable
class GroupPlayer(Protocol):
    """A sampler of several processes: whole groups are shared out among them, not single replies."""

    def play_groups(
        self,
        env: Env,
        groups: Sequence[Sequence[Task]],
        rollout: Rollout,
        prompt: PromptSettings,
        key: Key,
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
    prompt: PromptSettings = DEFAULT_PROMPT,
) -> list[Group]:
    """Play every task of every group; members of a group must share their seed.

    ``key`` names the random streams of sampling: the same key, weights and tasks give the same groups.
    """
    refuse_blind(env, sampler)
    if isinstance(sampler, GroupPlayer):
        return sampler.play_groups(env, groups, rollout, prompt, key)
    adapter = adapter_for(sampler, rollout, env, prompt)
    writer = PromptWriter.of(env, rollout, prompt)
    plays = [[_Play(env, rollout, writer, task) for task in group] for group in groups]
    everyone = [one for group in plays for one in group]
    workers = num_workers(env, rollout.env_workers)
    cohorts = _cohorts(everyone, rollout.cohorts or (2 if workers else 1))
    with Pool(workers) as pool:
        while any(cohort.is_running for cohort in cohorts):
            for cohort in cohorts:
                cohort.end_turn(adapter)
                with _turn_reported(env, everyone, cohort.plays):
                    cohort.begin_turn(adapter, key, pool)
    _report_errors(everyone)
    for members in plays:
        if any(one.prompt != members[0].prompt for one in members):
            raise EnvError(
                f"{env.kind}: task {members[0].task.seed} does not begin the same for all of its group; the "
                "first observation must depend on the seed alone, never on luck"
            )
    return [
        Group(members[0].prompt, tuple(one.trajectory() for one in members)) for members in plays
    ]


@contextmanager
def _turn_reported(env: Env, everyone: Sequence[_Play], asked: Sequence[_Play]) -> Iterator[None]:
    """Report turns, of as many as all episodes may have; replies being written are parts of one."""
    most = env.max_turns
    done = sum(most if one.stop is not None else len(one.turns) for one in everyone)
    more = sum(one.stop is None for one in asked)
    with part(f"playing {env.kind}", done, done + more, most * len(everyone)):
        yield


def _report_errors(plays: Sequence[_Play]) -> None:
    """One line for all episodes that an environment broke; their records have the tracebacks."""
    broken = [one for one in plays if one.error]
    if broken:
        first = broken[0]
        logger.warning(
            "%d of %d episodes of %s ended early, the first on task %d: %s",
            len(broken),
            len(plays),
            first.env.kind,
            first.task.seed,
            _last_line(first.error),
        )


def refuse_broken(groups: Sequence[Group]) -> None:
    """Raise where the environment broke every single episode: what follows would be about nothing."""
    played = [one for group in groups for one in group.trajectories]
    if all(one.stop is StopReason.ENV_ERROR for one in played):
        first = played[0]
        raise EnvError(
            f"all {len(played)} episodes of {first.prompt.env} ended with an error, the first on task "
            f"{first.prompt.seed}: {_last_line(first.error)}"
        )


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
        self.acted = pool.begin([partial(one.act, reply) for one, _, reply in self.asked], STUCK)

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


STUCK = _Acted([], [], "", error="TimeoutError: a step waits for ever; its thread was left behind")
"""What is known of the actions of a thread that cannot be interrupted."""


@dataclass(slots=True)
class _Play:
    """An episode under way."""

    env: Env
    rollout: Rollout
    writer: PromptWriter
    task: Task
    episode: Episode = field(init=False)
    opening: Opening = field(init=False)
    users: list[Message] = field(init=False)
    turns: list[Turn] = field(default_factory=list)
    model_input: ModelInput = field(default_factory=ModelInput)
    """What the model is shown before its next reply."""
    actions_taken: int = 0
    stop: StopReason | None = None
    solved: bool = False
    error: str = ""

    def __post_init__(self) -> None:
        self.episode = start_episode(self.env, self.task.seed, self.luck)
        shown = self.episode.observation
        self.opening = self.writer.opening(shown)
        first = TurnState(shown, self.env.max_actions, image=shown_image(self.episode))
        self.users = [self.writer.turn(first)]

    @property
    def luck(self) -> int:
        """What the environment draws from; the replies of members that share it differ all the same."""
        return self.rollout.luck_of(self.task.luck)

    @property
    def prompt(self) -> Prompt:
        messages = (*self.opening.messages, self.users[0])
        return Prompt(self.env.kind, self.task.seed, messages)

    def prepare(self, adapter: SamplerAdapter) -> bool:
        """Build the next prompt; False (and the end) when it does not fit the model's context."""
        model_input = adapter.prompt(
            self.opening,
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
        except GradingError:  # not the environment: a reward of 0 would be learned from
            raise
        except Exception as error:  # noqa: BLE001 - the one boundary where a broken environment becomes data
            return _Acted(steps, executed, "", error=_where(error))

    def record(
        self, completion: Completion, reply: Reply, acted: _Acted, adapter: SamplerAdapter
    ) -> None:
        """Note the turn, and whether it was the last. Unknown actions do nothing and spend nothing."""
        reasoning_span, action_span = adapter.spans(completion)
        taken = [
            (one, step) for one, step in zip(acted.executed, acted.steps, strict=True) if step.valid
        ]
        unknown = [
            one for one, step in zip(acted.executed, acted.steps, strict=True) if not step.valid
        ]
        self.actions_taken += len(taken)
        self._note_end(acted)
        turn = Turn(
            prompt_ids_T=self.model_input.ids_T,
            completion=completion,
            reply=reply,
            reasoning_span=reasoning_span,
            observation=acted.observation,
            reward=float(sum(step.reward for step in acted.steps)),
            penalty=self.rollout.penalty(self.env) if unknown or not reply.valid else 0.0,
            executed=tuple(one for one, _ in taken),
            effective=tuple(step.effective for _, step in taken),
            unknown=tuple(unknown),
            action_span=action_span,
            images=self.model_input.images,
            shown_image=acted.image,
        )
        self.turns.append(turn)
        if self.stop is None and len(self.turns) >= self.env.max_turns:
            self.stop = StopReason.MAX_TURNS
        state = TurnState(
            acted.observation,
            self.env.max_actions - self.actions_taken,
            turn=len(self.turns) + 1,
            reward=turn.reward,
            problem=turn.problem,
            image=acted.image,
        )
        self.users.append(self.writer.turn(state))

    def trajectory(self) -> Trajectory:
        assert self.stop is not None  # noqa: S101 - play() runs until every episode has stopped
        return Trajectory(
            self.prompt, self.luck, tuple(self.turns), self.stop, self.solved, self.error
        )

    def _note_end(self, acted: _Acted) -> None:
        if acted.error:
            self.stop, self.error = StopReason.ENV_ERROR, acted.error
        elif acted.steps and acted.steps[-1].done:
            self.stop, self.solved = StopReason.DONE, acted.steps[-1].solved
        elif self.actions_taken >= self.env.max_actions:
            self.stop = StopReason.MAX_ACTIONS


def _last_line(error: str) -> str:
    return error.rstrip().rpartition("\n")[2].removeprefix(f"{EnvError.__module__}.")


def _where(error: Exception) -> str:
    """The traceback of what an environment raised, without those who asked it."""
    cause = error.__cause__ if isinstance(error, EnvError) else None
    return "".join(traceback.format_exception(cause or error))
