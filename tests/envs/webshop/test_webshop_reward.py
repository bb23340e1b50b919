"""The published reward: closed forms, its own examples, and the fuzzy matching under it."""

import math
import re
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.envs.webshop.catalogue import Product
from ragen2.envs.webshop.goals import (
    Goal,
    basic_color,
    matches,
    options_match,
    score,
    title_score,
    title_words,
    token_set_ratio,
    type_reward,
)

SHAMPOO = Product(
    asin="A",
    title="Norvik Tea Tree Shampoo",
    description="Made with natural ingredients",
    bullets=("Has essential oils", "Smells of lemons"),
    prices=(35.0,),
    category="beauty",
    query="shampoos",
    product_category="Beauty › Hair › Shampoos",
    options=(("color", ("grey", "blue")), ("size", ("XL", "S"))),
    attributes=("tea tree",),
)
GOAL = Goal(
    SHAMPOO,
    attributes=("tea tree", "essential oils"),
    options=(("color", "grey"), ("size", "xl")),
    price_cap=40.0,
    text="",
)
SNEAKER = "Mens D.O.N. Issue 2 Gca Basketball Sneakers Shoes Casual - Off White"
PEAK = (
    "PEAK High Top Mens Basketball Shoes Lou Williams Streetball Master Breathable Non Slip "
    "Outdoor Sneakers"
)
CORD = (
    "Saireed UL Listed 2 Prong Power Cord for JBL Bar 3.1 Bar 2.1 Channel 4K Ultra HD Soundbar "
    "Home Theater System Subwoofer"
)
SHORT_CORD = CORD.removesuffix(" Home Theater System Subwoofer")
PANASONIC = (
    "BRST AC Power Cord Outlet Socket Cable Plug Lead for Panasonic SC-HT830V DVD/VCR Combo Home "
    "Theater System"
)
KNOB = "Rusticware 921ORB Kitchen and Bath Cabinet Knob"
TWEEZERS = (
    "Minkissy 2pcs Stainless Steel Eyebrow Tweezers Blackhead Acne Remover Portable Makeup "
    "Tweezers (Silver)"
)


def slow_common_length(one: str, other: str) -> int:
    """The textbook table."""
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, left in enumerate(one):
        for j, right in enumerate(other):
            grown = table[i][j] + 1
            table[i + 1][j + 1] = grown if left == right else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def slow_token_set_ratio(one: str, other: str) -> int:
    """The published definition, step by step, for ASCII texts."""
    words, others = (set(re.sub(r"\W", " ", text).lower().split()) for text in (one, other))
    if not words or not others:
        return 0
    shared = sorted(words & others)
    parts = [shared, [*shared, *sorted(words - others)], [*shared, *sorted(others - words)]]
    return max(
        round(200 * slow_common_length(a, b) / (len(a) + len(b))) if a and b else 0
        for a, b in combinations([" ".join(part) for part in parts], 2)
    )


def test_the_right_purchase_is_worth_one() -> None:
    result = score(GOAL, SHAMPOO, ["grey", "XL"])
    assert result.total == 1.0
    assert (result.num_attributes, result.num_options, result.price_ok) == (2, 2, True)


@pytest.mark.parametrize(
    ("chosen", "total"), [((), 3 / 5), (("grey",), 4 / 5), (("blue", "XL"), 4 / 5)]
)
def test_each_missing_option_costs_one_part(chosen: tuple[str, ...], total: float) -> None:
    assert score(GOAL, SHAMPOO, chosen).total == pytest.approx(total)


def test_a_price_above_the_cap_costs_one_part_and_the_cap_itself_is_fine() -> None:
    assert score(replace(GOAL, price_cap=34.99), SHAMPOO, ["grey", "XL"]).total == 4 / 5
    assert score(replace(GOAL, price_cap=35.0), SHAMPOO, ["grey", "XL"]).total == 1.0
    assert score(replace(GOAL, price_cap=math.inf), SHAMPOO, ["grey", "XL"]).price_ok


def test_each_missing_attribute_costs_one_part() -> None:
    goal = replace(GOAL, attributes=("tea tree", "solid wood"))
    assert score(goal, SHAMPOO, ["grey", "XL"]).total == 4 / 5


def test_an_attribute_counts_if_listed_alike_or_named_in_any_text() -> None:
    goal = replace(GOAL, attributes=("tea trees", "essential oils", "natural ingredients"))
    assert score(goal, SHAMPOO, []).num_attributes == 3


