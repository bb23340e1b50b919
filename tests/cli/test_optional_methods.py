"""Environments with ``observation`` and ``step`` alone: what works without the rest, and what is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from command_line import Done, assert_refused, records, settings
from ragen2.diagnostics import Attempts, Label, Played, triage
from ragen2.diagnostics.base import Contrasts
from ragen2.envs.base import Env, Episode, Step
from ragen2.envs.check.conformance import check_env, unchecked_claims
from ragen2.envs.guard import missing_methods, start_episode
from ragen2.envs.new_env import new_env_text
from ragen2.errors import MissingMethod
from ragen2.trainer.batch import EnvReplayer

Program = Callable[..., Done]
TINY = settings(
    "rollout.prompts=2",
    "rollout.group_size=2",
    "rollout.max_tokens=16",
    "evaluation.tasks=2",
    "evaluation.probe_prompts=0",
    "env.max_turns=2",
)


@pytest.fixture
def bare(tmp_path: Path) -> tuple[str, ...]:
    """The words that name an environment without any optional method."""
    text = new_env_text("Bare", Path("bare.py"))
    required = text[: text.index("    # The rest is optional.")]
    (tmp_path / "bare.py").write_text(
        required.replace("has_fixed_actions: ClassVar[bool] = True", "")
    )
    return ("--env", "Bare", "--plugin", "bare.py")


def test_its_check_passes_and_names_what_was_not_checked(program: Program, bare: tuple) -> None:
    done = program("envs", "check", "Bare", *bare[2:])
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[-1] == "Bare passed on 20 seeds"
    assert "ok  the same seed and luck give the same episode" in lines
    assert [line for line in lines if line.startswith("--")] == [
        "--  actions and reasoning can stand in a reply: not checked, Bare has no expert, no explain",
        "--  the expert solves the task and none does better: not checked, Bare has no expert",
        "--  the reasoning follows the prompt: not checked, Bare has no expert, no explain",
    ]


def test_it_is_trained_on_and_prompts_have_no_example(
    program: Program, bare: tuple, tmp_path: Path
) -> None:
    own = settings("prompt.style=reference")
    done = program("train", "--steps", "1", *bare, *TINY, *own, "--out", "run")
    assert done.returncode == 0
    assert done.stderr == "WARNING Bare has no expert: its prompts have no worked example\n"
    *_, last = records(tmp_path / "run")
    assert last["metrics"]["triage/replay_errors"] == 0.0


def test_preflight_says_what_it_cannot_know(program: Program, bare: tuple, tmp_path: Path) -> None:
    done = program("preflight", *bare, *TINY, "--json", "found.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "what play pays  always invalid" in done.stdout
    assert "no incentives/expert: Bare has no expert" in done.stdout
    assert "no incentives/random: Bare has no random_action" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["incentives"]["expert"], found["incentives"]["random"]) == (None, None)


def test_a_warm_start_needs_all_three(program: Program, bare: tuple, tmp_path: Path) -> None:
    line = (
        "a warm start is written with expert, random_action, explain, and Bare has no expert, no "
        "random_action, no explain; define them in its episodes"
    )
    assert_refused(program("warmstart", *bare), tmp_path, line, left=["bare.py"])


def test_there_is_no_hint(program: Program, bare: tuple) -> None:
    done = program("envs", "play", "Bare", *bare[2:], given="hint\nquit\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Bare has no expert: there is no hint" in done.stdout


class Door(Env):
    """Open a door."""

    kind: str = "OptionalDoor"
    fixed: bool = True
    reward_range = (0.0, 1.0)

    @property
    def instruction(self) -> str:
        return "Open it. <answer>open</answer>"

    @property
    def has_fixed_actions(self) -> bool:
        return self.fixed

    @property
    def action_forms(self) -> tuple[str, ...]:
        return ("open", "wait")

    def start(self, seed: int, luck: int) -> Episode:
        return DoorEpisode(seed)


class DoorEpisode(Episode):
    def __init__(self, seed: int) -> None:
        self.seed, self.is_open = seed, False

    @property
    def observation(self) -> str:
        return f"Door {self.seed} is {'open' if self.is_open else 'closed'}."

    def step(self, action: str) -> Step:
        opens = action.strip().lower() == "open" and not self.is_open
        known = action.strip().lower() in ("open", "wait")
        self.is_open |= opens
        return Step(float(opens), self.is_open, self.is_open, valid=known, effective=opens)


del Env.registry["OptionalDoor"]


def test_fixed_actions_are_drawn_without_a_method() -> None:
    assert missing_methods(Door()) == ("expert", "explain")
    assert missing_methods(Door(fixed=False)) == ("expert", "random_action", "explain")
    episode = start_episode(Door(), 0, 0)
    drawn = {episode.random_action(np.random.default_rng(seed)) for seed in range(20)}
    assert drawn == {"open", "wait"}
    with pytest.raises(MissingMethod, match="OptionalDoor has no random_action"):
        start_episode(Door(fixed=False), 0, 0).random_action(np.random.default_rng(0))


def test_claims_that_need_no_method_are_checked() -> None:
    held = check_env(Door(), seeds=range(3))
    assert "an episode that is done stays done and pays nothing" in held
    assert set(held).isdisjoint(unchecked_claims(Door()))
    assert len(held) + len(unchecked_claims(Door())) == 16


def test_triage_goes_on_with_what_there_is(group_of) -> None:
    found = EnvReplayer(Door()).contrasts(group_of([0.0, 0.0]), 4)
    assert (found.expert, found.problem, found.missing) == ((), "", ("OptionalDoor has no expert",))
    assert len(found.random) == 4
    nothing = EnvReplayer(Door(fixed=False)).contrasts(group_of([0.0, 0.0]), 4)
    assert nothing.plays == ()
    assert nothing.missing == ("OptionalDoor has no expert", "OptionalDoor has no random_action")


def judged(paid: float, solved: bool, *random: Played):
    prompt = Attempts("Door", (Played(paid, solved, ("a",)), Played(paid, solved, ("b",))))
    contrasts = Contrasts(random=random, missing=("Door has no expert",))
    (found,) = triage([prompt], [contrasts], reward_range=(0.0, 1.0))
    return found


def test_without_an_expert_a_label_rests_on_the_batch_and_says_so() -> None:
    lost = Played(0.0, False)
    hard = judged(0.0, False, lost, lost)
    assert (hard.label, hard.reason) == (
        Label.TOO_HARD,
        "none solved it and all were paid 0, the least there is; Door has no expert to compare with",
    )
    assert judged(0.5, False, lost, lost).label is Label.UNCLEAR, "random play earns less: no news"
    assert judged(0.0, False, Played(1.0, True)).reason.startswith("random play is paid 1, every")
    assert judged(1.0, True, lost).label is Label.TOO_EASY
    assert judged(1.0, True, Played(1.0, True)).reason.startswith("random play solves it too")
