"""The published WebShop reward: type x (attributes + options + price) / (how many were asked for).

``total = r_type * (matched attributes + matched options + price ok) / (attributes + options + 1)``,
WebShop (Yao et al., 2022), section 2.3. ``r_type`` compares the words of the titles; the original
asks a language model which of them are nouns, here all count that are no function words. Attributes and
options match fuzzily: sets of words are compared by their longest common subsequence, as
``token_set_ratio`` of the package thefuzz does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ragen2.envs.webshop.catalogue import Product
    from ragen2.envs.webshop.goals import Goal

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
