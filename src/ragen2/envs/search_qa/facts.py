"""What is true in SearchQA's generated world: entities and facts that never contradict each other.

Teachers are older than their pupils, founders and makers of age, sources older than what retells
them, no company owns its owner; and of two entities at most one names the other. Names are unique
and pronounceable, and no two share all their words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ragen2.envs.search_qa.wording import GENRES, RELATIONS, VALUES, Kind
from ragen2.errors import EnvError

SHARES: dict[Kind, float] = {"place": 0.11, "company": 0.15, "work": 0.30}
"""Part of the entities for each kind; the rest are people."""
MAX_TRIES = 20
"""Draws for the other end of a fact; where none fits, the fact is left out."""

Fact = int | str
"""Position of another entity, or a plain value."""


@dataclass(slots=True)
class Entity:
    """One thing of the world and what is true of it."""

    kind: Kind
    name: str
    trait: str
    """The pronoun of a person, the genre of a work, empty otherwise."""
    facts: dict[str, Fact]
    text: str = ""
    """Its passage."""


def draw_entities(count: int, rng: np.random.Generator) -> list[Entity]:
    """``count`` named entities with all their facts, passages still empty."""
    entities = _draw_names(count, rng)
    draw = _Facts(entities, rng)
    draw.people()
    draw.companies()
    draw.works()
    draw.places()
    draw.values()
    return entities


def _draw_names(count: int, rng: np.random.Generator) -> list[Entity]:
    counts = {kind: round(share * count) for kind, share in SHARES.items()}
    people = person_names(count - sum(counts.values()), rng)
    places = place_names(counts["place"], rng)
    companies = company_names(counts["company"], rng)
    works = work_titles(counts["work"], rng)
    genres = [list(GENRES)[pick] for pick in rng.integers(len(GENRES), size=len(works)).tolist()]
    return [
        *(Entity("person", name, "she" if is_woman else "he", {}) for name, is_woman in people),
        *(Entity("place", name, "", {}) for name in places),
        *(Entity("company", name, "", {}) for name in companies),
        *(Entity("work", name, genre, {}) for name, genre in zip(works, genres, strict=True)),
    ]


class _Facts:
    """Draws facts kind by kind; the years that others depend on come first."""

    def __init__(self, entities: list[Entity], rng: np.random.Generator) -> None:
        self.entities = entities
        self.rng = rng
        self.by_kind: dict[Kind | None, list[int]] = {}
        for index, entity in enumerate(entities):
            self.by_kind.setdefault(entity.kind, []).append(index)

    def people(self) -> None:
        """Birth years first: a teacher must be at least fifteen years older."""
        for index in self.by_kind["person"]:
            self._set_year(index, "birth_year", 1900, 76)
        for index in self.by_kind["person"]:
            self._link(index, "birthplace")
            self._link(index, "employer")
            latest = self._year(index, "birth_year") - 15
            self._link(index, "teacher", self._not_after("birth_year", latest))

    def companies(self) -> None:
        """An owner stands earlier in the list, so that ownership has no circles."""
        for index in self.by_kind["company"]:
            self._link(index, "headquarters")
            founder = self._link(index, "founder")
            self._set_year(index, "founding_year", self._of_age(founder), 30)
            self._link(index, "owner", range(index).__contains__)

    def works(self) -> None:
        """A work comes out when its maker is of age, its source known and its publisher founded."""
        for index in self.by_kind["work"]:
            maker = self._link(index, "maker")
            self._set_year(index, "release_year", self._of_age(maker), 35)
        for index in self.by_kind["work"]:
            year = self._year(index, "release_year")
            self._link(index, "setting")
            self._link(index, "publisher", self._not_after("founding_year", year))
            self._link(index, "source", self._not_after("release_year", year - 1))

    def places(self) -> None:
        """Towns are old; nothing depends on their years."""
        for index in self.by_kind["place"]:
            for name in ("mayor", "main_employer", "railway"):
                self._link(index, name)
            self._set_year(index, "charter_year", 1150, 740)

    def values(self) -> None:
        """Facts that lead nowhere."""
        for name, choices in VALUES.items():
            holders = self.by_kind[RELATIONS[name].subject]
            picks = self.rng.integers(len(choices), size=len(holders)).tolist()
            for index, pick in zip(holders, picks, strict=True):
                self.entities[index].facts[name] = choices[pick]

    def _link(
        self, index: int, name: str, fits: Callable[[int], bool] = lambda other: True
    ) -> int | None:
        """Point ``index`` at another entity that fits and does not name it; None if none is met."""
        candidates = self.by_kind[RELATIONS[name].leads_to]
        for pick in self.rng.integers(len(candidates), size=MAX_TRIES):
            other = candidates[int(pick)]
            names_it = other == index or index in self.entities[other].facts.values()
            if not names_it and fits(other):
                self.entities[index].facts[name] = other
                return other
        return None

    def _of_age(self, person: int | None) -> int:
        return 1940 if person is None else self._year(person, "birth_year") + 20

    def _not_after(self, name: str, year: int) -> Callable[[int], bool]:
        return lambda other: self._year(other, name) <= year

    def _year(self, index: int, name: str) -> int:
        return int(self.entities[index].facts[name])

    def _set_year(self, index: int, name: str, first: int, span: int) -> None:
        self.entities[index].facts[name] = str(first + int(self.rng.integers(span)))


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
