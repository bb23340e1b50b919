"""Every registered algorithm against the algorithm contract."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen2.algorithms import Algorithm, LossInputs, Outcome

KINDS = Algorithm.kinds()
every_kind = pytest.mark.parametrize("kind", KINDS)


def build(kind: str, **settings: float) -> Algorithm:
    return Algorithm.from_dict({"kind": kind, **settings})


def inputs(seed: int = 0, size: int = 40, *, on_policy: bool = False) -> LossInputs:
    rng = np.random.default_rng(seed)
    old = torch.tensor(rng.uniform(-4, -0.1, size))
    logp = old if on_policy else old + torch.tensor(rng.normal(0, 0.3, size))
    return LossInputs(
        logp_N=logp.clone().requires_grad_(),
        old_logp_N=old,
        advantages_N=torch.tensor(rng.normal(0, 1, size)),
        entropy_N=torch.tensor(rng.uniform(0, 3, size)),
        ref_logp_N=old + torch.tensor(rng.normal(0, 0.3, size)),
    )


def part(given: LossInputs, where: slice) -> LossInputs:
    return LossInputs(
        given.logp_N[where],
        given.old_logp_N[where],
        given.advantages_N[where],
        given.entropy_N[where],
        None if given.ref_logp_N is None else given.ref_logp_N[where],
    )


def test_the_algorithms_of_the_contract_are_registered():
    assert set(KINDS) >= {"ppo", "grpo", "dapo", "dr_grpo", "rloo", "reinforce_plus_plus"}


@every_kind
def test_it_is_a_component(kind, component_contract):
    component_contract(Algorithm, kind)


def batch_of(*groups: list[float], turns: int = 2) -> list[list[Outcome]]:
    """Trajectories of a few tokens whose last turn pays; values as a critic might say them."""
    return [
        [
            Outcome(
                lengths_K=np.arange(1, turns + 1),
                rewards_K=np.array([0.0] * (turns - 1) + [reward]),
                values_T=np.linspace(0.1, 0.4, turns * (turns + 1) // 2),
                limit=64,
            )
            for reward in group
        ]
        for group in groups
    ]


@every_kind
@pytest.mark.parametrize("rewards", [[0.0, 1.0, 0.5], [1.0, 1.0], [3.0], [-1.0, 10.4] * 8])
def test_every_written_token_has_one_finite_advantage(kind, rewards):
    batch = batch_of(rewards, [0.0, 2.0])
    credit = build(kind).credit(batch)
    assert [len(group) for group in credit] == [len(rewards), 2]
    for outcomes, credits in zip(batch, credit, strict=True):
        for earned, one in zip(outcomes, credits, strict=True):
            assert one.advantages_T.shape == (int(earned.lengths_K.sum()),)
            assert np.isfinite(one.advantages_T).all()


@every_kind
def test_a_better_trajectory_has_the_larger_advantage(kind):
    credits = build(kind).credit(batch_of([0.0, 1.0, 0.5]))[0]
    assert np.argsort([one.advantages_T[-1] for one in credits]).tolist() == [0, 2, 1]


@every_kind
def test_the_order_of_groups_does_not_matter(kind):
    first, second = build(kind).credit(batch_of([0.0, 1.0], [3.0, 1.0, 2.0]))
    swapped = build(kind).credit(batch_of([3.0, 1.0, 2.0], [0.0, 1.0]))
    for group, other in ((first, swapped[1]), (second, swapped[0])):
        for one, same in zip(group, other, strict=True):
            assert one.advantages_T == pytest.approx(same.advantages_T)


@every_kind
def test_the_loss_and_its_parts_are_finite_numbers_for_each_token(kind):
    found = build(kind, kl_coefficient=0.1, entropy_coefficient=0.1).loss(inputs())
    assert found.total_N.shape == (40,)
    assert torch.isfinite(found.total_N).all()
    for name, values in found.parts.items():
        assert values.shape == (40,), name
        assert torch.isfinite(values).all(), name


@every_kind
def test_on_policy_the_gradient_raises_what_was_better_than_expected(kind):
    given = inputs(on_policy=True)
    build(kind).loss(given).total_N.sum().backward()
    assert torch.equal(torch.sign(given.logp_N.grad), -torch.sign(given.advantages_N))


@every_kind
def test_the_loss_of_a_token_does_not_depend_on_the_others_in_its_micro_batch(kind):
    given = inputs()
    algorithm = build(kind, kl_coefficient=0.1, entropy_coefficient=0.1)
    whole = algorithm.loss(given).total_N
    pieces = [algorithm.loss(part(given, slice(i, i + 7))).total_N for i in range(0, 40, 7)]
    assert torch.allclose(whole, torch.cat(pieces))


@every_kind
def test_kl_pulls_toward_the_reference_and_entropy_lowers_the_loss(kind):
    given = inputs()
    plain = build(kind).loss(given).total_N
    assert (build(kind, kl_coefficient=1.0).loss(given).total_N >= plain - 1e-12).all()
    assert (build(kind, entropy_coefficient=1.0).loss(given).total_N <= plain + 1e-12).all()


@every_kind
def test_without_kl_no_reference_is_needed(kind):
    given = inputs()
    found = build(kind).loss(
        LossInputs(given.logp_N, given.old_logp_N, given.advantages_N, given.entropy_N, None)
    )
    assert torch.isfinite(found.total_N).all()


@every_kind
@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=12))
def test_weights_are_positive_one_a_sequence_whatever_their_order(kind, lengths):
    algorithm = build(kind)
    weights = algorithm.token_weights(lengths)
    assert weights.shape == (len(lengths),)
    assert (weights > 0).all()
    assert np.isfinite(weights).all()
    assert algorithm.token_weights(lengths[::-1]) == pytest.approx(weights[::-1])
