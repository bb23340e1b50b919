"""WebShop as an environment: the contract, the expert, the settings, real data."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ragen2.envs import check_env, make
from ragen2.envs.base import HELD_OUT_SEEDS, Env, Step
from ragen2.envs.webshop.env import ShopEpisode, WebShop
from ragen2.seeding import stream

FIRST_PAGES = """
from ragen2.envs.webshop.env import WebShop
episode = WebShop(num_products=100).start(100_007, 3)
print(episode.observation)
for action in episode.expert():
    episode.step(action)
    print(episode.observation)
"""
SEEDS = [*range(100), *range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + 100)]


def expert_steps(env: Env, seed: int) -> list[Step]:
    """Play the expert, asked anew before every action."""
    episode = env.start(seed, 0)
    steps: list[Step] = []
    while len(steps) < 30 and not (steps and steps[-1].done):
        steps.append(episode.step(episode.expert()[0]))
    return steps


@pytest.mark.parametrize("reward", ["raw", "thresholded"])
def test_the_expert_buys_perfectly_within_the_budget(reward: str) -> None:
    env = make("WebShop", reward=reward)
    for seed in SEEDS:
        steps = expert_steps(env, seed)
        assert len(steps) <= min(env.max_actions, env.max_turns)
        assert sum(step.reward for step in steps) == 1.0
        assert steps[-1].solved
        assert all(step.valid and step.effective for step in steps)


def test_the_expert_plans_the_whole_visit_at_once() -> None:
    env = make("WebShop")
    for seed in SEEDS:
        plan = env.start(seed, 0).expert()
        episode = env.start(seed, 0)
        assert [episode.step(action).done for action in plan] == [False] * (len(plan) - 1) + [True]


def test_the_expert_finds_its_way_from_anywhere() -> None:
    env = make("WebShop", num_products=200)
    for seed in range(100):
        episode, rng = env.start(seed, 0), stream("stray", seed)
        done = False
        for _ in range(int(rng.integers(1, 8))):
            action = episode.random_action(rng)
            if "buy now" not in action:
                done = episode.step(action).done
        while not done:
            step = episode.step(episode.expert()[0])
            assert step.valid
            done = step.done
        assert step.solved


def test_another_process_shows_the_same_pages() -> None:
    runs = [
        subprocess.run(
            [sys.executable, "-c", FIRST_PAGES],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": salt, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for salt in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert runs[0].startswith("Task: ")


def test_a_partial_purchase_pays_its_part_or_nothing() -> None:
    for reward, pays in (("raw", True), ("thresholded", False)):
        env = make("WebShop", reward=reward)
        episode = env.start(0, 0)
        assert isinstance(episode, ShopEpisode)
        *_, product = [action for action in episode.expert() if action.startswith("click[P")]
        assert episode.goal.options
        for action in (episode.expert()[0], product, "click[buy now]"):
            step = episode.step(action)
        assert step.done
        assert not step.solved
        assert (step.reward > 0) is pays
        asked = len(episode.goal.attributes) + len(episode.goal.options) + 1
        assert episode.raw_score == pytest.approx(1 - len(episode.goal.options) / asked)


def test_after_the_purchase_nothing_happens() -> None:
    episode = make("WebShop").start(0, 0)
    for action in episode.expert():
        episode.step(action)
    page = episode.observation
    assert page.splitlines()[1].startswith("You bought P")
    assert episode.expert() == ()
    for action in ("search[mug]", "click[buy now]", "click[back to search]"):
        step = episode.step(action)
        assert step.done
        assert step.reward == 0.0
    assert episode.observation == page


def test_the_instruction_is_true_to_the_settings() -> None:
    assert "10 actions" in make("WebShop").instruction
    assert "7 actions" in make("WebShop", max_actions=7).instruction
    assert "each part" in make("WebShop").instruction
    assert "only if it meets the whole task" in make("WebShop", reward="thresholded").instruction


def test_the_task_can_be_shown_once_only() -> None:
    episode = make("WebShop", repeat_task=False).start(0, 0)
    assert episode.observation.startswith("Task: ")
    episode.step("search[mugs]")
    assert "Task: " not in episode.observation


def test_page_size_and_number_of_hits_are_settings() -> None:
    episode = make("WebShop", page_size=3, max_hits=7).start(0, 0)
    episode.step("search[mugs pans knives]")
    assert "Results 1 to 3 of 7" in episode.observation
    episode.step("click[next]")
    episode.step("click[next]")
    assert "Results 7 to 7 of 7" in episode.observation


def test_reasoning_names_what_the_page_shows_and_varies() -> None:
    env = make("WebShop")
    for seed in range(20):
        episode = env.start(seed, 0)
        assert isinstance(episode, ShopEpisode)
        while not episode.done:
            action = episode.expert()[:1]
            texts = {episode.explain(action, stream("words", number)) for number in range(20)}
            assert len(texts) > 3
            assert all(text.endswith(action[0]) for text in texts)
            named = (episode.goal.product.query, *(p.asin for p in episode.view.hits))
            assert all(any(name in text for name in named) for text in texts)
            episode.step(action[0])
    assert episode.explain((), stream("words"))


def test_reasoning_can_explain_any_action_on_any_page() -> None:
    env = make("WebShop", num_products=100)
    for seed in range(20):
        episode, rng = env.start(seed, 0), stream("any", seed)
        for _ in range(8):
            action = episode.random_action(rng)
            assert action in episode.explain((action,), rng)
            episode.step(action)


def test_the_contract_holds_on_real_goals(real_data: Callable[[str], Path]) -> None:
    products = str(real_data("webshop/products.jsonl.gz"))
    human = str(real_data("webshop/human_goals.jsonl.gz"))
    assert check_env(make("WebShop", products=products), seeds=range(10))
    assert check_env(make("WebShop", products=products, human_goals=human), seeds=range(10))


def test_the_expert_buys_every_one_of_the_6910_real_goals(
    real_data: Callable[[str], Path],
) -> None:
    env = WebShop(products=str(real_data("webshop/products.jsonl.gz")))
    source = env.goal_source
    rewards = []
    for goal in source.goals:  # type: ignore[attr-defined]  # a product file has listed goals
        episode = ShopEpisode(env, env.catalogue, goal)
        steps = [episode.step(action) for action in episode.expert()]
        assert len(steps) <= env.max_actions
        rewards.append(steps[-1].reward)
    assert len(rewards) == 6910
    assert sum(rewards) / len(rewards) >= 0.95
