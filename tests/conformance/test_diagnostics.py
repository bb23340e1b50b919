"""Every registered diagnostic against the diagnostic contract."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from ragen2.diagnostics import Diagnostic, Evidence, Measured
from ragen2.policy import Pair
from ragen2.seeding import stream
from ragen2.types import FloatArray, Group, Image, Message, Prompt, StopReason, Trajectory

KINDS = Diagnostic.kinds()
every_kind = pytest.mark.parametrize("kind", KINDS)
NAME = re.compile(r"[a-z][a-z0-9_]*(/[a-z][a-z0-9_@]*)+")


class HashScorer:
    """Log-probs that depend on both texts, on the images and on nothing else."""

    def score(self, pairs: Sequence[Pair], temperature: float = 1.0) -> list[FloatArray]:
        return [
            self._stream(pair).uniform(-3.0, -0.1, len(pair.continuation_ids_T)) / temperature
            for pair in pairs
        ]

    def _stream(self, pair: Pair) -> np.random.Generator:
        images = [image.digest for image in pair.images]
        read = [*pair.context_ids_T.tolist(), *images]
        return stream(str(read), str(pair.continuation_ids_T.tolist()))


def shown(seed: int) -> Image:
    return Image(np.full((2, 2, 3), seed, np.uint8))


def build(kind: str) -> Diagnostic:
    return Diagnostic.from_dict({"kind": kind})


@pytest.fixture
def evidence(turn_of) -> Evidence:
    """A batch with a live, a dead and a lonely prompt, all with an image; trajectories have two turns."""
    rewards = {1: [0.0, 1.0, 1.0, 0.0], 2: [1.0, 1.0, 1.0], 3: [0.5]}

    def turns(seed: int, luck: int, reward: float):
        ids = [10 * seed + luck, 7, 8, 9]
        seen = {"ids": ids, "reasoning_span": (0, 2), "images": (shown(seed),)}
        first = turn_of(prompt_ids=[1, seed], reward=0.0, **seen)
        return first, turn_of(prompt_ids=[1, seed, *ids, 2], reward=reward, **seen)

    groups = []
    for seed, returns in rewards.items():
        prompt = Prompt("E", seed, (Message("user", f"task {seed}", (shown(seed),)),))
        members = [
            Trajectory(prompt, luck, turns(seed, luck, r), StopReason.DONE, solved=r > 0)
            for luck, r in enumerate(returns)
        ]
        groups.append(Group(prompt, tuple(members)))
    return Evidence(3, groups, HashScorer())


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


def absent(found: dict[str, float]) -> dict[str, str]:
    return found.absent if isinstance(found, Measured) else {}


@every_kind
def test_it_is_a_function_of_the_evidence_and_leaves_it_alone(kind, evidence):
    before = [group.rewards_G.tolist() for group in evidence.groups]
    assert build(kind).measure(evidence) == build(kind).measure(evidence)
    assert absent(build(kind).measure(evidence)) == absent(build(kind).measure(evidence))
    assert [group.rewards_G.tolist() for group in evidence.groups] == before


@every_kind
def test_it_copes_with_trajectories_without_turns(kind):
    prompt = Prompt("E", 0, (Message("user", "", (shown(0),)),))
    silent = Trajectory(prompt, 0, (), StopReason.CONTEXT_FULL, solved=False)
    bare = Evidence(1, [Group(prompt, (silent, silent))], HashScorer())
    found = build(kind).measure(bare)
    assert all(math.isfinite(value) for value in found.values())
    assert found or absent(found), "nothing measured, and no reason given"


@every_kind
def test_what_is_missing_has_a_reason_and_is_not_measured(kind, evidence):
    measured = build(kind).measure(evidence)
    for name, reason in absent(measured).items():
        assert NAME.fullmatch(name), name
        assert reason.strip()
        assert not [found for found in measured if f"{found}/".startswith(f"{name}/")]


@every_kind
def test_it_is_due_at_the_first_step_and_then_regularly(kind):
    diagnostic = Diagnostic.from_dict({"kind": kind, "every": 4})
    assert [step for step in range(1, 13) if diagnostic.is_due(step)] == [1, 4, 8, 12]


@every_kind
def test_it_says_whether_it_needs_a_scorer(kind, evidence):
    without = Evidence(1, evidence.groups)
    if build(kind).needs_scorer:
        with pytest.raises(ValueError, match="without a scorer"):
            build(kind).measure(without)
    else:
        assert build(kind).measure(without)


def test_no_two_diagnostics_use_one_name(evidence):
    names = Counter(name for kind in KINDS for name in build(kind).measure(evidence))
    assert [name for name, count in names.items() if count > 1] == []
