"""MetaMathQA: retries really happen and halve the reward; no question is in both parts."""

import ast
import json
import logging
import random
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pytest

from ragen2.envs import check_env
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.envs.check.conformance import expert_steps
from ragen2.envs.math.answers import same_answer
from ragen2.envs.math.metamathqa import MathEpisode, MathTask, MetaMathQA, load_tasks
from ragen2.envs.math.word_problems import QUESTION_TYPES
from ragen2.envs.toolkit.records import read_records
from ragen2.errors import ConfigError, EnvError

TASK = MathTask("What is 40 + 2?", "42", "forward", "What is 40 + 2?", ("40 + 2 = 42",))
TRAINING = range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + 300)


def episode(**settings):
    return MathEpisode(MetaMathQA(**settings), TASK)


def write(path, records):
    path.write_text("\n".join(json.dumps(record) for record in records))
    return str(path)


def test_the_contract_holds_under_the_strict_rule():
    assert check_env(MetaMathQA(answer_rule="strict", num_steps=1), seeds=range(20))


@pytest.mark.parametrize("num_wrong", range(5))
def test_each_wrong_attempt_halves_the_reward(num_wrong):
    play = episode()
    for guess in range(num_wrong):
        step = play.step(str(guess))
        assert (step.reward, step.done, step.valid) == (0.0, False, True)
    step = play.step("42")
    assert (step.reward, step.done, step.solved) == (0.5**num_wrong, True, True)


def test_all_attempts_fit_into_the_default_budget():
    assert (MetaMathQA().max_turns, MetaMathQA().max_actions) == (5, 5)


def test_a_wrong_attempt_shows_the_question_again_and_what_was_wrong():
    play = episode()
    assert play.observation == TASK.question
    play.step(" 41 \n apples")
    assert play.observation == f"{TASK.question}\nThe answer 41 apples is wrong. Try again."
    assert play.expert() == ("42",)
    play.step("42")
    assert play.observation == "That is right."
    assert play.expert() == ()


@pytest.mark.parametrize("action", ["", " \n", "\x00", "\ud800", "\u200b", "9" * 30_000])
def test_an_empty_or_endless_answer_is_no_attempt(action):
    play = episode()
    step = play.step(action)
    assert (step.valid, step.done, step.effective) == (False, False, False)
    assert play.step("42").reward == 1.0


def test_what_is_shown_of_an_answer_is_short_and_printable():
    play = episode()
    play.step("\x1b[2J\ud800" + "7 " * 500)
    assert play.observation.isprintable() or "\n" in play.observation
    assert len(play.observation) < len(TASK.question) + 80
    play.observation.encode("utf-8")


def test_answers_count_by_value_or_by_text():
    assert episode().step("x = 42.0").solved
    assert not episode(answer_rule="strict").step("x = 42.0").solved
    assert episode(answer_rule="strict").step(" 4 2").solved


def test_endless_attempts_never_raise():
    play = episode()
    for _ in range(2000):
        play.step("0")
    assert play.step("42").reward == 0.0


def test_held_out_and_training_seeds_share_no_original():
    env = MetaMathQA(num_steps=1, max_number=3)
    held_out = {env.start(seed, 0).task.original for seed in range(300)}
    trained = {env.start(seed, 0).task.original for seed in TRAINING}
    assert held_out.isdisjoint(trained)


def test_types_choose_the_questions():
    env = MetaMathQA(types=("backward", "rephrased"))
    assert {env.start(seed, 0).task.type for seed in range(30)} == {"backward", "rephrased"}


