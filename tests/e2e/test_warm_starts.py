"""The paper's phenomenon on a CPU: entropy calls an agent healthy whose reasoning ignores its task.

The same tiny model is warm-started twice on the same games. Once its reasoning describes the lake it is
asked about; once it describes, just as fluently, some other lake.
"""

from __future__ import annotations

import pytest
import torch

from ragen2.backends.opening import open_agent, quiet_transformers
from ragen2.backends.settings import LearnerSettings
from ragen2.config import load_run
from ragen2.envs import FrozenLake
from ragen2.trainer.assess import Verdict, assess
from ragen2.trainer.warmstart import WarmstartConfig, warmstart

COLLAPSE = "collapse/first_turn/"


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Verdict]:
    """The grounded and the ungrounded model, assessed on held-out lakes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    found = {"grounded": warm_started(1.0), "ungrounded": warm_started(0.0)}
    torch.set_num_threads(before)
    return found


def warm_started(groundedness: float) -> Verdict:
    """Seventy steps from the embedded model; short games, because collapse is read off first turns."""
    quiet_transformers()
    config = WarmstartConfig(
        steps=70,
        batch=12,
        quality=0.2,
        groundedness=groundedness,
        env=FrozenLake(max_turns=2),
        learner=LearnerSettings(lr=1.5e-3, warmup_steps=5),
    )
    agent = open_agent(config.model, config.learner, seed=config.seed, needs_reference=False)
    warmstart(config, agent.learner)
    return assess(load_run(None, ["evaluation.tasks=64"]), agent.policy)


@pytest.mark.slow
def test_both_write_well_formed_replies(verdicts: dict[str, Verdict]) -> None:
    for verdict in verdicts.values():
        assert verdict.metrics["eval/format_validity"] >= 0.98


@pytest.mark.slow
def test_entropy_calls_the_ungrounded_one_at_least_as_healthy(
    verdicts: dict[str, Verdict],
) -> None:
    name = f"{COLLAPSE}conditional_entropy"
    assert verdicts["ungrounded"].metrics[name] >= verdicts["grounded"].metrics[name]


@pytest.mark.slow
def test_grounded_reasoning_tells_which_lake_it_is_about(verdicts: dict[str, Verdict]) -> None:
    assert verdicts["grounded"].metrics[f"{COLLAPSE}retrieval_accuracy"] >= 0.9


@pytest.mark.slow
def test_ungrounded_reasoning_tells_nothing_about_its_lake(verdicts: dict[str, Verdict]) -> None:
    metrics = verdicts["ungrounded"].metrics
    low, high = (metrics[f"{COLLAPSE}retrieval_accuracy_{end}"] for end in ("low", "high"))
    assert low <= metrics[f"{COLLAPSE}retrieval_chance"] <= high


@pytest.mark.slow
def test_the_regimes_are_named(verdicts: dict[str, Verdict]) -> None:
    assert verdicts["grounded"].regime == "diverse_grounded"
    assert verdicts["ungrounded"].regime == "template_collapse"
