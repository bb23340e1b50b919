"""Environments that break their contract: each breach is named in one line, and an episode ends as data."""

from __future__ import annotations

import threading
import time
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from ragen2.backends.scripted import ScriptedPolicy
from ragen2.envs import Bandit, Env, Episode, FrozenLake, Step
from ragen2.envs.base import Waits
from ragen2.envs.guard import start_episode, text_of
from ragen2.errors import EnvError
from ragen2.rollout import Rollout, Task, play
from ragen2.types import StopReason, Trajectory

PATIENCE = 60.0
"""Seconds that a step would wait."""


class Odd(Env):
    """Does with each call what a test puts into ``does``."""

    kind: Literal["Odd"] = "Odd"
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    waits: Waits = "nothing"
    does: ClassVar[dict[str, Any]] = {}

    @property
    def waits_for(self) -> Waits:
        return self.waits

    @property
    def instruction(self) -> str:
        return give("instruction", "go")

    def start(self, seed: int, luck: int) -> Episode:
        return give("start", OddEpisode())


class OddEpisode(Episode):
    """One play of it."""

    first = True

    @property
    def observation(self) -> str:
        if self.first and "first" not in Odd.does:
            return "at the start"
        return give("observation", "somewhere")

    @property
    def shown_image(self) -> Any:
        return give("shown_image", None)

    def step(self, action: str) -> Step:
        self.first = False
        return give("step", Step(0.5, done=False))

    def expert(self) -> tuple[str, ...]:
        return give("expert", ("go",))

    def random_action(self, rng: np.random.Generator) -> str:
        return give("random_action", "go")

    def explain(self, actions: tuple[str, ...], rng: np.random.Generator) -> str:
        return give("explain", "why")


Env.registry.pop("Odd")  # known to this file only


def give(name: str, usual: Any) -> Any:
    """What the test wants of this call: raised, called or returned."""
    found = Odd.does.get(name, usual)
    if isinstance(found, BaseException):
        raise found
    return found() if callable(found) else found