def test_tasks_are_the_same_in_another_process():
    program = (
        "from ragen2.envs.math.metamathqa import MetaMathQA\n"
        "print([MetaMathQA().start(seed, 0).observation for seed in (0, 1, 100000)])"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    here = [MetaMathQA().start(seed, 0).observation for seed in (0, 1, 100_000)]
    assert ast.literal_eval(output) == here


def test_the_instruction_is_true_to_the_settings():
    assert "half the reward" in MetaMathQA().instruction
    assert "half the reward" not in MetaMathQA(max_actions=1).instruction
    assert "simplest form" in MetaMathQA(answer_rule="strict").instruction


def test_reasoning_names_the_story_the_working_and_the_failures():
    env = MetaMathQA()
    rng = np.random.default_rng(0)
    texts = set()
    for seed in range(20):
        play = env.start(seed, 0)
        text = play.explain(play.expert(), rng)
        assert play.task.question.split(".")[0] in text
        assert all(line in text for line in play.task.working)
        texts.add(text.replace(play.task.question.split(".")[0], ""))
    assert len(texts) > 5
    play.step("-1")
    assert "-1 was wrong." in play.explain(play.expert(), rng)
    assert "40 + 2 = 42" not in episode().explain(("41",), rng)
    assert episode().explain((), rng)


METAMATH = [
    {
        "type": f"{source}_{name}",
        "query": f"{name} {number}?",
        "original_question": f"Original {number}?",
        "response": f"Thinking about {number}.\nSo it is.\n#### {number}\nThe answer is: {number}",
    }
    for number in range(20)
    for source, name in (("GSM", "AnsAug"), ("GSM", "Rephrased"), ("MATH", "FOBAR"), ("GSM", "SV"))
]


def test_metamath_records_are_read_with_type_answer_and_working(tmp_path):
    tasks = load_tasks(write(tmp_path / "m.jsonl", METAMATH), "", 0.1, QUESTION_TYPES)
    task = next(task for task in tasks.training + tasks.held_out if task.question == "FOBAR 7?")
    assert task == MathTask(
        "FOBAR 7?", "7", "backward", "Original 7?", ("Thinking about 7", "So it is")
    )


def test_variants_of_one_original_are_never_split(tmp_path):
    tasks = load_tasks(write(tmp_path / "m.jsonl", METAMATH), "", 0.25, QUESTION_TYPES)
    held_out = {task.original for task in tasks.held_out}
    assert len(held_out) == 5
    assert len(tasks.held_out) == 20
    assert held_out.isdisjoint(task.original for task in tasks.training)


def test_originals_named_by_id_are_never_split(tmp_path):
    records = [{"id": f"q{n}", "question": f"How many {n}?", "answer": str(n)} for n in range(20)]
    records += [
        {"id": f"q{n}-b", "question": f"Which x {n}?", "answer": str(n), "original_id": f"q{n}"}
        for n in range(20)
    ]
    tasks = load_tasks(write(tmp_path / "m.jsonl", records), "", 0.25, QUESTION_TYPES)
    held_out = {task.answer for task in tasks.held_out}
    assert len(tasks.held_out) == 10
    assert held_out.isdisjoint(task.answer for task in tasks.training)


def test_types_are_kept_of_the_data(tmp_path):
    path = write(tmp_path / "m.jsonl", METAMATH)
    env = MetaMathQA(data=path, types=("self_verification",))
    assert all(env.start(seed, 0).observation.startswith("SV ") for seed in TRAINING[:20])
    assert all(expert_steps(env, seed)[-1].solved for seed in [*range(5), *TRAINING[:5]])


def test_gsm8k_records_are_read_in_their_own_format(tmp_path):
    records = [
        {"question": f"Half of {n}?", "answer": f"It is <<{n}/2={n / 2}>>half.\n#### {n * 1000:,}"}
        for n in range(1, 11)
    ]
    tasks = load_tasks(write(tmp_path / "g.jsonl", records), "", 0.1, QUESTION_TYPES)
    task = next(task for task in tasks.training + tasks.held_out if task.question == "Half of 4?")
    assert (task.answer, task.working, task.type) == ("4,000", ("It is half",), "forward")


def test_held_out_data_drops_its_questions_from_training(tmp_path):
    training = [{"question": f"Q {n}?", "answer": str(n)} for n in range(10)]
    held_out = [{"question": f"q  {n}?", "answer": str(n)} for n in range(7, 15)]
    paths = write(tmp_path / "a.jsonl", training), write(tmp_path / "b.jsonl", held_out)
    tasks = load_tasks(*paths, 0.1, QUESTION_TYPES)
    assert sorted(task.answer for task in tasks.training) == [str(n) for n in range(7)]
    assert len(tasks.held_out) == 8


def test_records_without_an_answer_are_left_out_and_counted(tmp_path, caplog):
    records = [{"question": f"Q {n}?", "answer": f"so #### {n}"} for n in range(10)]
    path = write(tmp_path / "g.jsonl", [*records, {"question": "Q?", "answer": "so ####"}])
    with caplog.at_level(logging.WARNING):
        load_tasks(path, "", 0.1, QUESTION_TYPES)
    assert caplog.messages == [f"1 of 11 records of {path} have no final answer and are left out"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "?", "answer": "1"}, "none of the fields query, question, problem filled, only"),
        ({"question": "?"}, "none of the fields response, answer, solution filled, only question"),
        ({"question": "", "answer": "1"}, "name its fields as MetaMathQA or GSM8K do"),
    ],
)
def test_a_record_without_its_fields_is_named(tmp_path, record, message):
    env = MetaMathQA(data=write(tmp_path / "g.jsonl", [record]))
    with pytest.raises(EnvError, match=message):
        env.start(0, 0)


