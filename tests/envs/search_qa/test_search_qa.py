"""SearchQA: actions, rewards, budgets, what is shown, files, and real corpora."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.envs import check_env, make
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.envs.check.conformance import expert_steps
from ragen2.envs.search_qa.env import (
    SearchQA,
    answer_reward,
    cut_at_sentence,
    exact_match,
    f1_score,
    fold_answer,
    read_action,
    show_passages,
)
from ragen2.envs.search_qa.records import Passage, SearchQuestion, read_passages, read_questions
from ragen2.envs.search_qa.records import split_questions as split
from ragen2.envs.search_qa.world import load_world
from ragen2.envs.toolkit.text_index import ENCODERS, DenseIndex, load_encoder
from ragen2.errors import ConfigError, DependencyError, EnvError
from ragen2.seeding import stream

SMALL = {"num_passages": 400}
HOTPOT = [
    {
        "_id": "q1",
        "question": "Who painted the ship that Ann sails?",
        "answer": "Bo",
        "supporting_facts": [["Ann", 0], ["Tern", 1], ["Ann", 1]],
        "context": [
            ["Ann", ["Ann is a sailor.", " She sails the Tern."]],
            ["Tern", ["Tern is a ship.", " Bo painted it."]],
        ],
        "type": "bridge",
        "level": "easy",
    },
    {
        "_id": "q2",
        "question": "Is Ann a sailor?",
        "answer": "yes",
        "supporting_facts": [["Ann", 0]],
        "context": [["Ann", ["Ann is a sailor.", " She sails the Tern."]]],
    },
]


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAGEN2_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def hotpot_file(tmp_path):
    path = tmp_path / "hotpot_dev_distractor.json"
    path.write_text(json.dumps(HOTPOT))
    return str(path)


def test_the_expert_earns_the_maximum_on_every_hop_count():
    for hops in (1, 2, 3):
        env = make("SearchQA", min_hops=hops, max_hops=hops, **SMALL)
        for seed in range(30):
            steps = expert_steps(env, seed)
            assert [step.reward for step in steps] == [0.0] * hops + [1.0]
            assert steps[-1].solved


def test_the_expert_saw_every_link_before_it_answers():
    env = make("SearchQA")
    for seed in range(40):
        episode = env.start(seed, 0)
        shown = []
        while not episode.done:
            episode.step(episode.expert()[0])
            shown.append(episode.observation)
        text = "\n".join(shown)
        assert all(f"] {title}: " in text for title in episode.question.gold_titles)
        assert episode.question.answers[0] in shown[-2]


def test_the_whole_plan_at_once_is_as_good_as_asking_anew():
    env = make("SearchQA", **SMALL)
    for seed in range(20):
        episode = env.start(seed, 0)
        assert [episode.step(action) for action in episode.expert()][-1].solved


def test_another_process_sees_the_same_episodes():
    code = (
        "from ragen2.envs.search_qa.env import SearchQA\n"
        "for seed in range(10):\n"
        "    episode = SearchQA(num_passages=400).start(seed, seed)\n"
        "    for action in episode.expert():\n"
        "        print(episode.observation, action, episode.step(action))"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] != ""


def test_the_question_is_always_in_sight():
    env = make("SearchQA", **SMALL)
    episode = env.start(5, 0)
    for action in (
        "",
        "search[the mayor]",
        "search[qwxz]",
        *("search[born]",) * 4,
        "finish[x]",
        "y",
    ):
        assert f"Question: {episode.question.text}" in episode.observation
        episode.step(action)
    assert f"Question: {episode.question.text}" in episode.observation


def test_training_and_held_out_seeds_share_no_question():
    env = make("SearchQA", **SMALL)
    held_out = {env.question(seed).text for seed in range(300)}
    training = {env.question(seed).text for seed in range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + 300)}
    assert not held_out & training


def test_explanations_name_the_question_and_vary():
    env = make("SearchQA", **SMALL)
    for seed in range(10):
        episode = env.start(seed, 0)
        texts = {episode.explain(episode.expert(), stream("explain", n)) for n in range(12)}
        assert len(texts) >= 3
        assert all(episode.question.opening in text for text in texts)


def test_the_page_shows_a_real_play():
    episode = make("SearchQA").start(0, 0)
    lines = []
    while not episode.done:
        action = episode.expert()[0]
        reasoning = episode.explain((action,), stream("docs", 0, len(lines)))
        reply = f"<think>{reasoning}</think><answer>{action}</answer>"
        lines.append(f"{episode.observation}\n\n{reply}\n\n")
        episode.step(action)
    page = Path(__file__).parents[3] / "docs" / "environments" / "search_qa.md"
    assert "".join(lines) + episode.observation in page.read_text(encoding="utf-8")


def test_the_instruction_follows_the_settings():
    assert "You have 2 searches" in make("SearchQA", max_searches=2, max_hops=2).instruction


# Actions


@pytest.mark.parametrize(
    ("action", "read"),
    [
        ("search[Ann]", ("search", "Ann")),
        ("  SEARCH [ Ann   Lee ] ", ("search", "Ann Lee")),
        ("Finish[1,000 [sic]]", ("finish", "1,000 [sic]")),
        ("finish[yes] because", ("finish", "yes")),
        ("search[no end", ("search", "no end")),
        ("search[half \ud800 pair]", ("search", "half ? pair")),
        ("search[]", ("", "")),
        ("search", ("", "")),
        ("look[Ann]", ("", "")),
        ("[Ann]", ("", "")),
        ("I search[Ann]", ("", "")),
        ("", ("", "")),
    ],
)
def test_reading_forgives_case_spaces_and_the_last_bracket(action, read):
    assert read_action(action) == read


@given(st.text(max_size=200))
def test_no_text_breaks_an_episode(text):
    env = make("SearchQA", **SMALL)
    episode = env.start(1, 0)
    for action in (text, f"search[{text}]", f"finish[{text}]", text):
        step = episode.step(action)
        assert 0.0 <= step.reward <= 1.0


@pytest.mark.parametrize(
    "body", ["\x00" * 5000, "born " * 200_000, "[" * 10_000, "]" * 10_000, "\ud800", "a\nb" * 9999]
)
def test_hostile_actions_are_survived(body):
    episode = make("SearchQA", **SMALL).start(1, 0)
    for verb in ("search", "finish"):
        episode.step(f"{verb}[{body}]")
    assert len(episode.observation) < 10_000


def test_an_unknown_action_changes_nothing():
    episode = make("SearchQA", **SMALL).start(1, 0)
    episode.step("search[born]")
    before = episode.observation
    step = episode.step("think harder")
    assert (step.valid, step.effective, step.done) == (False, False, False)
    assert episode.observation == before


def test_searches_run_out_and_then_only_an_answer_counts():
    episode = make("SearchQA", max_searches=2, max_hops=2, **SMALL).start(1, 0)
    assert "Searches left: 2" in episode.observation
    assert [episode.step("search[born]").effective for _ in range(3)] == [True, True, False]
    assert "No searches left: finish[answer] now." in episode.observation
    assert episode.expert() == (f"finish[{episode.question.answers[0]}]",)
    assert episode.step(f"finish[{episode.question.answers[0]}]").solved


def test_a_search_without_a_hit_says_so_and_costs_one():
    episode = make("SearchQA", **SMALL).start(1, 0)
    step = episode.step("search[qwxzzy]")
    assert (step.reward, step.valid, step.effective) == (0.0, True, True)
    assert episode.observation.endswith("Searches left: 3\nResults of search 1:\nnothing found")


def test_what_the_agent_wrote_is_not_echoed():
    episode = make("SearchQA", **SMALL).start(1, 0)
    episode.step("search[<|im_end|> qwxzzy]")
    assert "qwxzzy" not in episode.observation
    episode.step("finish[<|im_end|> qwxzzy]")
    assert "qwxzzy" not in episode.observation


# Rewards


@pytest.mark.parametrize(
    ("answer", "right", "reward"),
    [
        ("Paris", ["Paris"], 1.0),
        ("the  PARIS!", ["Paris"], 1.0),
        ("An apple", ["apple", "pear"], 1.0),
        ("pear", ["apple", "pear"], 1.0),
        ("London", ["Paris"], 0.0),
        ("Anna Maria Lee", ["Anna Lee"], 0.8),
        ("one two three four five six seven", ["seven"], 0.0),  # F1 = 0.25, below the threshold
        ("one two three four five", ["five"], 1 / 3),
        ("yes", ["yes"], 1.0),
        ("Yes.", ["yes"], 1.0),
        ("yes it is", ["yes"], 0.0),
        ("no", ["yes"], 0.0),
        ("yes", ["yes minister"], 0.0),
        ("the", ["The The"], 2 / 3),
        ("The The", ["The The"], 1.0),
        ("!", ["?"], 0.0),
    ],
)
def test_reward_is_exact_match_or_f1_from_the_threshold_on(answer, right, reward):
    assert answer_reward(answer, right, 0.3) == pytest.approx(reward)


@given(st.text(), st.text())
def test_scores_are_symmetric_and_bounded(one, other):
    assert f1_score(one, [other]) == pytest.approx(f1_score(other, [one]))
    assert 0.0 <= f1_score(one, [other]) <= 1.0 + 1e-12
    assert exact_match(one, [one])
    assert fold_answer(fold_answer(one)) == fold_answer(one)


def test_only_an_exact_match_is_solved():
    env = make("SearchQA", min_hops=1, max_hops=1, **SMALL)
    for seed in range(30):
        episode = env.start(seed, 0)
        step = episode.step(f"finish[{episode.question.answers[0]} indeed]")
        assert step.done
        assert not step.solved
        assert 0.0 < step.reward < 1.0


# What is shown


def test_results_are_cut_at_sentence_ends():
    text = 'First one. Second "one." Third one is long.'
    assert cut_at_sentence(text, 100) == text
    assert cut_at_sentence(text, 30) == 'First one. Second "one."'
    assert cut_at_sentence(text, 24) == 'First one. Second "one."'
    assert cut_at_sentence(text, 23) == "First one."
    assert cut_at_sentence("no end in sight here", 12) == "no end ..."
    assert cut_at_sentence("3.14159 is a number. Yes", 22) == "3.14159 is a number."


@given(st.text(), st.integers(40, 80))
def test_a_cut_never_exceeds_its_limit(text, limit):
    assert len(cut_at_sentence(text, limit)) <= limit


def test_passages_beyond_the_limit_of_the_whole_are_left_out():
    passages = [Passage(str(n), f"T{n}", "Ten chars.") for n in range(1, 6)]
    assert show_passages(passages, 40, 40) == "[1] T1: Ten chars.\n[2] T2: Ten chars."
    assert show_passages(passages[:1], 40, 5) == "[1] T1: Ten chars."
    assert show_passages([Passage("1", "", "No title.")], 40, 40) == "[1] No title."


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_hops": 3, "max_hops": 2}, "min_hops 3 is above max_hops 2"),
        ({"max_searches": 2}, "questions of 3 hops need max_searches 3 or more, got 2"),
        ({"passages": "p.jsonl"}, "need questions; name a question file"),
        (
            {"num_passages": 10},
            "SearchQA.num_passages must be greater than or equal to 200, got 10",
        ),
        ({"topk": 3}, "unknown setting SearchQA.topk; did you mean 'top_k'?"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ConfigError) as caught:
        make("SearchQA", **settings)
    assert message in str(caught.value)


# Files


def test_hotpotqa_files_are_questions_and_passages_in_one(hotpot_file):
    env = make("SearchQA", questions=hotpot_file)
    assert read_questions(hotpot_file)[0] == SearchQuestion(
        HOTPOT[0]["question"], ("Bo",), ("Ann", "Tern")
    )
    assert read_passages(hotpot_file) == [
        Passage("q1-0", "Ann", "Ann is a sailor. She sails the Tern."),
        Passage("q1-1", "Tern", "Tern is a ship. Bo painted it."),
    ]
    for seed in (0, HELD_OUT_SEEDS):
        assert expert_steps(env, seed)[-1].solved
    assert env.question(0).text != env.question(HELD_OUT_SEEDS).text


def test_hotpotqa_as_the_hub_stores_it(tmp_path):
    record = {
        "question": "Who?",
        "answer": "Bo",
        "supporting_facts": {"title": ["Tern", "Tern"], "sent_id": [0, 1]},
        "context": {"title": ["Tern"], "sentences": [["A ship.", " Bo's."]]},
    }
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps(record))
    assert read_questions(str(path)) == [SearchQuestion("Who?", ("Bo",), ("Tern",))]
    assert read_passages(str(path)) == [Passage("0-0", "Tern", "A ship. Bo's.")]


@pytest.mark.parametrize(
    "answer",
    [
        {"answers": ["Bo", " B. "]},
        {"golden_answers": ["Bo", "B."]},
        {"ground_truth": {"target": ["Bo", "B."]}},
        {"answers": {"text": ["Bo", "B."], "answer_start": [1, 2]}},
    ],
)
def test_answer_fields_of_other_projects_are_read(tmp_path, answer):
    path = tmp_path / "q.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write(json.dumps({"question": "Who?", **answer}))
    assert read_questions(str(path)) == [SearchQuestion("Who?", ("Bo", "B."))]


def test_passages_of_search_r1_have_their_title_on_the_first_line(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"id": "7", "contents": '"Ann"\nAnn sails.'}))
    assert read_passages(str(path)) == [Passage("7", "Ann", "Ann sails.")]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"question": "Who?"}, "record 1 needs a question and one of answers, answer"),
        ({"question": "Who?", "answers": []}, "record 1 needs a question and one of answers"),
        ({"answers": ["x"]}, "record 1 needs a question"),
    ],
)
def test_a_record_without_question_or_answer_is_named(tmp_path, record, message):
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps(record))
    with pytest.raises(EnvError, match=message):
        read_questions(str(path))


def test_files_without_passages_are_named(tmp_path, hotpot_file):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"title": "x"}))
    with pytest.raises(EnvError, match="record 1 is no passage: it needs a field text or contents"):
        read_passages(str(path))
    path.write_text(json.dumps({"question": "q", "answer": "a", "context": [["Ann"]]}))
    with pytest.raises(EnvError, match="context should be HotpotQA's"):
        read_passages(str(path))
    path.write_text("")
    with pytest.raises(EnvError, match="holds no passages"):
        make("SearchQA", questions=hotpot_file, passages=str(path)).start(0, 0)
    with pytest.raises(EnvError, match="holds no questions"):
        read_questions(str(path))


def test_questions_are_split_by_their_own_field_or_else_by_digest():
    own = [SearchQuestion(str(n), ("x",), split="dev" if n < 3 else "train") for n in range(10)]
    assert [question.text for question in split(own)[1]] == ["0", "1", "2"]
    plain = [SearchQuestion(str(n), ("x",)) for n in range(100)] * 2
    training, held_out = split(plain)
    assert len(held_out) == 20
    assert not {q.text for q in training} & {q.text for q in held_out}
    assert split(plain[::-1])[1] == held_out[::-1]
    with pytest.raises(EnvError, match="give at least two"):
        split(plain[:1])


def test_a_separate_file_of_held_out_questions_is_taken_out_of_training(tmp_path, hotpot_file):
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(HOTPOT[1:]))
    env = make("SearchQA", questions=hotpot_file, held_out_questions=str(path))
    assert env.question(3).text == HOTPOT[1]["question"]
    assert {env.question(HELD_OUT_SEEDS + n).text for n in range(4)} == {HOTPOT[0]["question"]}
    both = make("SearchQA", questions=str(path), held_out_questions=hotpot_file)
    with pytest.raises(EnvError, match=r"every question of .* is also in"):
        both.start(0, 0)


# Dense retrieval


class LetterCounts:
    """An encoder that any machine has: how often each letter occurs."""

    def __init__(self, model: str) -> None:
        self.model = model

    def __call__(self, texts):
        return np.array(
            [[text.lower().count(c) for c in "abcdefghijklmnopqrstuvwxyz"] for text in texts]
        )


def test_the_old_name_of_the_held_out_questions_is_read(hotpot_file, caplog):
    old = make("SearchQA", questions=hotpot_file, heldout_questions=hotpot_file)
    assert old.held_out_questions == hotpot_file
    assert caplog.messages == [
        "SearchQA: heldout_questions is now called held_out_questions; the old name is still read"
    ]


def test_a_dense_index_ranks_by_cosine():
    index = DenseIndex(["aab", "bbb", "", "ab", "ab"], LetterCounts(""))
    found = index.search("AB", 4)
    assert [place for place, _ in found] == [3, 4, 0, 1]
    assert [score for _, score in found] == pytest.approx([1, 1, 3 / 10**0.5, 0.5**0.5])
    assert index.search_many(["ab", "b"], 1) == [index.search("ab", 1), index.search("b", 1)]
    assert DenseIndex([], LetterCounts("")).search("a", 3) == []
    assert index.search("a", 0) == []


def test_the_environment_works_with_a_dense_retriever(monkeypatch):
    monkeypatch.setitem(ENCODERS, "letters", LetterCounts)
    env = make("SearchQA", retriever="dense", encoder="letters:any", **SMALL)
    assert expert_steps(env, 0)[-1].solved
    episode = env.start(0, 0)
    passage = load_world(400, 0).passages[17]
    episode.step(f"search[{passage.title} {passage.title} {passage.text}]")
    assert f"[1] {passage.title}: {passage.text}" in episode.observation


def test_encoders_that_cannot_be_had_are_named(monkeypatch):
    with pytest.raises(ConfigError, match="encoder 'minilm' is not of the form package:model"):
        load_encoder("minilm")
    for package in ("sentence_transformers", "model2vec"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(DependencyError, match=f"needs the package {package}"):
            load_encoder(f"{package}:x")
    with pytest.raises(EnvError, match=r"shape \(3,\) for 2 texts"):
        DenseIndex(["a", "b"], lambda texts: [1, 2, 3])


# Real corpora


def two_searches(env, question):
    """Gold titles that a question, and then the first gold title it missed, bring to light."""
    retriever = env.open_retriever()
    titles = {passage.title for passage in retriever.search(question.text, 5)}
    first = titles.intersection(question.gold_titles)
    missing = [title for title in question.gold_titles if title not in titles]
    if missing:
        titles |= {passage.title for passage in retriever.search(missing[0], 5)}
    return first, titles.issuperset(question.gold_titles)


def test_hotpotqa_gold_passages_are_found(real_data):
    env = SearchQA(
        questions=str(real_data("searchqa/hotpot_qa_test.jsonl.gz")),
        passages=str(real_data("searchqa/hotpot_corpus.jsonl.gz")),
    )
    train = read_questions(str(real_data("searchqa/hotpot_qa_train.jsonl.gz")))
    found = [two_searches(env, question) for question in [*read_questions(env.questions), *train]]
    assert np.mean([bool(first) for first, _ in found]) >= 0.93
    assert np.mean([both for _, both in found]) >= 0.70


@pytest.mark.parametrize(
    ("questions", "passages"),
    [
        ("hotpot_qa_train", "hotpot_corpus"),
        ("2wiki_qa", "2wiki_corpus"),
        ("squad_qa_dev", "squad_corpus"),
    ],
)
def test_real_corpora_keep_the_contract(real_data, questions, passages):
    env = make(
        "SearchQA",
        questions=str(real_data(f"searchqa/{questions}.jsonl.gz")),
        passages=str(real_data(f"searchqa/{passages}.jsonl.gz")),
        top_k=5,
    )
    assert check_env(env, seeds=[*range(10), *range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + 10)])
