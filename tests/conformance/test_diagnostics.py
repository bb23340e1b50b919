"""Every registered diagnostic against the diagnostic contract."""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np
import pytest

from ragen2.diagnostics import Diagnostic, Evidence
from ragen2.types import Group, Prompt, ScoreMatrix, StopReason, Trajectory

KINDS = Diagnostic.kinds()
every_kind = pytest.mark.parametrize("kind", KINDS)
NAME = re.compile(r"[a-z][a-z0-9_]*(/[a-z][a-z0-9_@]*)+")


def build(kind: str) -> Diagnostic:
    return Diagnostic.from_dict({"kind": kind})


@pytest.fixture
def evidence(group_of) -> Evidence:
    """A batch with a live, a dead and a lonely prompt, and scores that depend on the prompt."""
    groups = [group_of([0.0, 1.0, 1.0], seed=1), group_of([1.0, 1.0], seed=2), group_of([0.5])]
    logp = np.random.default_rng(0).normal(-12.0, 2.0, (6, 3))
    scores = ScoreMatrix(logp, np.full(6, 5), np.array([0, 0, 0, 1, 1, 2]))
    return Evidence(3, groups, scores)


def test_the_diagnostics_of_the_contract_are_registered():
    assert {"collapse", "reward", "surface"} <= set(KINDS)


@every_kind
def test_it_is_a_component(kind, component_contract):
    component_contract(Diagnostic, kind)


@every_kind
def test_it_gives_names_to_finite_plain_numbers(kind, evidence):
    found = build(kind).measure(evidence)
    assert found
    for name, value in found.items():
        assert NAME.fullmatch(name), name
        assert type(value) is float, name
        assert math.isfinite(value), name


@every_kind
def test_it_is_a_function_of_the_evidence_and_leaves_it_alone(kind, evidence):
    before = [group.rewards_G.tolist() for group in evidence.groups]
    scores = evidence.scores.logp_NP.copy()
    assert build(kind).measure(evidence) == build(kind).measure(evidence)
    assert [group.rewards_G.tolist() for group in evidence.groups] == before
    assert np.array_equal(evidence.scores.logp_NP, scores)


@every_kind
def test_it_copes_with_trajectories_without_turns(kind, evidence):
    prompt = Prompt("E", 0, ())
    silent = Trajectory(prompt, 0, (), StopReason.CONTEXT_FULL, solved=False)
    found = build(kind).measure(Evidence(1, [Group(prompt, (silent, silent))], evidence.scores))
    assert all(math.isfinite(value) for value in found.values())


@every_kind
def test_it_is_due_at_the_first_step_and_then_regularly(kind):
    diagnostic = Diagnostic.from_dict({"kind": kind, "every": 4})
    assert [step for step in range(1, 13) if diagnostic.is_due(step)] == [1, 4, 8, 12]


@every_kind
def test_it_says_whether_it_needs_scores(kind, evidence):
    without = Evidence(1, evidence.groups)
    if build(kind).needs_scores:
        with pytest.raises(ValueError, match="without cross-scores"):
            build(kind).measure(without)
    else:
        assert build(kind).measure(without)


def test_no_two_diagnostics_use_one_name(evidence):
    names = Counter(name for kind in KINDS for name in build(kind).measure(evidence))
    assert [name for name, count in names.items() if count > 1] == []
