"""What the shopper wants: goals with attributes, options and a price cap, and their wording.

Goals are drawn freely for any product, or read from a catalogue: the publisher's synthetic goals
(one for each combination of options) and the goals that people wrote.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