@pytest.fixture
def does(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """To be filled with what calls do."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(Odd, "does", found)
    return found


def one(env: Env) -> Trajectory:
    """The first episode of two that are played."""
    policy = ScriptedPolicy(lambda prompt, rng: "a</think><answer>go</answer>")
    groups = play(env, policy, [[Task(3, 0)], [Task(4, 0)]], Rollout(), key=("test",))
    return groups[0].trajectories[0]


class Mute(Exception):
    """Cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("mute")


BAD_STEPS = {
    "nothing": (None, "returned None; it must be a Step"),
    "a tuple": ((0.0, True), "returned a value of type tuple; it must be a Step"),
    "reward text": (Step("1", False), "gave the reward '1'; it must be a finite number"),  # type: ignore[arg-type]
    "reward nothing": (Step(None, False), "gave the reward None; it must be a finite"),  # type: ignore[arg-type]
    "reward nan": (Step(float("nan"), False), "gave the reward nan; it must be a finite number"),
    "reward inf": (Step(float("inf"), False), "gave the reward inf; it must be a finite number"),
    "reward without a square": (
        Step(-1e200, False),
        "gave the reward -1e+200; it may be 1e+15 at most",
    ),
    "reward beyond floats": (Step(10**400, False), "it must be a finite number"),
    "reward beyond printing": (
        Step(10**5000, False),
        "a value of type int; it must be a finite number",
    ),
    "reward of two": (Step(np.zeros(2), False), "it must be a finite number"),  # type: ignore[arg-type]
    "done text": (Step(0.0, "False"), "gave done 'False'; it must be True or False"),  # type: ignore[arg-type]
    "done nothing": (Step(0.0, None), "gave done None; it must be True or False"),  # type: ignore[arg-type]
    "solved a number": (Step(0.0, True, solved=1), "gave solved 1; it must be True or False"),  # type: ignore[arg-type]
}
BAD_TEXTS = {
    "a number": (7, "is a value of type int; it must be text"),
    "nothing": (None, "is None; it must be text"),
    "bytes": (b"x", "is a value of type bytes; it must be text"),
    "far too long": ("x" * 1_000_001, "has 1,000,001 characters; it may have 1,000,000"),
    "half a character": ("\ud800", "holds half a character, which no file can; replace it"),
}


@pytest.mark.parametrize("name", BAD_STEPS)
def test_what_a_step_returns_is_checked(does: dict[str, Any], name: str) -> None:
    does["step"], told = BAD_STEPS[name]
    with pytest.raises(EnvError, match=r"^Odd: step of task 3 for 'go' ") as error:
        start_episode(Odd(), 3, 0).step("go")
    assert told in str(error.value)
    trajectory = one(Odd())
    assert trajectory.stop is StopReason.ENV_ERROR
    assert trajectory.error.splitlines()[-1].endswith(str(error.value))
    assert trajectory.reward == 0.0


@pytest.mark.parametrize("name", BAD_TEXTS)
@pytest.mark.parametrize("call", ["observation", "random_action", "explain"])
def test_what_should_be_text_is_checked(does: dict[str, Any], call: str, name: str) -> None:
    found, told = BAD_TEXTS[name]
    does |= {call: found, "first": True}
    episode = start_episode(Odd(), 3, 0)
    rng = np.random.default_rng(0)
    calls = {
        "observation": lambda: episode.observation,
        "random_action": lambda: episode.random_action(rng),
        "explain": lambda: episode.explain((), rng),
    }
    with pytest.raises(EnvError, match=f"^Odd: {call} of task 3 {told}$"):
        calls[call]()


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_an_observation_that_is_no_text_ends_its_episode(does: dict[str, Any], name: str) -> None:
    does["observation"], told = BAD_TEXTS[name]
    trajectory = one(Odd())
    assert trajectory.stop is StopReason.ENV_ERROR
    assert trajectory.error.splitlines()[-1].endswith(told)
    assert trajectory.turns[0].observation == ""


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_rules_that_are_no_text_are_named(does: dict[str, Any], name: str) -> None:
    does["instruction"], told = BAD_TEXTS[name]
    with pytest.raises(EnvError, match=f"^Odd: instruction {told}$"):
        text_of(Odd(), "instruction")


@pytest.mark.parametrize(
    ("call", "found", "told"),
    [
        ("start", None, "start of task 3 returned None; it must be an Episode"),
        ("start", "x", "start of task 3 returned a value of type str; it must be an Episode"),
        (
            "shown_image",
            [1],
            "shown_image of task 3 is a value of type list; it must be an array or None",
        ),
        ("expert", "go", "expert of task 3 returned 'go'; it must be actions as text"),
        ("expert", (1,), r"expert of task 3 returned \(1,\); it must be actions as text"),
    ],
)
def test_other_returns_are_checked(
    does: dict[str, Any], call: str, found: object, told: str
) -> None:
    does[call] = found
    with pytest.raises(EnvError, match=f"^Odd: {told}$"):
        getattr(start_episode(Odd(), 3, 0), call if call != "start" else "step")()


@pytest.mark.parametrize("waits", ["nothing", "server"])
@pytest.mark.parametrize("call", ["step", "observation", "shown_image"])
@pytest.mark.parametrize("error", [SystemExit(0), ValueError("no"), GeneratorExit(), Mute()])
def test_whatever_an_episode_raises_is_data(
    does: dict[str, Any], call: str, error: BaseException, waits: Waits
) -> None:
    episodes = []

    def late() -> None:
        if len(episodes) > 1:  # both episodes have begun
            raise error
        episodes.append(1)

    does[call] = late if call == "shown_image" else error
    trajectory = one(Odd(waits=waits))
    assert trajectory.stop is StopReason.ENV_ERROR
    assert type(error).__name__ in trajectory.error.splitlines()[-1]
    assert "test_guard.py" in trajectory.error


def test_an_interrupt_is_the_users(does: dict[str, Any]) -> None:
    does["step"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        one(Odd())


@pytest.mark.parametrize("error", [SystemExit(0), ValueError("two\nlines")])
def test_a_task_that_cannot_start_is_one_line(does: dict[str, Any], error: Exception) -> None:
    does["start"] = error
    with pytest.raises(EnvError, match=r"^Odd: start of task 3 raised ") as told:
        one(Odd())
    assert len(str(told.value).splitlines()) == 1
    assert "(test_guard.py, line " in str(told.value)


def test_a_mistake_of_ours_is_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> Episode:
        raise ZeroDivisionError

    monkeypatch.setattr(FrozenLake, "start", start)
    with pytest.raises(ZeroDivisionError):
        start_episode(FrozenLake(), 3, 0)


def test_numbers_and_truth_values_of_numpy_become_pythons(does: dict[str, Any]) -> None:
    step = Step(np.float32(0.5), np.bool_(True), np.bool_(False))  # type: ignore[arg-type]
    does["step"] = step
    found = start_episode(Odd(), 3, 0).step("go")
    assert found == Step(0.5, True, False)
    assert (type(found.reward), type(found.done), type(found.solved)) == (float, bool, bool)
    does["step"] = Step(True, False)
    assert start_episode(Odd(), 3, 0).step("go").reward == 1.0


def test_what_is_not_in_the_contract_is_the_episodes_own() -> None:
    assert start_episode(Odd(), 3, 0).first  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        start_episode(Bandit(), 3, 0).nothing_of_the_kind  # type: ignore[attr-defined]  # noqa: B018


# --- time ------------------------------------------------------------------------------------------


def spin() -> None:
    """Never ends."""
    while True:
        pass


@pytest.mark.parametrize("call", ["step", "observation"])
@pytest.mark.parametrize(
    ("hang", "waits"),
    [(spin, "nothing"), (spin, "server"), (lambda: time.sleep(PATIENCE), "nothing")],
)
def test_an_episode_that_hangs_ends_as_data(
    does: dict[str, Any], call: str, hang: Any, waits: Waits
) -> None:
    does[call] = hang
    trajectory = one(Odd(waits=waits, step_timeout=0.2))
    assert trajectory.stop is StopReason.ENV_ERROR
    assert trajectory.error.endswith("TimeoutError: it took more than 0.2 seconds\n")
    assert "test_guard.py" in trajectory.error  # where it was


def test_a_start_that_hangs_is_one_line(does: dict[str, Any]) -> None:
    does["start"] = spin
    with pytest.raises(EnvError, match=r"more than 0\.2 seconds .*; mend it, or raise env"):
        one(Odd(step_timeout=0.2))


def test_threads_that_cannot_be_interrupted_are_left_behind(does: dict[str, Any]) -> None:
    end = threading.Event()
    does["step"] = lambda: end.wait(PATIENCE)
    groups = play(
        Odd(waits="server", step_timeout=0.2),
        ScriptedPolicy(lambda prompt, rng: "a</think><answer>go</answer>"),
        [[Task(seed, 0)] for seed in range(5)],
        Rollout(env_workers=2),
        key=("test",),
    )
    stuck = [group.trajectories[0] for group in groups]
    assert {one.stop for one in stuck} == {StopReason.ENV_ERROR}
    assert {one.error for one in stuck} == {
        "TimeoutError: a step waits for ever; its thread was left behind"
    }
    end.set()