@pytest.mark.parametrize(
    ("title", "query", "path", "expected"),
    [
        ("Castella Shampoo", "other", "x", 1.0),  # one word of four: more than 0.2
        ("Plum Soap", "shampoos", "Beauty › Hair › Shampoos", 0.0),  # no word in common
    ],
)
def test_the_type_depends_on_title_query_and_category(
    title: str, query: str, path: str, expected: float
) -> None:
    bought = replace(SHAMPOO, title=title, query=query, product_category=path)
    assert type_reward(SHAMPOO, bought) == expected


def test_a_small_overlap_counts_half_unless_query_or_category_agree() -> None:
    wanted = replace(SHAMPOO, title="shampoo one two three four five six")
    bought = replace(SHAMPOO, title="shampoo", query="q", product_category="Beauty › Feet › x")
    assert type_reward(wanted, bought) == 0.5
    assert type_reward(wanted, replace(bought, query="shampoos")) == 1.0
    assert type_reward(wanted, replace(bought, product_category="Hair › Beauty")) == 1.0
    assert type_reward(wanted, replace(bought, product_category="Hair › Hair › x")) == 0.5


def test_a_tiny_overlap_counts_a_tenth_even_in_the_same_category() -> None:
    wanted = replace(SHAMPOO, title="shampoo " + " ".join(f"word{i}" for i in range(10)))
    assert type_reward(wanted, replace(SHAMPOO, title="shampoo")) == 0.1


@pytest.mark.parametrize(
    ("wanted", "bought", "published", "near"),
    [
        (SNEAKER, PEAK, 1 / 3, 0.12),
        (CORD, PANASONIC, 0.3, 0.05),
        (SHORT_CORD, PANASONIC, 0.15, 0.03),
        (KNOB, TWEEZERS, 0.0, 0.05),
    ],
)
def test_title_scores_are_near_those_published_for_noun_tagging(
    wanted: str, bought: str, published: float, near: float
) -> None:
    assert title_score(wanted, bought) == pytest.approx(published, abs=near)


def test_a_title_without_words_is_neither_same_nor_unrelated() -> None:
    assert title_words("100 2-3 of the") == ()
    assert title_score("100", "anything") == 0.2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("essential oils", "essential oil", True),
        ("cool powder snow", "powder snow", True),
        ("pack of 12", "pack of 12", True),
        ("dark navy blue", "light blue", True),  # both are the color blue
        ("grey", "blue", False),
        ("XL", "xl", True),
        ("红色", "红色", True),
        ("红色", "蓝色", False),
        ("", "red", False),
    ],
)
def test_options_match_as_published(one: str, other: str, same: bool) -> None:
    assert options_match(one, other) is same
    assert options_match(other, one) is same


def test_the_first_color_of_the_list_stands_for_the_value() -> None:
    assert basic_color("wine red") == "red"
    assert basic_color("a4 letter") == "a4 letter"


@pytest.mark.parametrize(
    ("one", "other", "ratio"),
    [
        ("tea tree", "tree of tea", 100),
        ("tea bag", "tea tree", 60),
        ("leak proof", "LEAK-PROOF!", 100),
        ("abc", "xyz", 0),
        ("...", "abc", 0),
        ("essential oils", "oil, essential", 96),
    ],
)
def test_token_set_ratio_has_known_values(one: str, other: str, ratio: int) -> None:
    assert token_set_ratio(one, other) == ratio


WORDS = st.one_of(st.text("abc d", max_size=24), st.text("essential oilsGRY-", max_size=40))


@given(WORDS, WORDS)
def test_the_ratio_of_word_sets_agrees_with_the_textbook(one: str, other: str) -> None:
    assert token_set_ratio(one, other) == slow_token_set_ratio(one, other)


@given(st.text(max_size=30), st.text(max_size=30))
def test_matching_is_symmetric_and_everything_matches_itself(one: str, other: str) -> None:
    assert token_set_ratio(one, other) == token_set_ratio(other, one)
    assert 0 <= token_set_ratio(one, other) <= 100
    assert matches(one, one)
    assert options_match(one, one)


@given(st.lists(st.sampled_from(["grey", "XL", "S", "blue", "nonsense", ""])), st.floats(0, 99))
def test_the_score_stays_between_zero_and_one(chosen: list[str], cap: float) -> None:
    assert 0.0 <= score(replace(GOAL, price_cap=cap), SHAMPOO, chosen).total <= 1.0
