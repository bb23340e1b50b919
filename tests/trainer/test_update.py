"""One update: credit reaches the tokens, the learner sees what was kept and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from ragen2.algorithms import GRPO, PPO, Algorithm, DrGRPO, ReinforcePlusPlus
from ragen2.backends.agent import Agent, open_agent
from ragen2.backends.learner.forward import TrainingForward
from ragen2.backends.settings import LearnerSettings, ModelSettings
from ragen2.config import RunConfig
from ragen2.filtering import KeepAll
from ragen2.policy import CriticSettings
from ragen2.rollout import Rollout
from ragen2.trainer.update import credited_samples, flatten, samples_of, update
from ragen2.types import FloatArray, Group, Sample, Selection, StopReason, Trajectory, Update

ALGORITHMS = sorted(Algorithm.kinds())


@dataclass
class Noting:
    """A learner that learns nothing and remembers what it was asked."""

    given: dict[str, list[Sample]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    value: float = 0.25
    kl: float = 0.5

    def _note(self, name: str, samples: Sequence[Sample]) -> None:
        self.calls.append(name)
        self.given[name] = list(samples)

    def values(self, samples: Sequence[Sample]) -> list[FloatArray]:
        self._note("values", samples)
        return [np.full(int(s.loss_mask_T.sum()), self.value) for s in samples]

    def kl_to_reference(self, samples: Sequence[Sample], estimator: str) -> list[FloatArray]:
        self._note("kl", samples)
        return [np.full(int(s.loss_mask_T.sum()), self.kl) for s in samples]

    def update_critic(
        self, samples: Sequence[Sample], settings: CriticSettings
    ) -> dict[str, float]:
        self._note("critic", samples)
        return {"value_loss": 0.1}

    def update(self, samples: Sequence[Sample], objective: Any, *, scale: float) -> Update:
        self._note("update", samples)
        return Update({"loss": scale}, len(samples), 1)


def config(algorithm: Algorithm, **changes: Any) -> RunConfig:
    settings = {"algorithm": algorithm, "rollout": Rollout(max_tokens=8, temperature=0.7)}
    return RunConfig.model_validate(settings | changes)


def everything(groups: Sequence[Group]) -> Selection:
    return KeepAll().select(groups)


def written(samples: Sequence[Sample], name: str = "advantages_T") -> list[list[float]]:
    return [getattr(s, name)[s.loss_mask_T].tolist() for s in samples]


def silent_group(group: Group) -> Group:
    """The same prompt, and nobody got to write a word."""
    members = tuple(
        Trajectory(one.prompt, one.luck, (), StopReason.CONTEXT_FULL, solved=False)
        for one in group.trajectories
    )
    return Group(group.prompt, members)


# --- what the learner is given ---------------------------------------------------------------------


def test_the_learner_gets_the_kept_groups_with_their_advantages(group_of):
    groups = [group_of([0.0, 1.0], seed=1), group_of([5.0, 7.0], seed=2)]
    selection = Selection(np.array([False, True]), np.array([0.5, 2.0]))
    learner = Noting()
    update(config(DrGRPO()), learner, selection, groups, 1)
    assert written(learner.given["update"]) == [[-1.0] * 3, [1.0] * 3]


def test_samples_carry_the_temperature_they_were_sampled_at(group_of):
    groups = [group_of([0.0, 1.0])]
    samples = credited_samples(config(GRPO()), Noting(), everything(groups), groups).samples
    assert {sample.temperature for sample in samples} == {0.7}


def test_weights_of_prompts_multiply_their_advantages(group_of):
    groups = [group_of([0.0, 1.0], seed=1), group_of([0.0, 0.0], seed=2), group_of([0.0, 2.0])]
    selection = Selection(
        np.array([True, False, True]), np.ones(3), weights_P=np.array([0.5, 9.0, 1.0])
    )
    samples = credited_samples(config(DrGRPO()), Noting(), selection, groups).samples
    assert [row[0] for row in written(samples)] == [-0.25, 0.25, -1.0, 1.0]


def test_members_left_out_are_not_trained_on_and_do_not_move_the_baseline(group_of):
    groups = [group_of([0.0, 1.0, 5.0])]
    members = (np.array([True, False, True]),)
    selection = Selection(np.array([True]), np.ones(1), members=members)
    samples = credited_samples(config(DrGRPO()), Noting(), selection, groups).samples
    assert [row[0] for row in written(samples)] == [-2.0, 3.0]


def test_weights_and_members_go_to_the_right_groups_when_some_are_dropped(group_of):
    groups = [group_of([0.0, 1.0], seed=s) for s in (1, 2, 3)]
    selection = Selection(
        np.array([False, True, True]),
        np.ones(3),
        weights_P=np.array([7.0, 2.0, 4.0]),
        members=tuple(np.array(m) for m in ([True, True], [True, False], [False, True])),
    )
    samples = credited_samples(config(DrGRPO()), Noting(), selection, groups).samples
    assert [row[0] for row in written(samples)] == [-1.0, 2.0]


def test_weights_do_not_touch_what_a_critic_should_have_said(group_of):
    groups = [group_of([0.0, 1.0])]
    plain, weighed = (
        credited_samples(
            config(PPO(whiten=False)),
            Noting(),
            Selection(np.array([True]), np.ones(1), weights_P=np.array([weight])),
            groups,
        ).samples
        for weight in (1.0, 0.5)
    )
    assert written(plain, "returns_T") == written(weighed, "returns_T")
    assert np.array(written(weighed)) == pytest.approx(0.5 * np.array(written(plain)))


@pytest.mark.parametrize(
    ("loss_scale", "expected"), [("none", 1.0), ("linear", 0.25), ("sqrt", 0.5)]
)
def test_the_loss_is_scaled_by_the_kept_ratio(group_of, loss_scale, expected):
    groups = [group_of([0.0, 1.0], seed=s) for s in range(4)]
    selection = Selection(np.array([True, False, False, False]), np.ones(4))
    found = update(config(GRPO(), loss_scale=loss_scale), Noting(), selection, groups, 1)
    assert found.metrics["loss"] == expected


# --- PPO and KL in the reward ----------------------------------------------------------------------


def test_ppo_trains_the_critic_then_the_policy_on_the_same_samples(group_of):
    groups, learner = [group_of([0.0, 1.0])], Noting()
    found = update(config(PPO(whiten=False)), learner, everything(groups), groups, 1)
    assert learner.calls == ["values", "critic", "update"]
    assert found.metrics == {"value_loss": 0.1, "loss": 1.0}
    for name in ("critic", "update"):
        samples = learner.given[name]
        assert written(samples, "values_T") == [[0.25] * 3] * 2
        assert written(samples, "returns_T") == [[0.0] * 3, [1.0] * 3]
        assert written(samples) == [[-0.25] * 3, [0.75] * 3]


def test_in_the_warm_up_the_critic_is_trained_alone(group_of):
    groups = [group_of([0.0, 1.0])]
    for step, calls in ((1, 2), (2, 2), (3, 3)):
        learner = Noting()
        found = update(config(PPO(critic_warmup=2)), learner, everything(groups), groups, step)
        assert len(learner.calls) == calls
        assert found.num_steps == int(step > 2)
        assert found.metrics["value_loss"] == 0.1


def test_kl_in_the_reward_is_taken_off_each_token(group_of):
    groups, learner = [group_of([0.0, 1.0])], Noting()
    algorithm = PPO(kl_coefficient=0.2, kl_in="reward", whiten=False)
    done = update(config(algorithm), learner, everything(groups), groups, 1)
    assert learner.calls == ["kl", "values", "critic", "update"]
    assert done.metrics["kl"] == pytest.approx(learner.kl)
    # Three tokens that each cost 0.1; what is left to pay falls by that at every token.
    for found, final in zip(written(learner.given["critic"], "returns_T"), (0.0, 1.0), strict=True):
        assert found == pytest.approx([final - 0.3, final - 0.2, final - 0.1])


def test_kl_in_the_loss_asks_for_no_reference_before_the_update(group_of):
    groups, learner = [group_of([0.0, 1.0])], Noting()
    update(config(GRPO(kl_coefficient=0.2)), learner, everything(groups), groups, 1)
    assert learner.calls == ["update"]


# --- nothing written -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALGORITHMS)
@pytest.mark.parametrize("settings", [{}, {"kl_coefficient": 0.1, "kl_in": "reward"}])
def test_trajectories_without_turns_make_no_update(kind, settings, group_of):
    groups, learner = [silent_group(group_of([0.0, 1.0]))], Noting()
    algorithm = Algorithm.from_dict({"kind": kind, **settings})
    assert update(config(algorithm), learner, everything(groups), groups, 1) is None
    assert learner.calls == []


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_nothing_kept_makes_no_update(kind, group_of):
    groups, learner = [group_of([0.0, 1.0])], Noting()
    nothing = Selection(np.array([False]), np.zeros(1), "because")
    algorithm = Algorithm.from_dict({"kind": kind})
    assert update(config(algorithm), learner, nothing, groups, 1) is None
    assert learner.calls == []


MIXED = [
    PPO(),
    PPO(bi_level=True),
    ReinforcePlusPlus(),
    ReinforcePlusPlus(baseline="group"),
    GRPO(credit_to="turn", kl_coefficient=0.1, kl_in="reward"),
    GRPO(aggregation="seq_mean_token_mean"),
]


@pytest.mark.parametrize("algorithm", MIXED, ids=lambda one: one.kind)
def test_members_that_wrote_nothing_stand_beside_those_that_did(algorithm, group_of, turn_of):
    """A member without turns, one whose turns are all empty, one with an empty turn in between."""
    group = group_of([0.0, 1.0, 0.5, 2.0])
    first, second, third, fourth = group.trajectories
    hollow = turn_of(ids=[], reward=1.0, reasoning_span=(0, 0), action_span=(0, 0))
    odd = Group(
        group.prompt,
        (
            first,
            replace(second, turns=()),
            replace(third, turns=(hollow,)),
            replace(fourth, turns=(fourth.turns[0], hollow, turn_of(reward=3.0))),
        ),
    )
    learner = Noting()
    found = update(config(algorithm), learner, everything([odd]), [odd], 1)
    assert found is not None
    samples = learner.given["update"]
    assert all(sample.loss_mask_T.any() for sample in samples)
    assert sum(int(sample.loss_mask_T.sum()) for sample in samples) == 9
    assert all(np.isfinite(sample.advantages_T).all() for sample in samples)


# --- what a dropped prompt costs -------------------------------------------------------------------

EVERY_PASS = PPO(kl_coefficient=0.1, kl_in="reward")


@pytest.fixture(scope="module")
def agents() -> dict[str, Agent]:
    settings = LearnerSettings(lr=1e-5, micro_tokens=40, minibatches=2)
    model = ModelSettings(device="cpu")
    found = {"ppo": EVERY_PASS, "grpo": GRPO(kl_coefficient=0.1)}
    return {
        name: open_agent(model, settings, seed=0, algorithm=algorithm)
        for name, algorithm in found.items()
    }


@pytest.fixture
def nothing_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beginnings that samples share are read with each, so that tokens can be counted by hand."""
    monkeypatch.setattr(TrainingForward, "shares", False)


