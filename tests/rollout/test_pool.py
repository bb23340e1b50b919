"""Slow environments: threads and cohorts change how long a rollout takes and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import numpy as np
import pytest

from ragen2.backends.scripted import ScriptedPolicy
from ragen2.envs import DeepCoder, Env, Episode, FrozenLake, SearchQA, Step
from ragen2.envs.base import Waits
from ragen2.envs.deepcoder import env as deepcoder
from ragen2.policy import Request, SamplingParams
from ragen2.rollout import Rollout, Task, play
from ragen2.rollout.pool import SERVER_WORKERS, Pool, num_workers, usable_cores
from ragen2.types import Completion, Group, StopReason

ANSWER = "</think><answer>{}</answer>"
PATIENCE = 20.0
"""Seconds after which threads that should meet count as never meeting."""


class Counter(Env):
    """Counts up to four; breaks at "break". Slow in name: its steps may run in threads."""

    kind: Literal["Counter"] = "Counter"
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    waits: Waits = "server"
    before_step: ClassVar[Callable[[], object]] = lambda: None

    @property
    def waits_for(self) -> Waits:
        return self.waits

    @property
    def instruction(self) -> str:
        return "count"

    def start(self, seed: int, luck: int) -> Episode:
        return CounterEpisode(seed)


class CounterEpisode(Episode):
    """One count."""

    def __init__(self, seed: int) -> None:
        self.count, self.seed = 0, seed

    @property
    def observation(self) -> str:
        return f"count {self.count} of {self.seed}"

    def step(self, action: str) -> Step:
        Counter.before_step()
        if action == "break":
            raise ZeroDivisionError("as asked")
        self.count += 1
        return Step(0.25, done=self.count == 4, solved=self.count == 4)

    def expert(self) -> tuple[str, ...]:
        return ("up",)

    def random_action(self, rng: np.random.Generator) -> str:
        return "up"

    def explain(self, actions: tuple[str, ...], rng: np.random.Generator) -> str:
        return "why"


Env.registry.pop("Counter")  # known to this file only


class Noting(ScriptedPolicy):
    """Remembers which requests came together."""

    def __init__(self, reply: Callable[[str, np.random.Generator], str]) -> None:
        super().__init__(reply)
        self.batches: list[list[tuple[int | str, ...]]] = []

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        self.batches.append([request.key for request in requests])
        return super().sample(requests, params)


def mixed(prompt: str, rng: np.random.Generator) -> str:
    """Mostly up, sometimes two at once, now and then the end of it, or no action at all."""
    words = ["up", "up || up", "up || break", "break", ""]
    return f"r{rng.integers(99)}" + ANSWER.format(rng.choice(words, p=[0.5, 0.25, 0.1, 0.1, 0.05]))


def told(groups: Sequence[Group]) -> list[tuple[object, ...]]:
    """All of a rollout that a log holds, but for the lines of tracebacks."""
    return [
        (
            trajectory.luck,
            trajectory.stop,
            trajectory.solved,
            trajectory.error.splitlines()[-1:],
            [(t.completion.text, t.observation, t.reward, t.executed) for t in trajectory.turns],
            [t.prompt_ids_T.tolist() for t in trajectory.turns],
        )
        for group in groups
        for trajectory in group.trajectories
    ]


def rollout_of(env: Env, **settings) -> tuple[list[tuple[object, ...]], Noting]:
    policy = Noting(mixed)
    tasks = [[Task(seed, luck) for luck in range(5)] for seed in range(5)]
    return told(play(env, policy, tasks, Rollout(**settings), key=("k",))), policy


@pytest.mark.parametrize("workers", [1, 8])
def test_the_number_of_threads_changes_neither_trajectories_nor_batches(workers):
    expected, by_default = rollout_of(Counter(), env_workers=0)
    found, policy = rollout_of(Counter(), env_workers=workers)
    assert found == expected
    assert policy.batches == by_default.batches


def test_a_slow_environment_gives_the_same_trajectories_as_a_quick_one():
    slow, halves = rollout_of(Counter())
    quick, whole = rollout_of(Counter(waits="nothing"))
    assert slow == quick
    assert {stop for _, stop, *_ in quick} >= {StopReason.ENV_ERROR, StopReason.DONE}
    assert [len(batch) for batch in halves.batches[:2]] == [13, 12]
    assert len(whole.batches[0]) == 25


def test_cohorts_take_turns_in_a_fixed_order():
    _, policy = rollout_of(Counter(), cohorts=3)
    first = [{(seed, luck) for _, seed, luck, _ in batch} for batch in policy.batches[:3]]
    assert [len(part) for part in first] == [9, 9, 7]
    assert {turn for batch in policy.batches[:3] for *_, turn in batch} == {0}
    assert {turn for batch in policy.batches[3:6] for *_, turn in batch} == {1}
    for part, batch in zip(first, policy.batches[3:6], strict=True):
        assert {(seed, luck) for _, seed, luck, _ in batch} <= part


def test_more_cohorts_than_episodes_leave_none_empty():
    policy = Noting(lambda prompt, rng: "a" + ANSWER.format("up"))
    groups = play(Counter(), policy, [[Task(1, 0)]], Rollout(cohorts=16), key=("k",))
    assert groups[0].trajectories[0].solved
    assert [len(batch) for batch in policy.batches] == [1, 1, 1, 1]


def test_steps_of_one_turn_really_run_at_the_same_time(monkeypatch):
    meeting = threading.Barrier(4)
    monkeypatch.setattr(Counter, "before_step", lambda: meeting.wait(PATIENCE))
    policy = ScriptedPolicy(lambda prompt, rng: "a" + ANSWER.format("up"))
    tasks = [[Task(1, luck) for luck in range(4)]]
    (group,) = play(Counter(), policy, tasks, Rollout(cohorts=1, env_workers=4), key=("k",))
    assert [trajectory.error for trajectory in group.trajectories] == [""] * 4
    assert all(trajectory.solved for trajectory in group.trajectories)


def test_one_cohort_is_sampled_while_the_steps_of_the_other_run(monkeypatch):
    """The first cohort's step waits until the second one has been sampled: lockstep would never end."""
    sampled = threading.Semaphore(0)

    class Telling(ScriptedPolicy):
        def sample(self, requests, params):
            if calls:
                sampled.release(len(requests) + 1)
            calls.append(len(requests))
            return super().sample(requests, params)

    def wait() -> None:
        if not sampled.acquire(timeout=PATIENCE):
            raise TimeoutError

    calls: list[int] = []
    monkeypatch.setattr(Counter, "before_step", wait)
    policy = Telling(lambda prompt, rng: "a" + ANSWER.format("up"))
    (group,) = play(
        Counter(max_turns=1), policy, [[Task(1, 0), Task(1, 1)]], Rollout(env_workers=1), key=("k",)
    )
    assert [trajectory.error for trajectory in group.trajectories] == ["", ""]
    assert calls == [1, 1]


