"""Goals: how many, in which words, under which price caps, and for whom."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.envs.webshop.catalogue import Product, read_catalogue
from ragen2.envs.webshop.env import WebShop
from ragen2.envs.webshop.generation import generated_catalogue
from ragen2.envs.webshop.goals import (
    DrawnGoals,
    ListedGoals,
    draw_goal,
    draw_price_cap,
    human_goal,
    synthetic_goals,
)
from ragen2.errors import EnvError
from ragen2.seeding import stream

MUG = Product(
    asin="M1",
    title="Norvik mug",
    description="",
    bullets=(),
    prices=(12.5,),
    category="kitchen",
    query="mugs",
    product_category="Kitchen › Mugs",
    options=(("size", ("small", "big")), ("color", ("red", "blue", "green"))),
    attributes=("leak proof", "bpa free"),
    instruction="Find me leak proof mugs",
    instruction_attributes=("leak proof",),
)


def test_there_is_one_synthetic_goal_for_each_combination_of_options() -> None:
    goals = synthetic_goals([MUG])
    assert len(goals) == 6
    assert len({goal.text for goal in goals}) == 6
    assert goals[0].text.startswith(
        "Find me leak proof mugs with color: red, and size: small, and "
    )
    assert len({goal.price_cap for goal in goals}) == 1


def test_a_product_without_instruction_has_no_synthetic_goal() -> None:
    plain = Product("M2", "mug", "", (), (5.0,), "kitchen", "mugs", "Kitchen")
    assert synthetic_goals([plain]) == []


def test_price_caps_are_the_second_to_fourth_round_price_above() -> None:
    caps = {draw_price_cap(12.5, stream("caps", number)) for number in range(100)}
    assert caps == {30.0, 40.0, 50.0}
    assert draw_price_cap(975.0, stream("caps")) == 990.0
    assert draw_price_cap(980.0, stream("caps")) == math.inf
    assert draw_price_cap(10.0, stream("caps")) > 20.0


def test_a_goal_without_cap_does_not_speak_of_the_price() -> None:
    goal = human_goal(MUG, " a red mug please. ", ["leak proof"], ["Red"], 0)
    assert goal.text.startswith("a red mug please, and price lower than ")
    assert goal.options == (("", "red"),)
    dear = Product("M3", "mug", "", (), (5000.0,), "kitchen", "mugs", "Kitchen")
    assert human_goal(dear, "a mug.", ["leak proof"], [], 0).text == "a mug"


def test_a_drawn_goal_names_all_it_asks_for() -> None:
    for number in range(50):
        goal = draw_goal(MUG, stream("drawn", number))
        assert set(goal.attributes) <= set(MUG.attributes)
        assert all(attribute in goal.text for attribute in goal.attributes)
        assert all(f"{name}: {value}" in goal.text for name, value in goal.options)
        assert f"{goal.price_cap:.2f} dollars" in goal.text
        assert MUG.query in goal.text


@pytest.mark.parametrize("goals", ["drawn", "synthetic"])
def test_held_out_seeds_and_training_seeds_share_no_product(goals: str) -> None:
    env = WebShop.from_dict({"kind": "WebShop", "goals": goals, "num_products": 100})
    assert isinstance(env, WebShop)
    held_out = {env.start(seed, 0).goal.product.asin for seed in range(300)}
    training = {env.start(HELD_OUT_SEEDS + seed, 0).goal.product.asin for seed in range(1000)}
    assert len(held_out) >= 15
    assert len(training) >= 70
    assert not held_out & training


def test_listed_goals_all_come_once_before_any_comes_again() -> None:
    catalogue = generated_catalogue(50, 0)
    source = ListedGoals(synthetic_goals(catalogue.products), "here")
    held_out = [goal for goal in source.goals if goal.product in source.held_out]
    texts = [source.at(seed).text for seed in range(len(held_out))]
    assert sorted(texts) == sorted(goal.text for goal in held_out)
    assert source.at(len(held_out)).text == texts[0]


def test_drawn_goals_do_not_run_out() -> None:
    env = WebShop(num_products=100)
    seeds = range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + 500)
    assert len({env.start(seed, 0).goal.text for seed in seeds}) >= 490


def test_goals_for_a_single_product_cannot_be_held_out() -> None:
    with pytest.raises(EnvError, match="goals for 1 products of here, and needs 2 to hold one out"):
        DrawnGoals([MUG], "here")


def test_the_real_small_catalogue_has_6910_synthetic_goals(
    real_data: Callable[[str], Path],
) -> None:
    catalogue = read_catalogue(str(real_data("webshop/products.jsonl.gz")), None, None)
    assert len(catalogue.products) == 1000
    assert len(synthetic_goals(catalogue.products)) == 6910
