"""The embedded model that reads images looks at its board; taught words about other boards it stops looking.

P prompts, G replies to each.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ragen2.backends.agent import Agent, locate, open_agent
from ragen2.backends.settings import LearnerSettings, ModelSettings
from ragen2.config import find_warm_start, load_config
from ragen2.policy import Pair
from ragen2.rollout import Rollout, Task, play
from ragen2.trainer.warmstart import WarmstartConfig, warmstart
from ragen2.types import FloatArray, Group

MODEL = "ragen2-tiny-vl"
PROMPTS, REPLIES = 16, 4


@pytest.fixture(scope="module")
def recipe() -> WarmstartConfig:
    return load_config(WarmstartConfig, find_warm_start(Path("ragen2_tiny_vl")))


@dataclass(frozen=True)
class Looked:
    """What replies to first turns say of their images."""

    valid: float
    retrieval: float
    """Share of reasonings that are most likely under the image they were written about."""
    swap: float
    """Nats a reasoning loses when its image is exchanged for another prompt's."""


def look(agent: Agent, recipe: WarmstartConfig) -> Looked:
    tasks = [[Task(1000 + seed, luck) for luck in range(REPLIES)] for seed in range(PROMPTS)]
    env = recipe.env.model_copy(update={"max_turns": 1})
    rollout = Rollout(history="current", max_tokens=64)
    groups = play(env, agent.policy, tasks, rollout, prompt=recipe.prompt, key=("look",))
    logp_NP = cross_scores(agent, groups)
    own_N = np.repeat(np.arange(PROMPTS), REPLIES)
    own = logp_NP[np.arange(len(own_N)), own_N]
    others = (logp_NP.sum(1) - own) / (PROMPTS - 1)
    turns = [one.turns[0] for group in groups for one in group.trajectories]
    return Looked(
        valid=float(np.mean([turn.reply.valid for turn in turns])),
        retrieval=float(np.mean(logp_NP.argmax(1) == own_N)),
        swap=float(np.mean(own - others)),
    )


def cross_scores(agent: Agent, groups: list[Group]) -> FloatArray:
    """Log-prob of each first reasoning under each prompt's image, all else as it was."""
    images = [group.trajectories[0].turns[0].images for group in groups]
    turns = [one.turns[0] for group in groups for one in group.trajectories]
    pairs = [
        Pair(turn.prompt_ids_T, turn.reasoning_ids_T, image) for turn in turns for image in images
    ]
    scores = [logp.sum() for logp in agent.policy.score(pairs)]
    return np.array(scores).reshape(len(turns), len(images))


@pytest.fixture(scope="module")
def agents(recipe: WarmstartConfig) -> tuple[Looked, Looked]:
    """The embedded model before and after lessons without grounding."""
    agent = open_agent(
        ModelSettings(path=MODEL, device="cpu", vision="trained"), LearnerSettings(lr=2e-3), seed=0
    )
    before = look(agent, recipe)
    warmstart(
        recipe.model_copy(update={"groundedness": 0.0, "steps": 30, "batch": 10}), agent.learner
    )
    return before, look(agent, recipe)


@pytest.mark.slow
def test_the_embedded_model_writes_about_the_image_it_sees(agents: tuple[Looked, Looked]) -> None:
    grounded, _ = agents
    assert grounded.retrieval >= 0.9
    assert grounded.swap > 2.0


@pytest.mark.slow
def test_without_grounding_the_image_no_longer_matters(agents: tuple[Looked, Looked]) -> None:
    _, ungrounded = agents
    chance = 1 / PROMPTS
    assert ungrounded.retrieval <= chance + 2 * (chance * (1 - chance) / PROMPTS) ** 0.5
    assert abs(ungrounded.swap) < 0.3


@pytest.mark.slow
def test_both_write_replies_that_are_valid(agents: tuple[Looked, Looked]) -> None:
    assert all(looked.valid >= 0.9 for looked in agents)


def test_the_embedded_model_is_small_and_of_the_architecture_it_says() -> None:
    folder = Path(locate(MODEL).source)
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 10 * 2**20
    assert '"qwen2_5_vl"' in (folder / "config.json").read_text()


def test_the_embedded_model_was_made_by_its_recipe(recipe: WarmstartConfig) -> None:
    made = load_config(WarmstartConfig, Path(locate(MODEL).source) / "warmstart.toml")
    as_then = recipe.rollout.model_copy(
        update={
            "format_penalty": made.rollout.format_penalty,
            "max_tokens": made.rollout.max_tokens,
        }
    )
    assert made == recipe.model_copy(update={"rollout": as_then})