def test_what_threads_raise_becomes_data_and_is_told_in_one_line(caplog):
    tasks = [[Task(1, 0)], [Task(2, 0)], [Task(3, 0)]]
    policy = ScriptedPolicy(
        lambda prompt, rng: "a" + ANSWER.format("up" if "of 2\n" in prompt else "up || break")
    )
    groups = play(Counter(), policy, tasks, Rollout(env_workers=8), key=("k",))
    stops = [group.trajectories[0].stop for group in groups]
    assert stops == [StopReason.ENV_ERROR, StopReason.DONE, StopReason.ENV_ERROR]
    broken = groups[0].trajectories[0]
    assert "ZeroDivisionError: as asked" in broken.error
    assert (broken.reward, broken.turns[0].executed, broken.solved) == (0.25, ("up",), False)
    assert [record.getMessage() for record in caplog.records] == [
        "2 of 3 episodes of Counter ended early, the first on task 1: ZeroDivisionError: as asked"
    ]


def test_an_error_of_the_sampler_does_not_wait_for_steps_under_way(monkeypatch):
    """The step can only end after the error has come out."""
    out = threading.Event()

    class Breaking(ScriptedPolicy):
        def sample(self, requests, params):
            if calls:
                raise RuntimeError("no more tokens")
            calls.append(1)
            return super().sample(requests, params)

    calls: list[int] = []
    monkeypatch.setattr(Counter, "before_step", lambda: out.wait(PATIENCE))
    policy = Breaking(lambda prompt, rng: "a" + ANSWER.format("up"))
    with pytest.raises(RuntimeError, match="no more tokens"):
        play(Counter(), policy, [[Task(1, 0), Task(1, 1)]], Rollout(), key=("k",))
    assert not out.is_set()
    out.set()


def test_results_come_in_the_order_of_the_pieces():
    third = threading.Event()
    pieces = [lambda: third.wait(PATIENCE), lambda: 2, lambda: third.set() or 3]
    with Pool(3) as pool:
        assert pool.begin(pieces, None)() == [True, 2, 3]
    with Pool(0) as pool:
        assert pool.begin([lambda: 1, lambda: 2], None)() == [1, 2]


@pytest.mark.parametrize(
    ("env", "asked", "expected"),
    [
        (FrozenLake(), 0, 0),
        (FrozenLake(), 8, 0),
        (DeepCoder(), 0, 3),
        (DeepCoder(), 8, 8),
        (SearchQA(), 0, 0),
        (SearchQA(retriever="dense"), 0, 3),
        (SearchQA(retriever="server"), 0, SERVER_WORKERS),
        (SearchQA(retriever="server"), 5, 5),
    ],
)
def test_only_environments_that_wait_get_threads(env, asked, expected, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert num_workers(env, asked) == expected


@pytest.mark.parametrize("named", ["", "0", "many"])
def test_without_a_number_of_threads_all_cores_may_be_used(monkeypatch, named):
    monkeypatch.setenv("OMP_NUM_THREADS", named)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 2, 5}, raising=False)
    assert usable_cores() == 3


def test_programs_in_threads_get_the_verdicts_they_get_one_by_one():
    def reply(prompt: str, rng: np.random.Generator) -> str:
        program = rng.choice(["print(0)", "print(input())", "1 / 0", "print(1)"])
        return "a" + ANSWER.format(program)

    def rewards(**settings) -> list[list[float]]:
        deepcoder._verdict.cache_clear()
        tasks = [[Task(100_005 + p, luck) for luck in range(8)] for p in range(2)]
        policy = ScriptedPolicy(reply)
        groups = play(DeepCoder(form="stdin"), policy, tasks, Rollout(**settings), key=("k",))
        return [group.rewards_G.tolist() for group in groups]

    in_threads = rewards(env_workers=8)
    assert in_threads == rewards(env_workers=1)
    assert len({reward for group in in_threads for reward in group}) > 1
