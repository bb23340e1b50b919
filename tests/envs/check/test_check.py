"""The conformance suite: a sound toy environment passes, each claim fails on a broken one."""

import os
import re
import time
from typing import ClassVar, Literal

import numpy as np
import pytest

from ragen2.envs.base import Env, Episode, Step
from ragen2.envs.check import conformance as check
from ragen2.envs.check.conformance import Trial, check_env, expert_steps
from ragen2.envs.check.transcript import expert_play, random_play
from ragen2.errors import EnvError

STARTS = []


class Toy(Env):
    """Say "add" until the count is reached; ``fault`` breaks one promise."""

    kind: Literal["CheckToy"] = "CheckToy"
    fault: str = ""
    max_actions: int = 8

    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    @property
    def instruction(self) -> str:
        return "Count." if self.fault == "no example" else "Count. <answer>add</answer>"

    @property
    def action_forms(self):
        return 7 if self.fault == "number of actions" else ()

    @property
    def shows_images(self) -> bool:
        return self.fault.startswith("sees")

    def start(self, seed, luck):
        STARTS.append(seed)
        return ToyEpisode(self.fault, 2 + seed % 3, luck)


class DenseToy(Toy):
    """The same with a reward for every count."""

    kind: Literal["DenseCheckToy"] = "DenseCheckToy"
    reward_range: ClassVar[tuple[float, float]] = (0.0, 10.0)
    reward_kind: ClassVar[Literal["binary", "dense"]] = "dense"


# Other tests ask which environments there are; these are not among them.
for toy in ("CheckToy", "DenseCheckToy"):
    del Env.registry[toy]


class ToyEpisode(Episode):
    def __init__(self, fault, goal, luck):
        self.fault = fault
        self.goal = goal
        self.luck = luck
        self.count = 0

    @property
    def done(self):
        return self.count >= self.goal

    @property
    def observation(self):
        if self.fault == "half a character":
            return f"{self.count} of {self.goal} \ud800"
        if self.fault == "salted":
            return f"{self.count} of {self.goal} {hash('salt')}"
        if self.fault == "changes":
            return f"{self.count} of {self.goal} {len(STARTS)}"
        if self.fault == "lucky prompt":
            return f"{self.count} of {self.goal} {self.luck}"
        return f"{self.count} of {self.goal}"

    def step(self, action):
        odd = self._odd(action)
        if odd is not None:
            return odd
        word = action if self.fault == "strict spaces" else " ".join(action.split())
        word = word if self.fault == "strict case" else word.lower()
        if self.done:
            return Step(
                0.5 if self.fault == "pays after the end" else 0.0, True, True, word == "add"
            )
        if word not in ("add", "wait"):
            return Step(0.0, False, valid=False, effective=False)
        if self.fault == "slow":
            time.sleep(0.03)
        self.count += word == "add"
        reward = float(self.done)
        if self.fault == "too much":
            reward += 3
        elif self.fault == "too little":
            reward *= 0.5
        elif self.fault == "greedy" and word == "wait":
            reward += 1.0
        return Step(reward, self.done, self.done, effective=word == "add")

    def _odd(self, action):
        if self.fault == "raises" and "\ud800" in action:
            action.encode()
        elif self.fault == "hangs" and action == "while True: pass":
            while True:
                pass
        elif self.fault == "hangs in C" and action == "a" * 40 + "!":
            re.match(r"(a+)+$", action)
        elif self.fault == "exits" and action == "1/0":
            os._exit(3)
        elif self.fault == "not a number" and action == "nan":
            return Step(float("nan"), False, valid=False, effective=False)
        elif self.fault == "invalid yet effective" and action == "nan":
            return Step(0.0, False, valid=False)
        return None

    def expert(self):
        if self.done:
            return ("add",) if self.fault == "never content" else ()
        if self.fault == "no plan":
            return ()
        if self.fault == "separator":
            return ("add || add",)
        if self.fault == "lazy" or (self.fault == "lazy at times" and self.goal == 4):
            return ("wait",)
        return ("add",) * (self.goal - self.count)

    def random_action(self, rng):
        return ("add", "wait")[int(rng.integers(2))]

    def explain(self, actions, rng):
        texts = {"silent": "", "tagged": "<answer>add</answer>", "one text": "I count."}
        return texts.get(self.fault, f"{self.count} of {self.goal}, so {' '.join(actions)}")

    @property
    def shown_image(self):
        if self.fault == "unannounced image":
            return np.zeros((4, 4, 3), np.uint8)
        if self.fault.startswith("sees") and not (self.fault == "sees at times" and self.count):
            shade = len(STARTS) % 200 if self.fault == "sees noise" else self.count
            shade = self.luck if self.fault == "sees luck" else shade
            return np.full((4, 4, 3), shade, np.uint8)
        return None

    def image(self, cell_pixels=28):
        if self.fault == "grey picture":
            return np.zeros((4, 4), np.uint8)
        return np.zeros((4, 4, 3), np.uint8)


def problem(claim, env, seeds=range(6)):
    return check._CLAIMS[claim](Trial(env, tuple(seeds)))


def test_a_sound_environment_passes_every_claim():
    claims = check_env(Toy(), seeds=range(6))
    assert claims == list(check._CLAIMS)
    assert len(claims) == 16


