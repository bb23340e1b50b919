"""Generate a catalogue: the same numbers always give the same shop."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from ragen2.envs.toolkit.wording import pick
from ragen2.envs.webshop.assortment import BRANDS, KINDS, OPTION_VALUES, SERIES, ProductKind
from ragen2.envs.webshop.catalogue import Catalogue, OptionGroup, Product
from ragen2.seeding import stream

MIN_ATTRIBUTES, MAX_ATTRIBUTES = 3, 5
MIN_VALUES, MAX_VALUES = 2, 4
TITLE_ATTRIBUTES = 2
"""Attributes named in the title; the others are found on the pages of features and description."""

_PRAISE = ("works as promised", "good value", "I would buy it again", "smaller than I thought")
_BULLETS = ("{}: tested in daily use", "Truly {}", "{} by design", "Made to be {}")
_PURPOSES = (
    "for every day",
    "for home and travel",
    "as a gift",
    "for careful owners",
    "made to last",
)


@lru_cache(maxsize=8)
def generated_catalogue(num_products: int, seed: int) -> Catalogue:
    """``num_products`` products, spread evenly over all kinds, in mixed order."""
    rng = stream("WebShop", "catalogue", seed)
    products = _draw_products(rng, num_products)
    return Catalogue(products, f"generated from seed {seed}")


def _draw_products(rng: np.random.Generator, num_products: int) -> Iterator[Product]:
    titles: set[str] = set()
    digits = len(str(num_products))
    # Ids and kinds are mixed apart from each other: an id must not tell what it stands for.
    for number, turn in enumerate(rng.permutation(num_products)):
        kind = KINDS[int(turn) % len(KINDS)]
        attributes = _some(rng, kind.attributes, MIN_ATTRIBUTES, MAX_ATTRIBUTES)
        title = _draw_title(rng, kind, attributes)
        while title in titles:
            title = f"{title} mark {int(rng.integers(2, 1000))}"
        titles.add(title)
        yield _describe(rng, f"P{number:0{digits}d}", title, kind, attributes)


def _describe(
    rng: np.random.Generator, asin: str, title: str, kind: ProductKind, attributes: tuple[str, ...]
) -> Product:
    hidden = attributes[TITLE_ATTRIBUTES:]
    shown = attributes[:-1] if len(attributes) > MIN_ATTRIBUTES else attributes
    wish = _some(rng, attributes, 1, 3)
    return Product(
        asin=asin,
        title=title,
        description=_draw_description(rng, kind, hidden),
        bullets=tuple(pick(rng, *_BULLETS).format(attribute) for attribute in shown),
        prices=(_draw_price(rng, kind),),
        category=kind.category,
        query=kind.query,
        product_category=f"{kind.path} › {kind.query.title()}",
        options=_draw_options(rng, kind),
        attributes=attributes,
        rating=round(float(rng.uniform(2.5, 5.0)), 1),
        reviews=_some(rng, _PRAISE, 0, 2),
        instruction=f"Find me {', '.join(wish)} {kind.query}",
        instruction_attributes=wish,
    )


def _draw_title(rng: np.random.Generator, kind: ProductKind, attributes: tuple[str, ...]) -> str:
    named = ", ".join(attributes[:TITLE_ATTRIBUTES])
    return f"{pick(rng, *BRANDS)} {pick(rng, *SERIES)} {kind.name}, {named}"


def _draw_description(rng: np.random.Generator, kind: ProductKind, hidden: tuple[str, ...]) -> str:
    qualities = " and ".join(hidden)
    return f"A {kind.name} {pick(rng, *_PURPOSES)}, {qualities}."


def _draw_price(rng: np.random.Generator, kind: ProductKind) -> float:
    """Spread evenly in the logarithm: most of a kind are cheap, a few are dear."""
    low, high = np.log(kind.prices)
    return round(float(np.exp(rng.uniform(low, high))), 2)


def _draw_options(rng: np.random.Generator, kind: ProductKind) -> tuple[OptionGroup, ...]:
    """Some options of the kind with some of their values, all in the order of the table."""
    groups = []
    for name in sorted(_some(rng, kind.options, 1, len(kind.options)), key=kind.options.index):
        known = OPTION_VALUES[name]
        values = _some(rng, known, MIN_VALUES, MAX_VALUES)
        groups.append((name, tuple(sorted(values, key=known.index))))
    return tuple(groups)


def _some(
    rng: np.random.Generator, items: tuple[str, ...], least: int, most: int
) -> tuple[str, ...]:
    """Between ``least`` and ``most`` different items, in random order."""
    count = int(rng.integers(least, min(most, len(items)) + 1))
    return tuple(items[int(index)] for index in rng.permutation(len(items))[:count])
