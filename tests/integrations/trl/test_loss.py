"""The filter inside TRL's loss: dropped groups leave nothing behind, kept ones what they have alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pandas
import pytest
import torch
from trl import GRPOTrainer

from ragen2.errors import ConfigError
from ragen2.filtering import KeepAll, Soft, TopP, TrajectoryControl
from ragen2.integrations.trl import SNRGRPOTrainer, SNRSettings
from ragen2.integrations.trl.settings import BATCH_MEANS, ROW_MEANS, TOKEN_MEANS

LOSS_TYPES = sorted(ROW_MEANS | TOKEN_MEANS | BATCH_MEANS)
MIXED = jobs.paid({0: [0, 1, 1, 0], 1: [1, 1, 1, 1], 2: [0, 0, 0, 1], 3: [0, 0, 0, 0]})
EQUAL = jobs.paid({number: [1, 1, 1, 1] for number in range(4)})
ALL_SIGNAL = SNRSettings(filter=TopP(mass=1.0), diagnostics=())
CLOSE = 1e-5


def gap(one: torch.Tensor, other: torch.Tensor) -> float:
    """Largest difference, as a share of the largest entry."""
    return float((one - other).abs().max() / other.abs().max())


def both(tmp_path: Path, rewards: Any, **changes: Any) -> tuple[Any, Any]:
    """Four groups with the filter, and plain TRL on the two that have variance."""
    rows = changes.pop("rows", 16)
    snr = changes.pop("snr", ALL_SIGNAL)
    ours = jobs.run(
        SNRGRPOTrainer,
        tmp_path,
        jobs.tasks(0, 1, 2, 3),
        rewards,
        snr=snr,
        per_device_train_batch_size=rows,
        **changes,
    )
    theirs = jobs.run(
        GRPOTrainer,
        tmp_path,
        jobs.tasks(0, 2),
        rewards,
        per_device_train_batch_size=rows // 2,
        **changes,
    )
    return ours, theirs


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_without_reward_variance_the_gradient_is_exactly_zero_and_plain_trl_moves(
    tmp_path, loss_type
):
    data, size = jobs.tasks(0, 1, 2, 3), {"per_device_train_batch_size": 16, "loss_type": loss_type}
    ours = jobs.run(SNRGRPOTrainer, tmp_path, data, EQUAL, snr=ALL_SIGNAL, **size)
    plain = jobs.run(GRPOTrainer, tmp_path, data, EQUAL, **size)
    assert torch.count_nonzero(ours.gradients[0]) == 0
    assert ours.state.log_history[0]["grad_norm"] == 0.0
    assert plain.state.log_history[0]["grad_norm"] > 0.01


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_gradient_is_that_of_the_kept_groups_alone(tmp_path, loss_type):
    """With policy, KL and entropy terms, for every loss type that TRL has."""
    ours, theirs = both(tmp_path, MIXED, loss_type=loss_type)
    assert gap(ours.gradients[0], theirs.gradients[0]) < CLOSE
    assert ours.state.log_history[0]["kl"] == pytest.approx(theirs.state.log_history[0]["kl"])


def test_the_list_of_loss_types_is_trls(tmp_path):
    described = jobs.arguments(tmp_path).__doc__.partition("loss_type (`str`")[2]
    described = described.partition("mask_truncated_completions")[0]
    assert [name for name in LOSS_TYPES if f'- `"{name}"`' not in described] == []
    assert described.count('- `"') == len(LOSS_TYPES)


def test_a_loss_type_that_is_not_known_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="loss_type 'new' is not one whose denominator is known"):
        jobs.run(SNRGRPOTrainer, tmp_path, jobs.tasks(0, 1), MIXED, loss_type="new")


@pytest.mark.parametrize("loss_type", sorted(ROW_MEANS | TOKEN_MEANS))
def test_micro_batches_do_not_matter_however_unevenly_they_hold_the_kept_rows(tmp_path, loss_type):
    """Four micro-batches, shuffled by TRL, and the batch used for two updates (num_iterations 2)."""
    changes = {
        "loss_type": loss_type,
        "gradient_accumulation_steps": 4,
        "num_iterations": 2,
        "max_steps": 2,
        "learning_rate": 1e-3,
        "entropy_coef": 0.0,
    }
    ours, theirs = both(tmp_path, MIXED, rows=4, **changes)
    assert len(ours.gradients) == len(theirs.gradients) == 2
    for one, other in zip(ours.gradients, theirs.gradients, strict=True):
        assert gap(one, other) < CLOSE


def test_the_entropy_bonus_of_uneven_micro_batches_is_the_mean_of_kept_rows(tmp_path):
    """Micro-batches of one row, without advantages: half of them are dropped and must not dilute."""
    changes = {"beta": 0.0, "per_device_train_batch_size": 1}
    alike = jobs.paid({0: [1, 1, 1, 1], 1: [0, 0, 0, 0], 2: [1, 1, 1, 1], 3: [0, 0, 0, 0]})
    whole = jobs.run(
        GRPOTrainer, tmp_path, jobs.tasks(0, 2), alike, gradient_accumulation_steps=8, **changes
    )
    half = jobs.run(
        SNRGRPOTrainer,
        tmp_path,
        jobs.tasks(0, 1, 2, 3),
        alike,
        snr=SNRSettings(filter=BestMean(), diagnostics=()),
        gradient_accumulation_steps=16,
        **changes,
    )
    assert float(whole.gradients[0].abs().max()) > 0.0
    assert gap(half.gradients[0], whole.gradients[0]) < CLOSE


@pytest.mark.parametrize("loss_type", ["bnpo", "dapo"])
def test_micro_batches_of_dropped_rows_do_not_dilute(tmp_path, loss_type):
    """Micro-batches of one row, all three terms: what the shuffle puts together cannot matter."""
    changes = {"loss_type": loss_type, "per_device_train_batch_size": 1}
    alone = jobs.run(
        GRPOTrainer, tmp_path, jobs.tasks(0, 2), MIXED, gradient_accumulation_steps=8, **changes
    )
    ours = jobs.run(
        SNRGRPOTrainer,
        tmp_path,
        jobs.tasks(0, 1, 2, 3),
        MIXED,
        snr=ALL_SIGNAL,
        gradient_accumulation_steps=16,
        **changes,
    )
    assert gap(ours.gradients[0], alone.gradients[0]) < CLOSE


class BestMean(TopP):
    """Keeps groups of the greatest mean reward: they need no variance."""

    kind: str = "test_best_mean"
    signal: str = "reward_mean"

    def keep(self, scores_P: Any) -> Any:
        return scores_P == scores_P.max()


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo"])
def test_batch_scaled_rewards_are_scaled_by_the_kept_rewards(tmp_path, loss_type):
    rewards = jobs.paid({0: [0, 1, 1, 0], 1: [9, 9, 9, 9], 2: [0, 0, 0, 1], 3: [0, 0, 0, 0]})
    ours, theirs = both(tmp_path, rewards, loss_type=loss_type, scale_rewards="batch")
    assert gap(ours.gradients[0], theirs.gradients[0]) < CLOSE


def test_entropy_before_the_filter_is_logged_beside_that_of_the_kept_groups(tmp_path):
    ours, theirs = both(tmp_path, MIXED)
    whole = jobs.run(
        GRPOTrainer, tmp_path, jobs.tasks(0, 1, 2, 3), MIXED, per_device_train_batch_size=16
    )
    logged = ours.state.log_history[0]
    assert logged["entropy"] == pytest.approx(theirs.state.log_history[0]["entropy"], rel=1e-5)
    expected = whole.state.log_history[0]["entropy"]
    assert logged["filter/entropy_before"] == pytest.approx(expected, rel=1e-5)
    assert abs(logged["entropy"] - expected) > 1e-3


def test_measuring_without_filtering_changes_nothing(tmp_path):
    """Real sampling by TRL, updates and diagnostics on: the weights are those of plain TRL, bit for bit."""
    weights = []
    for trainer, more in (
        (GRPOTrainer, {}),
        (SNRGRPOTrainer, {"snr": SNRSettings(filter=KeepAll(), reasoning="all")}),
    ):
        done = jobs.run(
            trainer,
            tmp_path,
            jobs.tasks(0, 1, 2, 3),
            lambda completions, **_: [float(len(one[0]["content"]) % 5) for one in completions],
            rollout_func=None,
            per_device_train_batch_size=8,
            max_steps=3,
            learning_rate=1e-3,
            max_completion_length=12,
            **more,
        )
        weights.append(torch.cat([p.detach().flatten() for p in done.model.parameters()]))
    assert torch.equal(*weights)


def test_soft_weights_multiply_the_advantages(tmp_path):
    """One group has a quarter of the greatest signal: its policy gradient is weighed by a quarter."""
    rewards = jobs.paid({0: [0, 2, 2, 0], 2: [0, 1, 1, 0]})
    plain = {"beta": 0.0, "entropy_coef": 0.0, "scale_rewards": "none", "loss_type": "dr_grpo"}
    settings = SNRSettings(filter=Soft(), diagnostics=())
    data = jobs.tasks(0, 2)
    soft = jobs.run(
        SNRGRPOTrainer,
        tmp_path / "soft",
        data,
        rewards,
        snr=settings,
        per_device_train_batch_size=8,
        **plain,
    )
    weights = settings.filter.weights(torch.tensor([4 / 3, 1 / 3]).double().numpy())
    weighted = jobs.paid(
        {0: [0, 2 * weights[0], 2 * weights[0], 0], 2: [0, weights[1], weights[1], 0]}
    )
    by_hand = jobs.run(
        GRPOTrainer, tmp_path, data, weighted, per_device_train_batch_size=8, **plain
    )
    assert weights[0] != weights[1]
    assert gap(soft.gradients[0], by_hand.gradients[0]) < CLOSE


def test_a_filter_may_drop_single_rows(tmp_path):
    """The best and the worst of each group are left, and what is kept can be read in TRL's table."""
    rewards = jobs.paid({0: [0, 1, 1, 0], 2: [0, 0, 0, 1]})
    done = jobs.run(
        SNRGRPOTrainer,
        tmp_path,
        jobs.tasks(0, 2),
        rewards,
        snr=SNRSettings(filter=TrajectoryControl(share=0.5), diagnostics=()),
        per_device_train_batch_size=8,
        log_completions=True,
        num_completions_to_print=0,
    )
    table = pandas.read_parquet(tmp_path / "out" / "completions" / "completions_00001.parquet")
    assert table["snr_kept"].tolist() == [False, True, False, True, False, False, True, True]
    assert float(done.gradients[0].abs().max()) > 0.0