FAULTS = [
    ("another process plays the same episodes", "salted", "play is"),
    ("odd actions neither raise nor hang", "raises", "raised UnicodeEncodeError"),
    ("odd actions neither raise nor hang", "exits", "ended the process with code 3"),
    ("odd actions are survived", "not a number", "reward nan for 'nan'"),
    ("odd actions are survived", "invalid yet effective", "'nan' is not valid, yet effective"),
    ("the same seed and luck give the same episode", "changes", "first observations differ"),
    ("the prompt depends on the seed, not on luck", "lucky prompt", "4 prompts for four members"),
    ("every play stays in the stated reward range", "too much", "play returns"),
    ("an episode that is done stays done and pays nothing", "pays after the end", "reward=0.5"),
    ("an episode that is done stays done and pays nothing", "never content", "still wants 'add'"),
    ("case and spaces around an action do not matter", "strict spaces", "between spaces"),
    ("case and spaces around an action do not matter", "strict case", "in capitals"),
    ("actions and reasoning can stand in a reply", "no plan", "the expert has no plan"),
    ("actions and reasoning can stand in a reply", "separator", "'add || add' cannot stand"),
    ("actions and reasoning can stand in a reply", "silent", "the reasoning '' cannot stand"),
    ("actions and reasoning can stand in a reply", "tagged", "cannot stand between tags"),
    ("the same seed and luck give the same episode", "sees noise", "first images differ"),
    ("the prompt depends on the seed, not on luck", "sees luck", "4 prompts for four members"),
    (
        "an image is shown in every state, or in none",
        "sees at times",
        "shown_image is None in state",
    ),
    (
        "an image is shown in every state, or in none",
        "unannounced image",
        "an image is shown, but shows_images is False",
    ),
    ("a picture is height x width x 3 bytes", "grey picture", "shape (4, 4)"),
    ("the expert solves the task and none does better", "lazy", "solves none of 6 tasks"),
    (
        "the expert solves the task and none does better",
        "lazy at times",
        "solves 4 of 6 deterministic tasks, not seed 2",
    ),
    ("the expert solves the task and none does better", "too little", "best return is 0.5, not 1"),
    ("the reasoning follows the prompt", "one text", "3 prompts, one text"),
    ("prompts can be written", "half a character", "holds half a character"),
    ("prompts can be written", "number of actions", "action_forms is a value of type int"),
    ("the instruction shows a worked reply", "no example", "there is no <answer>"),
]


@pytest.mark.parametrize(("claim", "fault", "found"), FAULTS)
def test_a_broken_promise_is_found(claim, fault, found):
    seeds = range(40) if claim == "odd actions are survived" else range(6)
    assert found in problem(claim, Toy(fault=fault), seeds)


def test_an_environment_that_shows_images_passes_every_claim():
    assert check_env(Toy(fault="sees well"), seeds=range(6)) == list(check._CLAIMS)


def test_every_claim_is_shown_to_fail():
    elsewhere = {f"a step takes at most {check.STEP_SECONDS:g} seconds"}
    assert {claim for claim, _, _ in FAULTS} | elsewhere == set(check._CLAIMS)


@pytest.mark.parametrize(("fault", "action"), [("hangs", "while True"), ("hangs in C", "aaaaaaa")])
def test_a_step_that_hangs_is_ended_and_named(monkeypatch, fault, action):
    monkeypatch.setattr(check, "STEP_SECONDS", 0.5)
    found = problem("odd actions neither raise nor hang", Toy(fault=fault))
    assert f"action '{action}" in found
    assert "took more than 0.5 seconds" in found


def test_a_slow_step_is_found(monkeypatch):
    claim = f"a step takes at most {check.STEP_SECONDS:g} seconds"
    monkeypatch.setattr(check, "STEP_SECONDS", 0.01)
    assert problem(claim, Toy()) == ""
    assert "took 0.0" in problem(claim, Toy(fault="slow"))


def test_a_random_player_that_beats_the_expert_is_found():
    found = problem("the expert solves the task and none does better", DenseToy(fault="greedy"))
    assert "it returns 1.0, a random player" in found


def test_the_error_names_environment_claim_and_finding():
    with pytest.raises(EnvError) as error:
        check_env(Toy(fault="lucky prompt"), seeds=range(3))
    assert str(error.value) == (
        "CheckToy: not true that the prompt depends on the seed, not on luck: "
        "seed 0: 4 prompts for four members"
    )


def test_an_exception_in_play_is_a_finding():
    def broken(trial, seed):
        raise ZeroDivisionError("seed by zero")

    found = check._on_every_seed(broken)(Trial(Toy(), (5,)))
    assert found == "seed 5: it raised ZeroDivisionError: seed by zero"


def test_an_environment_that_another_process_cannot_import_is_told_so():
    class Local(Toy):
        """Defined inside a function."""

        kind: Literal["LocalCheckToy"] = "LocalCheckToy"

    del Env.registry["LocalCheckToy"]
    with pytest.raises(EnvError, match="cannot be built in another process; define it at the top"):
        check_env(Local())


def test_no_seeds_are_refused():
    with pytest.raises(EnvError, match="cannot be checked on no seeds; give at least one"):
        check_env(Toy(), seeds=[])


def test_plays_stop_at_the_budget_or_the_end():
    assert len(expert_play(Toy(fault="lazy"), 0, 0).lines) == 8
    assert [step.reward for step in expert_steps(Toy(), 1)] == [0.0, 0.0, 1.0]
    assert random_play(Toy(), 0, 0) == random_play(Toy(), 0, 0)
