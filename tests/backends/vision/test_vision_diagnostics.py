"""Vision of real models: exchanged prompts score as the models' own code has it, each image encoded once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_vision_language_models import own_logp
from vision_models import FOLDERS

from ragen2.backends.agent import open_model
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.diagnostics import Collapse, Evidence, Vision
from ragen2.diagnostics.metrics.vision import measure_grounding, measure_split
from ragen2.envs import make
from ragen2.rollout import Rollout, Task, play
from ragen2.scoring import Trace, turn_traces
from ragen2.scoring.exchanges import exchange_last_image, swap_matrices
from ragen2.types import Group, Image

ENV = make("FrozenLake", observation="image+text", hole_ratio=0.2, max_turns=2)


@pytest.fixture(scope="module", params=sorted(FOLDERS))
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HFPolicy:
    folder: Path = FOLDERS[request.param](tmp_path_factory.mktemp("models") / request.param)
    return HFPolicy(*open_model(str(folder), device="cpu"))


@pytest.fixture(scope="module")
def groups(policy: HFPolicy) -> list[Group]:
    """Random weights write no tags: all they write is reasoning."""
    tasks = [[Task(100_000 + seed, luck) for luck in range(3)] for seed in range(3)]
    return play(ENV, policy, tasks, Rollout(max_tokens=6), key=("vision",))


def images_of(groups: list[Group]) -> set[Image]:
    turns = [turn for group in groups for one in group.trajectories for turn in one.turns]
    return {image for turn in turns for image in turn.images}


@torch.no_grad()
def by_hand(policy: HFPolicy, words: Trace, images: tuple[Image, ...], reasoning: Any) -> float:
    ids_T = np.concatenate([words.prompt_ids_T, reasoning])
    logp_T = own_logp(policy.network, policy.tokenizer, ids_T, images)
    return float(logp_T[-len(reasoning) :].sum())


def test_every_exchange_scores_as_the_models_own_code_has_it(
    policy: HFPolicy, groups: list[Group]
) -> None:
    traces = turn_traces(groups, 1, 4, np.random.default_rng(0))
    found = swap_matrices(traces, policy)
    firsts = traces[:3]  # drawn evenly: one of each prompt
    assert found.whole.owner_N.tolist() == [0, 1, 2, 0]
    for n, one in enumerate(traces):
        said = one.reasoning_ids_T
        for p, other in enumerate(firsts):
            ways = {
                "whole": by_hand(policy, other, other.images, said),
                "image": by_hand(policy, one, other.images, said),
                "text": by_hand(policy, other, one.images, said),
            }
            for name, expected in ways.items():
                assert getattr(found, name).logp_NP[n, p] == pytest.approx(expected, abs=5e-5)
    assert np.ptp(found.image.logp_NP, axis=1).max() > 1e-3, "the images make no difference"


def test_a_later_turn_is_tried_with_other_last_images_only(
    policy: HFPolicy, groups: list[Group]
) -> None:
    traces = turn_traces(groups, 2, None, np.random.default_rng(0))
    found = exchange_last_image(traces, policy, swaps=1, rng=np.random.default_rng(0))
    last = list(dict.fromkeys(one.images[-1] for one in traces))
    assert len(last) > 1
    for n, one in enumerate(traces):
        said = one.reasoning_ids_T
        assert len(one.images) == 2
        assert found.own_N[n] == pytest.approx(by_hand(policy, one, one.images, said), abs=5e-5)
        others = [(one.images[0], image) for image in last if image != one.images[1]]
        known = np.array([by_hand(policy, one, images, said) for images in others])
        assert np.abs(known - found.swapped_NS[n, 0]).min() < 5e-5


def test_the_diagnostic_says_what_its_parts_say(policy: HFPolicy, groups: list[Group]) -> None:
    found = Vision().measure(Evidence(1, groups, policy))
    traces = turn_traces(groups, 1, None, np.random.default_rng(0))
    split = measure_split(swap_matrices(traces, policy), 100, 1)
    for part in ("whole_mi", "image_mi", "text_mi", "shared_mi", "retrieval_accuracy"):
        assert found[f"vision/first_turn/{part}"] == pytest.approx(split[part], abs=1e-5)
    rng = np.random.default_rng(0)
    grounding = measure_grounding(exchange_last_image(traces, policy, swaps=2, rng=rng), 100, rng)
    assert found["vision/first_turn/drop"] == pytest.approx(grounding["drop"], abs=1e-5)
    assert found["vision/first_turn/grounding"] == pytest.approx(grounding["grounding"])
    assert "vision/turn_2/grounding" in found


def test_an_image_is_encoded_once_for_all_that_is_scored(
    policy: HFPolicy, groups: list[Group]
) -> None:
    fresh = HFPolicy(policy.network, policy.tokenizer)
    evidence = Evidence(1, groups, fresh)
    Vision().measure(evidence)
    Collapse(scopes=("first_turn", "turns")).measure(evidence)
    assert fresh.split_model.embedder is not None
    assert fresh.split_model.embedder.encoder.num_encoded == len(images_of(groups))
    assert len(images_of(groups)) == 3  # what random weights write moves nobody