@contextmanager
def counted(agent: Agent) -> Iterator[dict[str, int]]:
    """Tokens that each of a learner's passes takes forward, and backward."""
    learner = agent.learner
    passes = {"policy": learner.forward, "reference": learner._reference}
    if learner._critic is not None:
        passes["critic"] = learner._critic.forward
    tokens = dict.fromkeys(
        [f"{name} {way}" for name in passes for way in ("forward", "backward")], 0
    )

    def counting(rows, name):
        def noted(batch):
            found, count = rows(batch), batch.ids.numel()
            tokens[f"{name} forward"] += count
            if found.requires_grad:
                found.register_hook(lambda _: tokens.update({way: tokens[way] + count}))
            return found

        way = f"{name} backward"
        return noted

    for name, reader in passes.items():
        reader.rows = counting(reader.rows, name)
    yield tokens
    for reader in passes.values():
        del reader.rows


@pytest.mark.parametrize("name", ["ppo", "grpo"])
@pytest.mark.usefixtures("nothing_shared")
def test_dropped_prompts_cost_no_forward_or_backward_pass(agents, group_of, name):
    agent = agents[name]
    algorithm = EVERY_PASS if name == "ppo" else GRPO(kl_coefficient=0.1)
    groups = [group_of([0.0, 1.0, 0.0], seed=seed) for seed in range(5)]
    found = {}
    for count in (5, 2, 0):
        selection = Selection(np.arange(5) < count, np.ones(5), "" if count else "nothing")
        with counted(agent) as tokens:
            update(config(algorithm), agent.learner, selection, groups, 1)
        found[count] = dict(tokens)
    # Each kept rollout goes once through the policy and its reference, and with PPO twice forward
    # (values, then the critic's own update) and once backward through the critic.
    once = {"policy forward": 1, "policy backward": 1, "reference forward": 1}
    passes = {**once, "reference backward": 0}
    if name == "ppo":
        passes |= {"critic forward": 2, "critic backward": 1}
    for count, tokens in found.items():
        kept = sum(len(one.ids_T) for one in flatten(samples_of(groups[:count], 1.0)))
        assert (kept > 0) == (count > 0)
        assert tokens == {way: kept * times for way, times in passes.items()}
