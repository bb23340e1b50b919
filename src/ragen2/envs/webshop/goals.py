"""What the shopper wants and what a purchase is worth: goals with attributes, options and a price cap.

Goals are drawn freely for any product, or read from a catalogue: the publisher's synthetic goals
(one for each combination of options) and the goals that people wrote.

The reward is the published one, WebShop (Yao et al., 2022), section 2.3:
``total = r_type * (matched attributes + matched options + price ok) / (attributes + options + 1)``.
``r_type`` compares the words of the titles; the original asks a language model which of them are nouns, here
all count that are no function words. Attributes and options match fuzzily: sets of words are compared by
their longest common subsequence, as ``token_set_ratio`` of the package thefuzz does.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product as combinations

import numpy as np

from ragen2.envs.base import HELD_OUT_ONE_IN, HELD_OUT_SEEDS
from ragen2.envs.toolkit.records import require_fields
from ragen2.envs.toolkit.wording import pick
from ragen2.envs.webshop.catalogue import (
    Catalogue,
    Product,
    plain_text,
    plain_texts,
    records_with_asin,
)
from ragen2.errors import EnvError
from ragen2.seeding import stream, stream_key

PRICE_CAPS = tuple(10.0 * step for step in range(1, 100))
NEAREST_CAPS = 4
"""A cap is the greater of two drawn from this many of PRICE_CAPS just above the price (WebShop)."""
MAX_DRAWN_ATTRIBUTES = 3


@dataclass(frozen=True, slots=True)
class Goal:
    """One wish, and the product that grants it."""

    product: Product
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    """(name, value); the name is empty where people gave only the value."""
    price_cap: float
    """Infinite where the price does not matter."""
    text: str
    """The wish in words, as the agent reads it."""


class GoalSource(ABC):
    """Gives every seed a goal; held-out seeds and training seeds never share a product."""

    def __init__(self, products: Iterable[Product], where: str) -> None:
        by_key = sorted(products, key=lambda product: stream_key("WebShop", "split", product.asin))
        if len(by_key) < 2:
            raise EnvError(
                f"WebShop has goals for {len(by_key)} products of {where}, and needs 2 to hold one "
                "out; use other goals or a larger catalogue"
            )
        num_held_out = -(-len(by_key) // HELD_OUT_ONE_IN)
        self.held_out = tuple(by_key[:num_held_out])
        self.training = tuple(by_key[num_held_out:])

    def at(self, seed: int) -> Goal:
        """The goal of task ``seed``."""
        return self._pick(seed, is_held_out=seed < HELD_OUT_SEEDS)

    @abstractmethod
    def _pick(self, seed: int, *, is_held_out: bool) -> Goal:
        """The goal of ``seed`` among those for the products of one side."""


class DrawnGoals(GoalSource):
    """Goals without end: product, attributes, options, cap and wording all drawn."""

    def __init__(self, products: Iterable[Product], where: str) -> None:
        super().__init__((product for product in products if product.attributes), where)

    def _pick(self, seed: int, *, is_held_out: bool) -> Goal:
        rng = stream("WebShop", "goal", seed)
        products = self.held_out if is_held_out else self.training
        return draw_goal(products[int(rng.integers(len(products)))], rng)


class ListedGoals(GoalSource):
    """A fixed list of goals, gone through in mixed order, each once before any comes again."""

    def __init__(self, goals: Sequence[Goal], where: str) -> None:
        super().__init__(dict.fromkeys(goal.product for goal in goals), where)
        self.goals = tuple(goals)
        mixed = stream("WebShop", "order").permutation(len(goals))
        held_out = frozenset(self.held_out)
        self._order: dict[bool, list[Goal]] = {True: [], False: []}
        for index in mixed:
            goal = goals[int(index)]
            self._order[goal.product in held_out].append(goal)

    def _pick(self, seed: int, *, is_held_out: bool) -> Goal:
        order = self._order[is_held_out]
        return order[seed % len(order)]


def draw_goal(product: Product, rng: np.random.Generator) -> Goal:
    """Wish for ``product``: one to three of its attributes, one value of each option, a cap."""
    count = int(rng.integers(1, min(MAX_DRAWN_ATTRIBUTES, len(product.attributes)) + 1))
    order = rng.permutation(len(product.attributes))[:count]
    attributes = tuple(product.attributes[int(index)] for index in order)
    options = tuple((name, pick(rng, *values)) for name, values in product.options)
    cap = draw_price_cap(product.price, rng)
    listed = ", ".join(attributes)
    wish = pick(
        rng,
        f"Find me {listed} {product.query}",
        f"I need {product.query}: {listed}",
        f"I am looking for {listed} {product.query}",
        f"Buy {product.query}, {listed}",
    )
    return Goal(product, attributes, options, cap, wish + _options_text(options) + _cap_text(cap))


def synthetic_goals(products: Iterable[Product]) -> list[Goal]:
    """One goal for each combination of options of every product that has an instruction."""
    goals: list[Goal] = []
    for product in products:
        if product.instruction is None or not product.instruction_attributes:
            continue
        cap = draw_price_cap(product.price, stream("WebShop", "cap", product.asin))
        groups = sorted(product.options)
        for values in combinations(*(values for _, values in groups)):
            options = tuple((name, value) for (name, _), value in zip(groups, values, strict=True))
            text = product.instruction + _options_text(options) + _cap_text(cap)
            goals.append(Goal(product, product.instruction_attributes, options, cap, text))
    return goals


def read_human_goals(source: str, catalogue: Catalogue) -> list[Goal]:
    """The goals that name a product of ``catalogue`` and at least one attribute."""
    products = catalogue.by_asin()
    seen: Counter[str] = Counter()
    goals = []
    for record in records_with_asin(source):
        require_fields(record, ("instruction", "instruction_attributes"), source)
        product = products.get(str(record["asin"]))
        attributes = plain_texts(record["instruction_attributes"])
        if product is None or not attributes:
            continue
        number = seen[product.asin]
        seen[product.asin] += 1
        options = plain_texts(record.get("instruction_options"))
        goals.append(
            human_goal(product, plain_text(record["instruction"]), attributes, options, number)
        )
    if not goals:
        raise EnvError(
            f"no goal of {source} names a product of {catalogue.source}; give the catalogue they "
            "were written for"
        )
    return goals


def human_goal(
    product: Product, words: str, attributes: Sequence[str], options: Sequence[str], number: int
) -> Goal:
    """A wish that someone wrote for ``product``; ``number`` tells apart those for one product."""
    cap = draw_price_cap(product.price, stream("WebShop", "cap", product.asin, number))
    text = words.strip().rstrip(".").rstrip() + _cap_text(cap)
    named = tuple(("", option.lower()) for option in options)
    return Goal(product, tuple(attributes), named, cap, text)


def draw_price_cap(price: float, rng: np.random.Generator) -> float:
    """A round price above ``price``; infinite where fewer than two round prices are above it."""
    above = [cap for cap in PRICE_CAPS if cap > price][:NEAREST_CAPS]
    if len(above) < 2:
        return math.inf
    return max(above[int(index)] for index in rng.permutation(len(above))[:2])


def _options_text(options: Sequence[tuple[str, str]]) -> str:
    named = ", and ".join(f"{name}: {value}" for name, value in options)
    return f" with {named}" if named else ""


def _cap_text(cap: float) -> str:
    return f", and price lower than {cap:.2f} dollars" if math.isfinite(cap) else ""


SAME_TYPE_ABOVE, POOR_TITLE_BELOW = 0.2, 0.1
"""Title scores at which the type counts as the same, and as hardly related."""
SHARED_CATEGORIES = 2
NO_WORDS_SCORE = 0.2
"""Title score where the wanted title has no word to compare."""

_FUNCTION_TEXT = """
a about all also an and any are as at be both by can each every for from has have her his i in
into is it its more most my new no not of off on or our out over per so such than that the their
these this those through to too under up us use very via was we were when which while who will
with without you your"""
_FUNCTION_WORDS = frozenset(_FUNCTION_TEXT.split())
_TITLE_WORD = re.compile(r"[^\W_]+(?:[.'’][^\W_]+)*")

MATCH_ABOVE = 85
"""Least ratio, exclusive, at which two texts count as the same (WebShop, engine/goal.py)."""

_COLORS_TEXT = """
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown
burgundy camel camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee
cognac copper coral cranberry cream crystal dark denim eggplant elephant espresso fuchsia gold
granite grape graphite grass gray green grey heather indigo ivory ivy khaki lavender lemon
leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom
mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust
sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger
turquoise violet walnut wheat white wine yellow"""
COLORS = tuple(_COLORS_TEXT.split())
"""Color words of the published reward (WebShop, engine/normalize.py), in its order."""


@dataclass(frozen=True, slots=True)
class PurchaseScore:
    """What a purchase is worth, part by part."""

    type_match: float
    """1 same type, 0.5 another type, 0.1 hardly related, 0 unrelated."""
    num_attributes: int
    num_options: int
    price_ok: bool
    total: float
    """In [0, 1]; 1 is a perfect purchase."""


def score(goal: Goal, product: Product, chosen: Iterable[str]) -> PurchaseScore:
    """What buying ``product`` with the option values ``chosen`` is worth for ``goal``."""
    chosen = tuple(chosen)
    type_match = type_reward(goal.product, product)
    num_attributes = sum(has_attribute(product, wanted) for wanted in goal.attributes)
    num_options = sum(
        any(options_match(wanted, value) for value in chosen) for _, wanted in goal.options
    )
    price_ok = product.price <= goal.price_cap
    asked = len(goal.attributes) + len(goal.options) + 1
    total = type_match * (num_attributes + num_options + price_ok) / asked
    return PurchaseScore(type_match, num_attributes, num_options, price_ok, total)


def type_reward(wanted: Product, bought: Product) -> float:
    """How far ``bought`` is the kind of thing ``wanted`` is: 1, 0.5, 0.1 or 0."""
    title = title_score(wanted.title, bought.title)
    if title == 0.0:
        return 0.0
    if title < POOR_TITLE_BELOW:
        return 0.1
    shared = _categories(wanted.product_category) & _categories(bought.product_category)
    is_same_type = (
        wanted.query == bought.query or len(shared) >= SHARED_CATEGORIES or title > SAME_TYPE_ABOVE
    )
    return 1.0 if is_same_type else 0.5


def title_score(wanted: str, bought: str) -> float:
    """Share of the words of ``wanted`` that ``bought`` has too; function words do not count."""
    wanted_words, bought_words = title_words(wanted), title_words(bought)
    if not wanted_words:
        return NO_WORDS_SCORE
    return len(set(wanted_words) & set(bought_words)) / len(wanted_words)


@lru_cache(maxsize=16_384)
def title_words(title: str) -> tuple[str, ...]:
    """The words that say what a thing is: no function words, no bare numbers."""
    words = _TITLE_WORD.findall(title.lower())
    return tuple(word for word in words if word not in _FUNCTION_WORDS and not word[0].isdigit())


def has_attribute(product: Product, wanted: str) -> bool:
    """Whether an attribute of the product matches, or any of its texts contains ``wanted``."""
    if any(matches(attribute, wanted) for attribute in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullets), product.description)
    return any(wanted in text.lower() for text in texts)


def _categories(path: str) -> frozenset[str]:
    return frozenset(part.strip() for part in path.split("›"))


@lru_cache(maxsize=65_536)
def matches(one: str, other: str) -> bool:
    """Whether two attributes, or two option values, count as the same."""
    return one == other or token_set_ratio(one, other) > MATCH_ABOVE


@lru_cache(maxsize=65_536)
def options_match(one: str, other: str) -> bool:
    """Whether two option values count as the same; one with a color in it is only that color."""
    return one == other or matches(basic_color(one), basic_color(other))


def basic_color(value: str) -> str:
    """The first color of the list found inside ``value``, else ``value`` itself."""
    return next((color for color in COLORS if color in value), value)


def token_set_ratio(one: str, other: str) -> int:
    """0 to 100: how alike two texts are as sets of words.

    100 when one has all words of the other; a text without letters or digits is like nothing.

    >>> token_set_ratio("essential oils", "oil, essential"), token_set_ratio("red", "dark red")
    (96, 100)
    """
    words, others = set(_clean(one).split()), set(_clean(other).split())
    if not words or not others:
        return 0
    shared = " ".join(sorted(words & others))
    left = f"{shared} {' '.join(sorted(words - others))}".strip()
    right = f"{shared} {' '.join(sorted(others - words))}".strip()
    return max(_ratio(shared, left), _ratio(shared, right), _ratio(left, right))


def _ratio(one: str, other: str) -> int:
    from rapidfuzz.distance import LCSseq

    if not one or not other:
        return 0
    # Not rapidfuzz's own ratio: it divides before it scales, which can round the other way at .5.
    return round(200 * LCSseq.similarity(one, other) / (len(one) + len(other)))


def _clean(text: str) -> str:
    """Lower case, Latin-1 signs left out, all but letters, digits and underscores made a space."""
    return re.sub(r"\W", " ", re.sub(r"[\x80-\xff]", "", text)).lower()
