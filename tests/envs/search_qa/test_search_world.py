"""The generated world: its facts agree, and a question of k hops needs k searches."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

from ragen2.envs.search_qa.retrieval import LocalRetriever, searchable_text
from ragen2.envs.search_qa.wording import RELATIONS, VALUES
from ragen2.envs.search_qa.world import build_world, load_world
from ragen2.envs.toolkit.text_index import TextIndex
from ragen2.errors import EnvError
from ragen2.seeding import stream

SMALL_WORLD_DIGEST = "cede1cb304e81051"
"""Of build_world(300, 7), whatever the process, the platform and the version of Python."""


@pytest.fixture(scope="module")
def world():
    return build_world(4000, 0)


@pytest.fixture(scope="module")
def retriever(world):
    index = TextIndex([searchable_text(passage) for passage in world.passages])
    return LocalRetriever(world.passages, index)


def questions(world, hops, count=150, *, held_out=False):
    return [
        world.question(hops, stream("test", hops, number), held_out=held_out)
        for number in range(count)
    ]


def digest(world) -> str:
    text = json.dumps([[p.id, p.title, p.text] for p in world.passages])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def test_a_world_is_the_same_everywhere():
    assert digest(build_world(300, 7)) == SMALL_WORLD_DIGEST


def test_another_process_with_another_hash_seed_builds_the_same_world():
    code = (
        "import hashlib, json\n"
        "from ragen2.envs.search_qa.world import build_world\n"
        "text = json.dumps([[p.id, p.title, p.text] for p in build_world(300, 7).passages])\n"
        "print(hashlib.blake2b(text.encode(), digest_size=8).hexdigest())"
    )
    env = {**os.environ, "PYTHONHASHSEED": "99"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == SMALL_WORLD_DIGEST


def test_seeds_and_sizes_give_different_worlds():
    assert digest(build_world(300, 7)) != digest(build_world(300, 8))
    assert len(build_world(250, 7).passages) == 250


def test_the_default_size_and_the_largest_have_names_enough():
    for count in (20_000, 50_000):
        titles = [passage.title for passage in build_world(count, 1).passages]
        assert len(titles) == len(set(titles)) == count


def test_every_fact_stands_in_its_passage(world):
    for entity in world.entities:
        for fact in entity.facts.values():
            said = fact if isinstance(fact, str) else world.entities[fact].name
            assert said in entity.text, entity


def test_facts_lead_to_the_right_kind(world):
    for entity in world.entities:
        for name, fact in entity.facts.items():
            relation = RELATIONS[name]
            assert relation.subject == entity.kind
            kind = None if isinstance(fact, str) else world.entities[fact].kind
            assert kind == relation.leads_to


def test_years_are_in_order_and_nothing_owns_its_owner(world):
    def year(position, name):
        return int(world.entities[position].facts[name])

    for position, entity in enumerate(world.entities):
        facts = entity.facts
        if "teacher" in facts:
            assert year(facts["teacher"], "birth_year") + 15 <= year(position, "birth_year")
        if "founder" in facts:
            assert year(facts["founder"], "birth_year") + 20 <= year(position, "founding_year")
        if "maker" in facts:
            assert year(facts["maker"], "birth_year") + 20 <= year(position, "release_year")
        if "source" in facts:
            assert year(facts["source"], "release_year") < year(position, "release_year")
        if "publisher" in facts:
            assert year(facts["publisher"], "founding_year") <= year(position, "release_year")
        if "owner" in facts:
            assert facts["owner"] < position


def test_of_two_entities_at_most_one_names_the_other(world):
    named = {
        (position, fact)
        for position, entity in enumerate(world.entities)
        for fact in entity.facts.values()
        if isinstance(fact, int)
    }
    assert not named & {(second, first) for first, second in named}


def test_every_relation_is_worded_in_more_than_one_way():
    for name, relation in RELATIONS.items():
        assert len(relation.sentences) >= 2, name
        assert len(relation.questions) >= 2, name
        assert bool(relation.phrases) == (relation.leads_to is not None), name
    assert all(len(values) == len(set(values)) for values in VALUES.values())


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_a_question_names_only_the_first_link_of_its_chain(world, hops):
    by_title = {passage.title: passage.text for passage in world.passages}
    for question in questions(world, hops):
        chain = question.gold_titles
        assert len(set(chain)) == hops
        assert chain[0] in question.text
        assert question.answers[0] in by_title[chain[-1]]
        for place, title in enumerate(chain):
            assert place == 0 or title not in question.text
            assert place == 0 or title in by_title[chain[place - 1]]
            assert all(title not in by_title[chain[other]] for other in range(place - 1))
            assert all(title not in by_title[chain[other]] for other in range(place + 1, hops))
        assert all(question.answers[0] not in by_title[title] for title in chain[:-1])


@pytest.mark.parametrize("hops", [2, 3])
def test_one_search_does_not_show_the_last_passage(world, retriever, hops):
    for question in questions(world, hops):
        for query in (question.text, question.opening):
            titles = [passage.title for passage in retriever.search(query, 5)]
            assert question.gold_titles[-1] not in titles, question


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_searching_each_link_by_name_shows_its_passage(world, retriever, hops):
    for question in questions(world, hops):
        for title in question.gold_titles:
            assert title in [passage.title for passage in retriever.search(title, 3)]


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_training_and_held_out_questions_start_from_different_entities(world, hops):
    training = {question.opening for question in questions(world, hops, 300)}
    held_out = {question.opening for question in questions(world, hops, 300, held_out=True)}
    assert not training & held_out
    assert len(training) > 250


def test_the_cache_gives_the_world_that_was_built(monkeypatch, tmp_path):
    monkeypatch.setenv("RAGEN2_CACHE", str(tmp_path))
    load_world.cache_clear()
    built = load_world(300, 7)
    load_world.cache_clear()
    loaded = load_world(300, 7)
    assert loaded is not built
    assert loaded.entities == built.entities
    (file,) = (tmp_path / "search_world").iterdir()
    file.write_text('[["half')
    load_world.cache_clear()
    assert load_world(300, 7).entities == built.entities
    load_world.cache_clear()


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RAGEN2_CACHE", str(tmp_path / "file"))
    load_world.cache_clear()
    assert len(load_world(200, 0).passages) == 200
    assert "not kept" in caplog.text
    load_world.cache_clear()


def test_a_world_too_small_for_its_questions_says_so():
    world = build_world(200, 0)
    for entity in world.entities:
        entity.facts = {name: fact for name, fact in entity.facts.items() if isinstance(fact, str)}
    with pytest.raises(EnvError, match="no question of 3 hops found; raise num_passages"):
        world.question(3, stream("test"), held_out=False)
