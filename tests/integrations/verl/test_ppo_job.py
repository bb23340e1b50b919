"""PPO on verl: a critic and KL in the reward; a step that keeps nothing ends the run; it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from jobs import check_tokens, far_apart, ragen2, records_of, train, train_here, weights_at

pytestmark = pytest.mark.slow
FILTER = Path(__file__).with_name("quiet_step.py")
PPO = (
    f'plugins=["{FILTER}"]',
    "filter.kind=quiet_step",
    "stops.empty_steps=1",
    "steps=3",
    "checkpoints.every=1",
    "model.engine=plain",
    "algorithm.kind=ppo",
    "algorithm.critic_lr=1e-3",
    "algorithm.lam=0.95",
    "algorithm.kl_coefficient=0.01",
    "algorithm.kl_in=reward",
)


@dataclass(frozen=True)
class Stopped:
    """A run that stopped by itself after step 2, and went on."""

    run: Path
    told_first: str
    steps_first: list[int]
    told_then: str


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Stopped:
    run = tmp_path_factory.mktemp("ppo") / "run"
    told_first = train(run, *PPO, workers=1)
    steps = list(records_of(run))
    told_then = ragen2("train", "--resume", str(run), "--engine", "verl", "--gpus-per-node", "1")
    return Stopped(run, told_first, steps, told_then)


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Path:
    """The same by our own loop."""
    run = tmp_path_factory.mktemp("own") / "run"
    train_here(run, *PPO)
    ragen2("train", "--resume", str(run))
    return run


def test_a_step_that_keeps_nothing_ends_the_run_and_says_how_to_go_on(stopped):
    assert stopped.steps_first == [0, 1, 2]
    assert "the filter kept no prompt for 1 steps in a row" in stopped.told_first
    assert f"--resume {stopped.run} --engine verl" in stopped.told_first
    second = records_of(stopped.run)[2]
    assert second.kept == [False] * 4
    assert "no update: step 2 is quiet" in second.note
    assert second.metrics["update/steps"] == 0.0
    assert "update/loss" not in second.metrics


def test_without_an_update_the_weights_stay(stopped):
    assert far_apart(weights_at(stopped.run, 1), weights_at(stopped.run, 2)) == 0.0


def test_it_goes_on_to_its_last_step(stopped):
    assert "trained to step 3" in stopped.told_then
    found = records_of(stopped.run)
    assert list(found) == [0, 1, 2, 3]
    assert "eval/success" in found[3].metrics


def test_it_goes_on_from_the_saved_weights(stopped):
    check_tokens(stopped.run, 3, weights_at(stopped.run, 2), within=1e-4)


HOUSEKEEPING = {"update/critic_skipped_steps", "update/skipped_steps", "update/padding"}
"""What our own learner counts and verl does not tell."""
BEFORE = {"update/entropy", "update/sampler_mismatch"}
"""Measured before the update here, and in our own learner in the course of it."""


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_every_number_of_every_step_is_that_of_our_own_loop(stopped, own, step):
    here, there = records_of(own)[step], records_of(stopped.run)[step]
    assert there.metrics.keys() == here.metrics.keys() - HOUSEKEEPING
    for name in there.metrics.keys() - BEFORE:
        expected = pytest.approx(here.metrics[name], rel=1e-2, abs=1e-3)
        assert there.metrics[name] == expected, name
    assert (there.kept, there.seeds, there.note) == (here.kept, here.seeds, here.note)
    assert (there.absent, there.regime) == (here.absent, here.regime)


def test_the_weights_are_those_of_our_own_loop(stopped, own):
    moved = far_apart("ragen2-tiny", weights_at(own, 3))
    # AdamW turns rounding into steps of lr where a gradient is nearly 0, so not all agree.
    assert far_apart(weights_at(own, 3), weights_at(stopped.run, 3)) < 0.05 * moved
