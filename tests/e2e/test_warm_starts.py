"""The paper's phenomenon on a CPU: entropy calls an agent healthy whose reasoning ignores its task.

The same tiny model is warm-started at five levels of groundedness on the same games. At level g its
reasoning describes the lake it is asked about with chance g; else, just as fluently, some other lake.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ragen2.backends.agent import open_agent, quiet_transformers
from ragen2.backends.settings import LearnerSettings
from ragen2.config import load_run
from ragen2.envs import FrozenLake
from ragen2.trainer.evaluate import Assessment, assess
from ragen2.trainer.warmstart import WarmstartConfig, warmstart

COLLAPSE = "collapse/first_turn/"
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def verdicts() -> list[Assessment]:
    """Five models, from the one that ignores its lake to the one that describes it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    found = [warm_started(groundedness) for groundedness in LEVELS]
    torch.set_num_threads(before)
    return found


@pytest.fixture(scope="module")
def over_levels(verdicts: list[Assessment]) -> Callable[[str], list[float]]:
    """A collapse metric of the five models, in order of groundedness."""
    return lambda name: [verdict.metrics[COLLAPSE + name] for verdict in verdicts]


def warm_started(groundedness: float) -> Assessment:
    """Seventy steps from the embedded model; one turn a game, because collapse is read off first turns."""
    quiet_transformers()
    config = WarmstartConfig(
        steps=70,
        batch=16,
        quality=0.2,
        groundedness=groundedness,
        env=FrozenLake(max_turns=1),
        learner=LearnerSettings(lr=1.5e-3, warmup_steps=5),
    )
    agent = open_agent(config.model, config.learner, seed=config.seed)
    warmstart(config, agent.learner)
    return assess(load_run(None, ["evaluation.tasks=128", "env.max_turns=1"]), agent.policy)


def test_all_write_well_formed_replies(verdicts: list[Assessment]) -> None:
    for verdict in verdicts:
        assert verdict.metrics["eval/format_validity"] >= 0.97


@pytest.mark.parametrize("name", ["retrieval_accuracy", "mi_estimate", "mi_seq_estimate"])
def test_retrieval_and_information_put_the_levels_in_order(over_levels, name: str) -> None:
    values = over_levels(name)
    assert values == sorted(values)
    assert len(set(values)) == len(values)


@pytest.mark.parametrize("name", ["conditional_entropy", "conditional_entropy_seq"])
def test_entropy_does_not(over_levels, name: str) -> None:
    values = over_levels(name)
    assert values != sorted(values)
    assert values[0] > values[-1], "the one that ignores its lake looks healthier than the best"


def test_grounded_reasoning_tells_which_lake_it_is_about(over_levels) -> None:
    assert over_levels("retrieval_accuracy")[-1] >= 0.9


def test_ungrounded_reasoning_tells_nothing_about_its_lake(over_levels) -> None:
    low, high = (over_levels(f"retrieval_accuracy_{end}")[0] for end in ("low", "high"))
    assert low <= over_levels("retrieval_chance")[0] <= high


def test_the_regimes_are_named(verdicts: list[Assessment]) -> None:
    assert verdicts[-1].regime == "diverse_grounded"
    assert verdicts[0].regime == "template_collapse"
