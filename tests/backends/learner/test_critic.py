"""The critic: one value before each written token, honest steps, exact saves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ragen2.algorithms import GRPO, PPO
from ragen2.backends.learner.critic import CRITIC_FILE, Critic
from ragen2.backends.learner.learner import TorchLearner
from ragen2.backends.settings import LearnerSettings, ModelSettings
from ragen2.errors import RunError
from ragen2.types import Sample

Samples = Callable[..., list[Sample]]

LENGTHS = [40, 44, 41, 50, 47, 42, 49, 45]
LORA = ModelSettings(lora_rank=4)


def learner_of(parts: Any, model: ModelSettings | None = None, **settings: Any) -> TorchLearner:
    """A learner with its own copy of the network, and a critic beside it."""
    chosen = LearnerSettings(**{"lr": 1e-3, **settings})
    learner = TorchLearner(
        copy.deepcopy(parts[0]), parts[1], model or ModelSettings(), chosen, seed=0
    )
    learner.start_critic(1e-2)
    return learner


def critic_of(learner: TorchLearner) -> Critic:
    return learner._need_critic()


def talkative(critic: Critic) -> Critic:
    """A critic that says something else at every token."""
    with torch.no_grad():
        critic.head.weight.copy_(torch.linspace(-1, 1, critic.head.in_features)[None])
        critic.head.bias.fill_(0.3)
    return critic


def with_targets(samples: list[Sample], values: Any = 0.0, returns: Any = 1.0) -> list[Sample]:
    return [
        replace(
            sample,
            values_T=np.where(sample.loss_mask_T, values, 0.0),
            returns_T=np.where(sample.loss_mask_T, returns, 0.0),
        )
        for sample in samples
    ]


def flat(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([value.flatten() for _, value in sorted(module.state_dict().items())])


# --- values ----------------------------------------------------------------------------------------


def test_its_first_word_is_nothing_to_come(small: Any, random_samples: Samples) -> None:
    samples = random_samples(LENGTHS)
    values = learner_of(small).values(samples)
    assert [len(v) for v in values] == [int(s.loss_mask_T.sum()) for s in samples]
    assert not np.concatenate(values).any()


def test_a_value_is_read_off_the_position_before_its_token(
    small: Any, random_samples: Samples
) -> None:
    critic = talkative(critic_of(learner_of(small)))
    (sample,) = random_samples([30])
    with torch.no_grad():
        hidden = critic.network.model(torch.tensor(sample.ids_T)[None]).last_hidden_state[0]
        wanted = critic.head(hidden)[:, 0].numpy()
    places = np.flatnonzero(sample.loss_mask_T) - 1
    assert critic.values([sample])[0] == pytest.approx(wanted[places], abs=1e-5)


def test_a_value_does_not_look_at_its_token_or_later_ones(
    small: Any, random_samples: Samples
) -> None:
    critic = talkative(critic_of(learner_of(small)))
    (sample,) = random_samples([30])
    other = sample.ids_T.copy()
    last = int(np.flatnonzero(sample.loss_mask_T)[-1])
    other[last] = (other[last] + 7) % 200 + 5
    before, after = (critic.values([s])[0] for s in (sample, replace(sample, ids_T=other)))
    assert after == pytest.approx(before, abs=1e-6)


@pytest.mark.parametrize("size", [1, 3])
def test_values_come_in_the_order_of_samples_however_they_are_batched(
    small: Any, random_samples: Samples, size: int
) -> None:
    samples = random_samples(LENGTHS)
    whole = talkative(critic_of(learner_of(small))).values(samples)
    parts = talkative(critic_of(learner_of(small, micro_tokens=size * max(LENGTHS))))
    for one, other in zip(whole, parts.values(samples), strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_a_sample_without_written_tokens_has_no_values(small: Any, random_samples: Samples) -> None:
    first, second = random_samples([30, 20])
    silent = replace(second, loss_mask_T=np.zeros(20, dtype=np.bool_))
    values = talkative(critic_of(learner_of(small))).values([silent, first, silent])
    assert [len(v) for v in values] == [0, int(first.loss_mask_T.sum()), 0]


def test_a_learner_without_a_critic_says_so(small: Any, random_samples: Samples) -> None:
    learner = TorchLearner(small[0], small[1], ModelSettings(), LearnerSettings(), seed=0)
    with pytest.raises(RunError, match=r"needs a critic; call start_critic\(\)"):
        learner.values(random_samples([20]))


# --- updates ---------------------------------------------------------------------------------------


def test_it_learns_what_is_to_come(small: Any, random_samples: Samples) -> None:
    learner, samples = learner_of(small), random_samples(LENGTHS)
    settings = PPO(value_clip=0.0).critic
    found = [learner.update_critic(with_targets(samples), settings) for _ in range(12)]
    assert found[0]["value_loss"] == pytest.approx(0.5)
    assert found[-1]["value_loss"] < 0.1
    assert np.concatenate(learner.values(samples)).mean() > 0.5


@pytest.mark.parametrize("size", [1, 3])
def test_how_a_batch_is_cut_does_not_change_the_step(
    small: Any, random_samples: Samples, size: int
) -> None:
    samples = with_targets(random_samples(LENGTHS), values=0.1)
    found = []
    for budget in (size * max(LENGTHS), 10_000):
        learner = learner_of(small, micro_tokens=budget)
        metrics = learner.update_critic(samples, PPO().critic)
        found.append((metrics, flat(critic_of(learner).head)))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-5)
    assert (found[0][1] - found[1][1]).abs().max() < 1e-5


def test_the_first_steps_loss_and_gradient_by_hand(small: Any, random_samples: Samples) -> None:
    """At value 0 the loss is half the mean squared return, and the bias has minus its mean."""
    learner = learner_of(small, grad_clip=1e9)
    returns = np.linspace(-1.0, 2.0, 40)
    (sample,) = with_targets(random_samples([40]), returns=returns)
    written = returns[sample.loss_mask_T]
    found = learner.update_critic([sample], PPO(value_clip=0.0).critic)
    assert found["value_loss"] == pytest.approx(0.5 * float((written**2).mean()), rel=1e-5)
    bias = critic_of(learner).head.bias
    moment = learner._need_critic().optimiser.state[bias]["exp_avg"]
    assert float(moment) == pytest.approx(-0.1 * float(written.mean()), rel=1e-4)


def test_explained_variance_is_of_the_values_before_the_update(
    small: Any, random_samples: Samples
) -> None:
    returns = np.arange(30.0)
    (sample,) = random_samples([30])
    for values, wanted in ((returns, 1.0), (np.zeros(30), 0.0), (returns / 2, 0.75)):
        (given,) = with_targets([sample], values=values, returns=returns)
        found = learner_of(small).update_critic([given], PPO().critic)
        assert found["explained_variance"] == pytest.approx(wanted)


def test_returns_that_do_not_vary_leave_nothing_to_explain(
    small: Any, random_samples: Samples
) -> None:
    found = learner_of(small).update_critic(with_targets(random_samples([30])), PPO().critic)
    assert "explained_variance" not in found


def test_it_takes_as_many_steps_as_the_policy(small: Any, random_samples: Samples) -> None:
    learner = learner_of(small, epochs=2, minibatches=3)
    learner.update_critic(with_targets(random_samples(LENGTHS)), PPO().critic)
    (steps,) = {int(s["step"]) for s in critic_of(learner).optimiser.state.values()}
    assert steps == 6


def test_samples_without_targets_are_refused(small: Any, random_samples: Samples) -> None:
    with pytest.raises(ValueError, match="carry values and returns"):
        learner_of(small).update_critic(random_samples([20]), PPO().critic)


def test_a_target_that_is_not_a_number_changes_nothing_and_is_counted(
    small: Any, random_samples: Samples
) -> None:
    learner = learner_of(small)
    before = flat(critic_of(learner).network), flat(critic_of(learner).head)
    found = learner.update_critic(with_targets(random_samples([30]), returns=np.nan), PPO().critic)
    assert found["critic_skipped_steps"] == 1.0
    assert "value_loss" not in found
    assert torch.equal(flat(critic_of(learner).network), before[0])
    assert torch.equal(flat(critic_of(learner).head), before[1])


def test_too_many_such_targets_in_a_row_end_the_run(small: Any, random_samples: Samples) -> None:
    learner = learner_of(small, max_bad_updates=2)
    bad = with_targets(random_samples([30]), returns=np.nan)
    learner.update_critic(bad, PPO().critic)
    learner.update_critic(with_targets(random_samples([30])), PPO().critic)
    learner.update_critic(bad, PPO().critic)
    with pytest.raises(RunError, match=r"^2 updates of the critic in a row .* algorithm.critic_lr"):
        learner.update_critic(bad, PPO().critic)


@pytest.mark.parametrize("model", [ModelSettings(), LORA])
def test_policy_and_critic_do_not_touch_each_other(
    small: Any, random_samples: Samples, model: ModelSettings
) -> None:
    learner = learner_of(small, model)
    samples = with_targets(random_samples(LENGTHS))
    policy, critic = flat(learner.network), flat(critic_of(learner).network)
    learner.update_critic(samples, PPO().critic)
    learner.update_critic(
        samples, PPO().critic
    )  # the first step moves the head alone: it starts at 0
    assert torch.equal(flat(learner.network), policy)
    moved = flat(critic_of(learner).network)
    assert not torch.equal(moved, critic)
    learner.update(samples, PPO(), scale=1.0)
    assert not torch.equal(flat(learner.network), policy)
    assert torch.equal(flat(critic_of(learner).network), moved)


def test_beside_lora_the_critic_is_the_whole_model_without_adapters(small: Any) -> None:
    critic = critic_of(learner_of(small, LORA))
    assert not [name for name in critic.network.state_dict() if "lora" in name]
    assert all(p.requires_grad for p in critic.network.parameters())
    ids = torch.arange(10, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(critic.network(ids).logits, small[0](ids).logits)


# --- saves -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [ModelSettings(), LORA])
def test_save_and_load_restore_bit_for_bit(
    small: Any, random_samples: Samples, tmp_path: Path, model: ModelSettings
) -> None:
    samples = with_targets(random_samples(LENGTHS))
    one, two = (learner_of(small, model, minibatches=2) for _ in range(2))
    one.update_critic(samples, PPO().critic)
    one.update(samples, PPO(), scale=1.0)
    one.save(tmp_path)
    two.load(tmp_path)
    found = [
        (
            learner.update_critic(samples, PPO().critic),
            dict(learner.update(samples, PPO(), scale=1.0).metrics),
            np.concatenate(learner.values(samples)).tolist(),
        )
        for learner in (one, two)
    ]
    assert found[0] == found[1]
    assert torch.equal(flat(critic_of(one).network), flat(critic_of(two).network))


def test_bad_steps_in_a_row_are_counted_over_a_resume(
    small: Any, random_samples: Samples, tmp_path: Path
) -> None:
    one, two = (learner_of(small, max_bad_updates=2) for _ in range(2))
    bad = with_targets(random_samples([30]), returns=np.nan)
    one.update_critic(bad, PPO().critic)
    one.save(tmp_path)
    two.load(tmp_path)
    with pytest.raises(RunError, match="2 updates of the critic in a row"):
        two.update_critic(bad, PPO().critic)


def damaged(kind: str, file: Path) -> None:
    whole = file.read_bytes()
    if kind == "missing":
        file.unlink()
    elif kind in {"empty", "text", "cut"}:
        file.write_bytes(
            {"empty": b"", "text": b"no archive", "cut": whole[: len(whole) // 2]}[kind]
        )
    else:
        state = torch.load(file, weights_only=True)
        if kind == "list":
            state = [1, 2]
        elif kind == "lacking":
            del state["head"]
        elif kind == "another model":
            state["head"]["weight"] = torch.zeros(1, 3)
        elif kind == "another optimiser":
            state["optimiser"]["param_groups"].append(state["optimiser"]["param_groups"][0])
        torch.save(state, file)


@pytest.mark.parametrize(
    "kind",
    ["missing", "empty", "text", "cut", "list", "lacking", "another model", "another optimiser"],
)
def test_a_damaged_file_is_one_line(small: Any, tmp_path: Path, kind: str) -> None:
    learner = learner_of(small)
    learner.save(tmp_path)
    damaged(kind, tmp_path / CRITIC_FILE)
    with pytest.raises(RunError, match=r"^checkpoint .* cannot be read: \S") as caught:
        learner.load(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_checkpoint_of_another_algorithm_has_no_critic_to_load(
    small: Any, random_samples: Samples, tmp_path: Path
) -> None:
    plain = TorchLearner(
        copy.deepcopy(small[0]), small[1], ModelSettings(), LearnerSettings(), seed=0
    )
    plain.update(random_samples([20]), GRPO(), scale=1.0)
    plain.save(tmp_path)
    assert not (tmp_path / CRITIC_FILE).exists()
    with pytest.raises(RunError, match="No such file"):
        learner_of(small).load(tmp_path)
