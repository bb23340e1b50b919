"""SearchQA's generated world: passages about people, towns, companies and works, and questions.

Each entity has one passage, which states the facts that lead away from it and none that lead to it.
So a question along a chain of k entities needs k searches: its words name only the first, and the
name of each further one is read in the passage before.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from ragen2.envs.search_qa import facts as search_facts
from ragen2.envs.search_qa import wording as search_wording
from ragen2.envs.search_qa.facts import Entity, Fact, draw_entities
from ragen2.envs.search_qa.records import Passage, SearchQuestion
from ragen2.envs.search_qa.wording import GENRES, OPENINGS, RELATIONS
from ragen2.envs.toolkit.text_index import words
from ragen2.envs.toolkit.wording import pick
from ragen2.errors import EnvError
from ragen2.runs.files import cache_root
from ragen2.seeding import stream

HELD_OUT_STRIDE = 10
"""Every tenth entity begins held-out questions and no others; the rest begin training questions."""
MAX_DRAWS = 1000

_log = logging.getLogger(__name__)


class GeneratedWorld:
    """Entities, their passages, and questions about them."""

    def __init__(self, entities: Sequence[Entity]) -> None:
        self.entities = entities
        self.passages = [
            Passage(f"w{index}", entity.name, entity.text) for index, entity in enumerate(entities)
        ]

    def question(self, hops: int, rng: np.random.Generator, *, held_out: bool) -> SearchQuestion:
        """A question whose answer stands in the last passage of a chain of ``hops``."""
        for _ in range(MAX_DRAWS):
            anchor = int(rng.integers(len(self.entities)))
            if (anchor % HELD_OUT_STRIDE == 0) != held_out:
                continue
            walk = self._walk(anchor, hops, rng)
            if walk is not None and not self._has_shortcut(*walk):
                return self._phrase(*walk, rng)
        raise EnvError(f"no question of {hops} hops found; raise num_passages or lower max_hops")

    def _walk(
        self, anchor: int, hops: int, rng: np.random.Generator
    ) -> tuple[list[int], list[str]] | None:
        """Entities of a chain and the relation read off each; None at a dead end."""
        chain: list[int] = []
        relations: list[str] = []
        position: Fact = anchor
        while len(chain) < hops:
            chain.append(int(position))
            facts = self.entities[chain[-1]].facts
            leads_on = len(chain) < hops
            choices = [name for name in facts if RELATIONS[name].leads_to or not leads_on]
            if not choices:
                return None
            relations.append(choices[int(rng.integers(len(choices)))])
            position = facts[relations[-1]]
        return chain, relations

    def _has_shortcut(self, chain: list[int], relations: list[str]) -> bool:
        """Whether fewer searches may do: a passage shows the answer, or a link, before its turn."""
        answer = self._answer(chain, relations)
        links = [self.entities[position] for position in chain]
        for place, link in enumerate(links[:-1]):
            later = links[place + 1 :]
            if answer in link.text:
                return True
            if any(link.name in other.text or _share_a_word(link, other) for other in later):
                return True
            if any(other.name in link.text for other in later[1:]):
                return True
        return False

    def _phrase(
        self, chain: list[int], relations: list[str], rng: np.random.Generator
    ) -> SearchQuestion:
        links = [self.entities[position] for position in chain]
        subject = full_name(links[0])
        for link, name in zip(links[:-1], relations[:-1], strict=True):
            subject = pick(rng, *RELATIONS[name].phrases).format(s=subject, v=_did(link))
        last = RELATIONS[relations[-1]]
        answer = self._answer(chain, relations)
        return SearchQuestion(
            text=pick(rng, *last.questions).format(s=subject, v=_did(links[-1])),
            answers=(answer, *(alias.format(o=answer) for alias in last.aliases)),
            gold_titles=tuple(link.name for link in links),
            opening=links[0].name,
        )

    def _answer(self, chain: list[int], relations: list[str]) -> str:
        fact = self.entities[chain[-1]].facts[relations[-1]]
        return fact if isinstance(fact, str) else self.entities[fact].name


@lru_cache(maxsize=4)
def load_world(num_passages: int, world_seed: int) -> GeneratedWorld:
    """The world of this size and seed: from the cache folder, or built now and kept there."""
    name = f"{num_passages}-{world_seed}-{_code_digest()}.json"
    path = cache_root() / "search_world" / name
    try:
        return GeneratedWorld(
            [Entity(*row) for row in json.loads(path.read_text(encoding="utf-8"))]
        )
    except (OSError, ValueError, TypeError):
        world = build_world(num_passages, world_seed)
    try:
        _keep(world, path)
    except OSError as error:
        _log.warning("the generated world is not kept for next time: %s", error)
    return world


def build_world(num_passages: int, world_seed: int) -> GeneratedWorld:
    """Draw names, facts and wording; a function of its two arguments alone."""
    rng = stream("SearchQA", "world", num_passages, world_seed)
    entities = draw_entities(num_passages, rng)
    for entity in entities:
        entity.text = _passage(entity, entities, rng)
    return GeneratedWorld(entities)


def full_name(entity: Entity) -> str:
    """How a question or a first sentence names it: works with their genre and in quotes."""
    return f'the {entity.trait} "{entity.name}"' if entity.kind == "work" else entity.name


def _passage(entity: Entity, entities: Sequence[Entity], rng: np.random.Generator) -> str:
    """One sentence per fact: first what the thing is, then the rest in any order."""
    opening = OPENINGS[entity.kind]
    others = [name for name in entity.facts if name != opening]
    order = [opening, *(others[place] for place in rng.permutation(len(others)))]
    subjects = _short_names(entity)
    dice = rng.integers(1 << 16, size=(len(order), 2)).tolist()
    sentences: list[str] = []
    for name, (wording, subject) in zip(order, dice, strict=True):
        forms = RELATIONS[name].sentences
        fact = entity.facts[name]
        sentence = forms[wording % len(forms)].format(
            s=subjects[subject % len(subjects)] if sentences else full_name(entity),
            h={"she": "her", "he": "his"}.get(entity.trait, "its"),
            o=fact if isinstance(fact, str) else _other_end(entities[fact]),
            v=_did(entity),
        )
        sentences.append(sentence[0].upper() + sentence[1:])
    return " ".join(sentences)


def _short_names(entity: Entity) -> tuple[str, ...]:
    if entity.kind == "person":
        return entity.trait, entity.name.split()[-1]
    if entity.kind == "company":
        return "the company", entity.name.split()[0]
    if entity.kind == "place":
        return "the town", entity.name
    return "it", f"the {entity.trait}"


def _other_end(entity: Entity) -> str:
    return f'"{entity.name}"' if entity.kind == "work" else entity.name


def _share_a_word(one: Entity, other: Entity) -> bool:
    """Whether a search for one name may find the other: the same first name, the same trade."""
    return not set(words(one.name)).isdisjoint(words(other.name))


def _did(entity: Entity) -> str:
    return GENRES.get(entity.trait, "")


def _code_digest() -> str:
    """Of the code that makes worlds: a changed generator must not read worlds of the old one."""
    digest = hashlib.blake2b(digest_size=8)
    for source in (search_facts.__file__, search_wording.__file__, __file__):
        digest.update(Path(source).read_bytes())
    return digest.hexdigest()


def _keep(world: GeneratedWorld, path: Path) -> None:
    """Write the cache file in one go, so that no reader meets half of it."""
    rows = [[e.kind, e.name, e.trait, e.facts, e.text] for e in world.entities]
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(prefix=f".{path.stem}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(rows, file, ensure_ascii=False)
        os.replace(scratch, path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
