"""Names for SearchQA's generated world: unique, pronounceable, no two sharing all their words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ragen2.errors import EnvError

_ROOTS = """
Alder Amber Ard Ash Aven Bal Barn Beck Bel Bex Birch Black Blen Bram Bran Bright Brook Cal Carn
Cedar Chal Clar Clove Col Cran Dal Darn Deer Dor Dun East Eld Elm Ember Fal Farn Fen Fern Flint Fox
Gar Gild Glen Gold Gran Hal Har Hawk Hazel Heath Hol Hun Ives Jar Kel Ken King Lam Lark Lin Lorn
Mal Marl May Mel Mill Mor Nar Nor Oak Ols Pem Pen Quill Ram Raven Red Rook Rose Row Sal Sand Sel
Silver Stan Sten Stone Sud Swan Tal Tarn Thorn Tor Ul Val Wal War Wen West Whit Wil Wyn Yar
"""
_PLACE_ENDS = """
borough bourne bridge burgh bury by chester church cliff combe cote cove cross dale dean don ende
fjord ford gard grave haven heim holm hurst kirk lund mere minster mouth ness pool port quay ridge
rick sea shaw shore stad stead stoke stow thorpe thwaite tide toft ton vale view wall wick wold
worth
"""
_FAMILY_ENDS = """
acre bank cott ell er est ett ham hart ier ing ington kin land lake lett ley ling lock man mont
more nell old over ry smith son ter vin water way well wood wright yard
"""
_COMPANY_ENDS = "cor dex fax gen lux mex nox pax rex tek vex zon"
_TRADES = """
Brewery Chemicals Clocks Digital Electric Energy Foods Foundry Glass Instruments Logistics Media
Motors Optics Paper Pharma Press Robotics Shipping Software Steel Studios Textiles Tools Toys
"""
_WOMEN = """
Ada Agnes Alma Anna Beatrix Carla Clara Cora Daria Edith Elena Elsa Emma Erin Faye Flora Freya
Gemma Greta Hanna Helga Ida Ines Irene Iris Jana Joan Julia Karin Lara Lena Lila Lucia Mara Mina
Nadia Nina Olga Paula Petra Rhea Rita Rosa Ruth Sara Selma Sofia Tessa Thea Una Vera Wanda Yvonne
Zoe
"""
_MEN = """
Aaron Adam Alan Anton Axel Basil Boris Carl Cyril Damian David Edgar Emil Eric Felix Frank Georg
Gilbert Hector Henry Hugo Igor Ivan Jacob Jonas Julian Karl Kaspar Leo Lewis Liam Luca Magnus Marco
Martin Milan Nathan Niels Oliver Oscar Otto Pavel Pedro Quentin Ralph Robin Rupert Samuel Simon
Tobias Ulrich Victor Walter Yuri
"""
_ADJECTIVES = """
Ancient Barren Bitter Blazing Borrowed Brave Broken Burning Buried Candid Clever Cold Crimson
Crooked Curious Distant Divided Drifting Empty Endless Faded Faithful Fallen Fearless Foreign
Forgotten Fragile Frozen Gentle Glass Golden Hasty Hidden Hollow Honest Humble Idle Invisible
Jealous Last Leaden Lonely Lost Lucky Marble Midnight Modest Nameless Narrow Noisy Painted Paper
Patient Perfect Polite Private Proud Quiet Reckless Restless Rusty Sacred Scarlet Secret Seventh
Shallow Silent Simple Sleeping Solemn Stolen Stubborn Sudden Tender Thirsty Timid Twisted
Unfinished Unwritten Velvet Violet Wandering Weary Wicked Wild Winter Wooden Yellow
"""
_NOUNS = """
Anchor Apple Archer Balcony Banner Basket Bell Bicycle Blanket Bottle Button Cabin Candle Carpet
Castle Ceiling Chariot Chimney Cloak Coin Compass Corridor Cradle Crown Curtain Desert Diary
Doorway Dragon Drummer Elevator Engine Falcon Feather Fiddler Fountain Garden Gate Ghost Hammer
Harbour Harvest Horizon Hunter Island Jacket Jewel Juggler Kettle Kitchen Ladder Lantern Lemon
Letter Lighthouse Locket Mirror Mountain Needle Oracle Orchard Painter Palace Pencil Pilgrim Pillow
Prince Puppet Raven Ribbon Riddle Saddle Sailor Shadow Shepherd Staircase Stranger Suitcase Tailor
Telescope Thief Thunder Tower Traveller Umbrella Valley Violin Visitor Window Wolf
"""
_ABSTRACTS = """
Absence Autumn Courage Darkness Dawn Deceit Delight Desire Despair Dreams Eternity Exile Fame Fate
Fortune Freedom Glory Greed Grief Honour Hope Joy Justice Memory Mercy Midsummer Mischief Oblivion
Patience Pride Reason Regret Revenge Silence Solitude Sorrow Spring Time Truth Wisdom Wonder
"""


def place_names(count: int, rng: np.random.Generator) -> list[str]:
    """Town names of one word, each word used once: ``Eldmere``."""
    return [f"{root}{end}" for root, end in _draw(count, rng, _ROOTS.split(), _PLACE_ENDS.split())]


def person_names(count: int, rng: np.random.Generator) -> list[tuple[str, bool]]:
    """First and family name, and whether it is a woman's: ``("Clara Brightwell", True)``."""
    women, men = _WOMEN.split(), _MEN.split()
    families = [f"{root}{end}" for root in _ROOTS.split() for end in _FAMILY_ENDS.split()]
    drawn = _draw(count, rng, [*women, *men], families)
    women_set = frozenset(women)
    return [(f"{first} {family}", first in women_set) for first, family in drawn]


def company_names(count: int, rng: np.random.Generator) -> list[str]:
    """A made-up word and a trade: ``Elmdex Instruments``."""
    brands = [f"{root}{end}" for root in _ROOTS.split() for end in _COMPANY_ENDS.split()]
    return [f"{brand} {trade}" for brand, trade in _draw(count, rng, brands, _TRADES.split())]


def work_titles(count: int, rng: np.random.Generator) -> list[str]:
    """Titles of two plain words: ``The Silent Harbour``, ``The Ladder of Hope``, ``Shy Dawn``."""
    adjectives, nouns, abstracts = _ADJECTIVES.split(), _NOUNS.split(), _ABSTRACTS.split()
    titles = [f"The {adjective} {noun}" for adjective in adjectives for noun in nouns]
    titles += [f"The {noun} of {abstract}" for noun in nouns for abstract in abstracts]
    titles += [f"{adjective} {abstract}" for adjective in adjectives for abstract in abstracts]
    return [first for first, _ in _draw(count, rng, titles, [""])]


def _draw(
    count: int, rng: np.random.Generator, firsts: Sequence[str], seconds: Sequence[str]
) -> list[tuple[str, str]]:
    """``count`` different pairs of words."""
    space = len(firsts) * len(seconds)
    if count > space:
        raise EnvError(f"names suffice for {space} of a kind, not for {count}; lower num_passages")
    picks = rng.permutation(space)[:count].tolist()
    return [(firsts[pick // len(seconds)], seconds[pick % len(seconds)]) for pick in picks]
