"""What is true in SearchQA's generated world: entities and facts that never contradict each other.

Teachers are older than their pupils, founders and makers of age, sources older than what retells
them, no company owns its owner; and of two entities at most one names the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ragen2.envs.search_qa import names as search_names
from ragen2.envs.search_qa.wording import GENRES, RELATIONS, VALUES, Kind

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
    people = search_names.person_names(count - sum(counts.values()), rng)
    places = search_names.place_names(counts["place"], rng)
    companies = search_names.company_names(counts["company"], rng)
    works = search_names.work_titles(counts["work"], rng)
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
