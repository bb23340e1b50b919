"""TextIndex: BM25 against its formula, order under ties, and the cache on disk."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen2.envs.toolkit.text_index import ENCODERS, K1, MAX_QUERY_WORDS, B, TextIndex, words
from ragen2.errors import DependencyError, EnvError
from ragen2.runs.files import cache_root

TEXTS = ("red fox in snow", "red red hen", "blue whale", "", "snow")


def bm25(query: str, text: str, texts: tuple[str, ...]) -> float:
    """Lucene's form of BM25, written from its definition."""
    docs = [words(one) for one in texts]
    mean_length = sum(map(len, docs)) / len(docs)
    doc = words(text)
    total = 0.0
    for word in words(query):
        holders = sum(word in one for one in docs)
        if not holders:
            continue
        idf = math.log(1 + (len(docs) - holders + 0.5) / (holders + 0.5))
        count = doc.count(word)
        total += idf * count / (count + K1 * (1 - B + B * len(doc) / mean_length))
    return total


@pytest.mark.parametrize("query", ["red", "red snow", "whale", "snow snow fox"])
def test_scores_are_bm25(query):
    found = dict(TextIndex(TEXTS).search(query, 10))
    expected = {place: bm25(query, text, TEXTS) for place, text in enumerate(TEXTS)}
    assert found == pytest.approx({p: score for p, score in expected.items() if score > 0})


def test_best_comes_first_and_top_limits():
    index = TextIndex(TEXTS)
    assert [place for place, _ in index.search("red hen", 5)] == [1, 0]
    assert [place for place, _ in index.search("red hen", 1)] == [1]
    assert index.search("red", 0) == []
    assert len(index) == 5


@given(st.integers(1, 30), st.integers(1, 40))
@settings(max_examples=25, deadline=None)
def test_equal_texts_are_found_in_their_order(top, copies):
    index = TextIndex(["filler words"] * 3 + ["green apple"] * copies + ["other filler"])
    places = [place for place, _ in index.search("apple", top)]
    assert places == list(range(3, 3 + min(top, copies)))


def test_case_and_accents_do_not_matter():
    index = TextIndex(["Pál Gábor", "Zoë", "STRASSE 12"])
    assert index.search("PAL", 3)[0][0] == 0
    assert index.search("zoe", 3)[0][0] == 1
    assert index.search("straSSe", 3)[0][0] == 2


@pytest.mark.parametrize(
    "query", ["", " ", "the of and", "\x00", "?!", "unknown", "\ud800", "x" * 10**5]
)
def test_a_query_without_known_words_finds_nothing(query):
    assert TextIndex(TEXTS).search(query, 5) == []


def test_a_hostile_query_costs_no_more_than_its_first_words():
    index = TextIndex(["common word"] * 500 + ["late"])
    query = "common " * MAX_QUERY_WORDS + "late"
    assert all(place < 500 for place, _ in index.search(query, 501))


@pytest.mark.parametrize("texts", [[], ["", " "], ["the"]])
def test_an_index_without_words_finds_nothing(texts, tmp_path):
    index = TextIndex(texts)
    assert index.search("the", 3) == []
    index.save(tmp_path / "index")
    again = TextIndex.load(tmp_path / "index")
    assert (len(again), again.search("the", 3)) == (len(texts), [])


def test_search_many_is_search_for_each():
    index = TextIndex(TEXTS)
    assert index.search_many(["red", "", "snow"], 2) == [
        index.search(query, 2) for query in ("red", "", "snow")
    ]


def test_a_saved_index_answers_the_same(tmp_path):
    index = TextIndex(TEXTS)
    index.save(tmp_path / "a" / "index")
    again = TextIndex.load(tmp_path / "a" / "index")
    assert again.search("red snow", 5) == index.search("red snow", 5)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["index"]


def test_saving_over_an_index_replaces_it(tmp_path):
    TextIndex(TEXTS).save(tmp_path / "index")
    TextIndex(["only green"]).save(tmp_path / "index")
    assert len(TextIndex.load(tmp_path / "index")) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_loading_what_is_not_there_is_an_error(tmp_path):
    with pytest.raises(EnvError, match=r"no text index in .*nothing"):
        TextIndex.load(tmp_path / "nothing")


def test_the_cache_is_keyed_by_the_texts(tmp_path):
    first = TextIndex.cached(TEXTS, tmp_path)
    assert TextIndex.cached(TEXTS, tmp_path).search("red", 3) == first.search("red", 3)
    assert len(list((tmp_path / "text_index").iterdir())) == 1
    TextIndex.cached([*TEXTS, "more"], tmp_path)
    TextIndex.cached(["ab", "c"], tmp_path)
    TextIndex.cached(["a", "bc"], tmp_path)
    assert len(list((tmp_path / "text_index").iterdir())) == 4


def test_a_damaged_cache_is_built_again(tmp_path):
    first = TextIndex.cached(TEXTS, tmp_path)
    (folder,) = (tmp_path / "text_index").iterdir()
    for file in folder.iterdir():
        file.write_bytes(b"\x00")
    assert TextIndex.cached(TEXTS, tmp_path).search("red", 3) == first.search("red", 3)
    assert TextIndex.load(folder).search("red", 3) == first.search("red", 3)


def test_a_damaged_cache_that_cannot_be_replaced_is_done_without(tmp_path, monkeypatch, caplog):
    first = TextIndex.cached(TEXTS, tmp_path)
    (folder,) = (tmp_path / "text_index").iterdir()
    (folder / "index.json").write_text("{")

    def refuse(*args, **kwargs):
        raise PermissionError("read-only")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    assert TextIndex.cached(TEXTS, tmp_path).search("red", 3) == first.search("red", 3)
    assert "not kept for next time: read-only" in caplog.text


def test_many_at_once_share_one_cache(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda _: TextIndex.cached(TEXTS, tmp_path).search("red", 3), range(16))
    assert len({tuple(one) for one in found}) == 1
    (folder,) = (tmp_path / "text_index").iterdir()
    assert len(TextIndex.load(folder)) == len(TEXTS)


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    index = TextIndex.cached(TEXTS, tmp_path / "file")
    assert index.search("whale", 1)[0][0] == 2
    assert "not kept" in caplog.text


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("RAGEN2_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.delenv("RAGEN2_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_root() == tmp_path / "x" / "ragen2"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "ragen2"


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(DependencyError, match="pip install bm25s"):
        TextIndex(["text"])


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("evil.py", "", "brings code"),
        ("modules.json", '[{"type": "evil.Thing"}]', "is built of evil.Thing"),
        ("modules.json", "{", "modules.json cannot be read"),
    ],
)
def test_an_encoder_that_brings_code_is_refused(tmp_path, name, text, told):
    (tmp_path / name).write_text(text)
    with pytest.raises(EnvError, match=told):
        ENCODERS["sentence_transformers"](str(tmp_path))
