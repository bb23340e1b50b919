"""Gradient statistics on vectors whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen2.backends.learner.optimiser import TensorGradient
from ragen2.diagnostics.metrics.gradients import (
    BucketGradient,
    GradientReport,
    PolicyGradient,
    cosines,
    edge_buckets,
    norm,
    rank_buckets,
)


def vector(*values: float) -> TensorGradient:
    return TensorGradient(torch.tensor(values, dtype=torch.float64))


def test_rank_buckets_go_from_low_to_high_and_differ_by_one_at_most():
    assert rank_buckets(np.array([5.0, 0.0, 3.0, 1.0, 4.0]), 2) == [[1, 3, 2], [4, 0]]
    assert rank_buckets(np.array([1.0, 0.0]), 6) == [[1], [0]]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=40), st.integers(1, 8))
def test_rank_buckets_hold_every_prompt_once(values, count):
    buckets = rank_buckets(np.array(values), count)
    assert sorted(p for bucket in buckets for p in bucket) == list(range(len(values)))
    assert all(buckets)


def test_edge_buckets_start_at_their_edge():
    assert edge_buckets(np.array([0.0, 0.5, 1.0, 99.0]), [0.0, 0.5, 1.0]) == [[0], [1], [2, 3]]
    assert edge_buckets(np.array([0.1]), [0.0, 5.0]) == [[0], []]


def test_norm_and_cosines_by_hand():
    vectors = {
        "task": vector(3.0, 4.0),
        "kl": vector(0.0, 2.0),
        "entropy": vector(0.0, 0.0),
    }
    assert norm(vectors["task"]) == 5.0
    assert cosines(vectors) == {"task_kl": pytest.approx(0.8)}


def test_a_norm_is_summed_in_double_precision():
    assert norm(TensorGradient(torch.full((40_000_000,), 1e-4))) == pytest.approx(
        0.63245553, rel=1e-6
    )


def test_policy_gradient_by_hand():
    found = PolicyGradient()
    found.add(vector(1.0, 0.0), 2.0)
    found.add(vector(0.0, 3.0), -1.0)
    assert found.mean_norm == pytest.approx(np.hypot(2.0, -3.0) / 2)
    assert found.score_rms == pytest.approx(np.sqrt((1 + 9) / 2))
    noise = np.cov(np.array([[2.0, 0.0], [0.0, -3.0]]).T).trace() / 2
    assert found.snr == pytest.approx(found.mean_norm**2 / noise)


def test_joining_is_adding_all_rollouts():
    rng = np.random.default_rng(0)
    vectors, advantages = rng.normal(size=(6, 4)), rng.normal(size=6)
    whole, first, second = PolicyGradient(), PolicyGradient(), PolicyGradient()
    for i, (score, advantage) in enumerate(zip(vectors, advantages, strict=True)):
        whole.add(vector(*score), advantage)
        (first if i < 2 else second).add(vector(*score), advantage)
    first.join(second)
    assert first.mean_norm == pytest.approx(whole.mean_norm)
    assert first.snr == pytest.approx(whole.snr)
    assert first.score_rms == pytest.approx(whole.score_rms)


@given(st.integers(0, 1000))
def test_cauchy_schwarz_bounds_the_prompts_gradient(seed):
    rng = np.random.default_rng(seed)
    rewards = rng.normal(size=5)
    found = PolicyGradient()
    for reward in rewards:
        found.add(vector(*rng.normal(size=7)), reward - rewards.mean())
    assert found.mean_norm <= rewards.std() * found.score_rms + 1e-12


def test_one_rollout_has_no_snr():
    found = PolicyGradient()
    found.add(vector(1.0), 1.0)
    assert found.snr is None
    assert PolicyGradient().mean_norm == 0.0


def test_trends_leave_the_whole_batch_out():
    def bucket(name: str, variance: float, task: float, kl: float) -> BucketGradient:
        norms = {"task": task, "kl": kl}
        return BucketGradient(name, 1, 2, variance, variance, variance, norms, {}, None)

    report = GradientReport(
        (
            bucket("bucket_1", 0.0, 0.0, 2.0),
            bucket("bucket_2", 0.1, 1.0, 1.0),
            bucket("bucket_3", 0.3, 4.0, 1.5),
            bucket("all", 0.1, 99.0, 99.0),
        ),
        (),
    )
    task, kl = report.trends()
    assert (task.part, task.lowest, task.highest, task.spread) == ("task", 0.0, 4.0, None)
    assert task.rank_correlation == pytest.approx(1.0)
    assert (kl.part, kl.spread) == ("kl", 2.0)
    assert kl.rank_correlation == pytest.approx(-0.5)
    assert report.prompt_correlation() is None
