"""The published WebShop reward: type x (attributes + options + price) / (how many were asked for).

``total = r_type * (matched attributes + matched options + price ok) / (attributes + options + 1)``,
WebShop (Yao et al., 2022), section 2.3. ``r_type`` compares the words of the titles; the original
asks a language model which of them are nouns, here all count that are no function words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ragen2.envs.webshop.matching import matches, options_match

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


@dataclass(frozen=True, slots=True)
class Score:
    """What a purchase is worth, part by part."""

    type_match: float
    """1 same type, 0.5 another type, 0.1 hardly related, 0 unrelated."""
    num_attributes: int
    num_options: int
    price_ok: bool
    total: float
    """In [0, 1]; 1 is a perfect purchase."""


def score(goal: Goal, product: Product, chosen: Iterable[str]) -> Score:
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
    return Score(type_match, num_attributes, num_options, price_ok, total)


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
