"""Fuzzy equality of attributes and options: word sets compared by their longest common subsequence.

The rule is that of the published reward: ``token_set_ratio`` of the package thefuzz, above 85.
"""

from __future__ import annotations

import re
from functools import lru_cache

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


def common_length(one: str, other: str) -> int:
    """Length of the longest common subsequence.

    Bit-parallel (Hyyrö 2004): bit i of ``row`` is 0 where the answer grows at sign i of ``one``.
    """
    places: dict[str, int] = {}
    for index, character in enumerate(one):
        places[character] = places.get(character, 0) | (1 << index)
    full = (1 << len(one)) - 1
    row = full
    for character in other:
        hit = row & places.get(character, 0)
        row = ((row + hit) | (row - hit)) & full
    return len(one) - row.bit_count()


def _ratio(one: str, other: str) -> int:
    if not one or not other:
        return 0
    return round(200 * common_length(one, other) / (len(one) + len(other)))


def _clean(text: str) -> str:
    """Lower case, Latin-1 signs left out, all but letters, digits and underscores made a space."""
    return re.sub(r"\W", " ", re.sub(r"[\x80-\xff]", "", text)).lower()