def test_data_without_the_wanted_types_is_named(tmp_path):
    path = write(tmp_path / "g.jsonl", [{"question": "?", "answer": "1"}])
    with pytest.raises(EnvError, match="has 1 answered questions, none of type backward"):
        MetaMathQA(data=path, types=("backward",)).start(0, 0)


def test_held_out_data_alone_is_refused():
    with pytest.raises(ConfigError, match="held_out_data needs data to train on; set data too"):
        MetaMathQA.from_dict({"kind": "MetaMathQA", "held_out_data": "x.jsonl"}, path="env")


def gsm8k(real_data):
    return [str(real_data(f"metamathqa/gsm8k_{part}.jsonl.gz")) for part in ("train", "test")]


def test_all_gold_answers_of_gsm8k_are_accepted(real_data):
    train, test = gsm8k(real_data)
    env = MetaMathQA(data=train, held_out_data=test)
    tasks = load_tasks(train, test, env.held_out_ratio, env.types)
    assert len(tasks.training) + len(tasks.held_out) == 8792
    for task in tasks.training + tasks.held_out:
        assert MathEpisode(env, task).step(task.answer).reward == 1.0
        assert MathEpisode(env, task).step(f"${Decimal(task.answer):,}").reward == 1.0
        assert MathEpisode(env, task).step(f"\\boxed{{{task.answer}}}").reward == 1.0


def test_no_wrong_answer_of_gsm8k_is_accepted_in_a_thousand_shuffled_pairs(real_data):
    answers = [record["answer"] for path in gsm8k(real_data) for record in read_records(path)]
    rng = random.Random(0)  # noqa: S311 - a test, not a secret
    wrong = []
    while len(wrong) < 1000:
        first, second = rng.sample(answers, 2)
        if Decimal(first) != Decimal(second):
            wrong.append((first, second))
    assert not [pair for pair in wrong if same_answer(*pair)]


def test_real_parts_share_no_question_and_no_original(real_data):
    folder = str(real_data("metamathqa/gsm8k_train.jsonl.gz").parent)
    tasks = load_tasks(folder, "", 0.1, QUESTION_TYPES)
    assert len(tasks.training) + len(tasks.held_out) > 17_000
    for place in range(2):
        held_out = {task.names[place] for task in tasks.held_out}
        assert held_out.isdisjoint(task.names[place] for task in tasks.training)
    assert check_env(MetaMathQA(data=folder), seeds=[*range(30), *TRAINING[:30]])
