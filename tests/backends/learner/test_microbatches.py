"""Minibatches and micro-batches: every sample once, within the budget, and tokens in their order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ragen2.backends.learner.microbatches import (
    MAX_PADDING,
    Microbatch,
    even_parts,
    packed_batches,
    padded_batches,
    random_parts,
    shared_beginnings,
)
from ragen2.types import Sample

LENGTHS = np.random.default_rng(0).integers(1, 100, 200).tolist()
CPU = torch.device("cpu")


def sample_of(ids: list[int], written: list[int], **more: np.ndarray) -> Sample:
    mask_T = np.isin(np.arange(len(ids)), written)
    return Sample(
        np.array(ids),
        mask_T,
        np.where(mask_T, -0.1 * np.array(ids), 0.0),
        np.where(mask_T, 0.5 * np.array(ids), 0.0),
        temperature=0.5,
        **more,
    )


SAMPLES = [sample_of([11, 12, 13], [1, 2]), sample_of([21, 22, 23, 24, 25], [3])]


def test_packed_samples_stay_in_their_order_and_inside_the_budget() -> None:
    batches = packed_batches(LENGTHS, 150)
    assert [row for rows in batches for row in rows] == list(range(200))
    sums = [sum(LENGTHS[row] for row in rows) for rows in batches]
    assert max(sums) <= 150
    assert all(
        total + LENGTHS[after[0]] > 150 for total, after in zip(sums, batches[1:], strict=False)
    )


def test_padded_samples_stay_inside_the_budget_with_little_padding() -> None:
    batches = padded_batches(LENGTHS, 150)
    assert sorted(row for rows in batches for row in rows) == list(range(200))
    for rows in batches:
        lengths = [LENGTHS[row] for row in rows]
        whole = len(rows) * max(lengths)
        assert whole <= 150
        assert sum(lengths) >= (1 - MAX_PADDING["cpu"]) * whole
    assert any(len({LENGTHS[row] for row in rows}) > 1 for rows in batches)


@pytest.mark.parametrize("cut", [packed_batches, padded_batches])
def test_a_sample_longer_than_the_budget_goes_alone(cut) -> None:
    assert [500] in [[[10, 500, 10][row] for row in rows] for rows in cut([10, 500, 10], 20)]


def test_a_packed_batch_is_one_row_and_predicts_from_the_token_before() -> None:
    batch = Microbatch.of(SAMPLES, np.array([2.0, 3.0]), CPU, is_packed=True)
    assert batch.ids.tolist() == [[11, 12, 13, 21, 22, 23, 24, 25]]
    assert batch.predictors_N.tolist() == [0, 1, 5]
    assert batch.targets_N.tolist() == [12, 13, 24]
    assert batch.weights_N.tolist() == [2.0, 2.0, 3.0]
    assert batch.old_logp_N.tolist() == pytest.approx([-1.2, -1.3, -2.4])
    assert batch.advantages_N.tolist() == [6.0, 6.5, 12.0]
    assert batch.temperature == 0.5
    assert batch.mask is batch.values_N is batch.returns_N is None
    assert batch.packing is not None
    assert batch.packing.lengths == (3, 5)
    assert batch.packing.bounds.tolist() == [0, 3, 8]
    assert batch.packing.positions.tolist() == [[0, 1, 2, 0, 1, 2, 3, 4]]


def test_a_shared_beginning_lies_in_the_row_once() -> None:
    """The first written token of the second sample is predicted from a token of the first."""
    prompt = list(range(100, 120))
    samples = [
        sample_of([*prompt, 1, 2], [20, 21]),
        sample_of([*prompt, 3, 4, 5], [20, 22]),
        sample_of([7, *prompt], [1, 20]),
        sample_of([*prompt, 1], [20]),
    ]
    shared = shared_beginnings(samples)
    assert shared == [(0, 0), (0, 20), (0, 0), (0, 0)]
    batch = Microbatch.of(samples, np.ones(4), CPU, is_packed=True, shared=shared)
    assert batch.packing is not None
    assert batch.packing.lengths == (22, 3, 21, 21)
    assert batch.packing.positions[0, 22:26].tolist() == [20, 21, 22, 0]
    row = [*prompt, 1, 2, 3, 4, 5, 7, *prompt, *prompt, 1]
    assert batch.ids.tolist() == [row]
    assert batch.targets_N.tolist() == [1, 2, 3, 5, 100, 119, 1]
    assert batch.predictors_N.tolist() == [19, 20, 19, 23, 25, 44, 65]


@pytest.mark.parametrize(("count", "wanted"), [(15, 0), (16, 16), (40, 29)])
def test_few_shared_tokens_are_not_shared_and_one_always_stays(count: int, wanted: int) -> None:
    one = sample_of([*range(40)], [39])
    other = sample_of([*range(count), *range(100, 100 + 30 - count)][:30], [29])
    assert shared_beginnings([one, other])[1] == (0, wanted)


def test_a_padded_batch_has_a_row_a_sample_and_the_same_tokens() -> None:
    packed = Microbatch.of(SAMPLES, np.array([2.0, 3.0]), CPU, is_packed=True)
    batch = Microbatch.of(SAMPLES, np.array([2.0, 3.0]), CPU, is_packed=False)
    assert batch.ids.tolist() == [[11, 12, 13, 0, 0], [21, 22, 23, 24, 25]]
    assert batch.mask is not None
    assert batch.mask.tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert batch.packing is None
    assert batch.predictors_N.tolist() == [0, 1, 7]
    for name in ("targets_N", "old_logp_N", "advantages_N", "weights_N"):
        assert torch.equal(getattr(batch, name), getattr(packed, name)), name


def test_values_and_returns_are_there_only_if_all_samples_have_them() -> None:
    one = sample_of([1, 2, 3], [2], values_T=np.array([0, 0, 4.0]), returns_T=np.array([0, 0, 5.0]))
    whole = Microbatch.of([one, one], np.ones(2), CPU, is_packed=True)
    assert whole.values_N is not None
    assert whole.returns_N is not None
    assert (whole.values_N.tolist(), whole.returns_N.tolist()) == ([4.0, 4.0], [5.0, 5.0])
    assert Microbatch.of([one, SAMPLES[0]], np.ones(2), CPU, is_packed=True).values_N is None


@pytest.mark.parametrize("cut", [lambda n, k: random_parts(n, k, 3, 5, 0), even_parts])
@pytest.mark.parametrize(
    ("count", "asked", "sizes"), [(7, 3, [3, 2, 2]), (4, 1, [4]), (2, 5, [1, 1])]
)
def test_every_sample_is_in_one_part_and_none_is_empty(cut, count, asked, sizes):
    parts = cut(count, asked)
    assert [len(part) for part in parts] == sizes
    assert sorted(row for part in parts for row in part) == list(range(count))


def test_one_part_keeps_the_order():
    assert random_parts(4, 1, 0, 0, 0) == [[0, 1, 2, 3]]


def test_each_pass_is_drawn_anew_and_the_same_when_it_is_repeated():
    first = random_parts(20, 2, 7, 4, 0)
    assert first == random_parts(20, 2, 7, 4, 0)
    others = [random_parts(20, 2, *drawn) for drawn in [(8, 4, 0), (7, 5, 0), (7, 4, 1)]]
    assert first not in others


def test_each_part_of_the_critic_holds_members_of_all_groups():
    assert even_parts(6, 2) == [[0, 2, 4], [1, 3, 5]]
