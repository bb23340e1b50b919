"""Countdown: generated tasks have solutions, answers are judged exactly, parts never meet."""

import ast
import collections
import contextlib
import json
import random
import re
import subprocess
import sys
from fractions import Fraction
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen2.envs import check_env
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.envs.check.conformance import expert_steps
from ragen2.envs.math import expressions
from ragen2.envs.math.countdown import Countdown, CountdownTask, Verdict, judge, load_tasks
from ragen2.errors import ConfigError, EnvError

TASK = CountdownTask((3, 4, 6), 18)
TRAINING = range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + 500)


def make(**settings):
    """Build by settings alone, so that mistakes are worded as a user meets them."""
    return Countdown.from_dict({"kind": "Countdown", **settings}, path="env")


@pytest.mark.parametrize(
    "settings",
    [
        {"min_numbers": 2, "max_numbers": 2},
        {"min_numbers": 6, "max_numbers": 6, "max_target": 1000},
        {"operations": "+-"},
        {"operations": "/", "max_numbers": 3},
        {"low": 5, "high": 12, "operations": "*/+"},
    ],
)
def test_every_setting_gives_tasks_the_expert_solves_within_it(settings):
    env = make(**settings)
    for seed in [*range(20), *range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + 20)]:
        task = env.start(seed, 0).task
        assert env.min_numbers <= len(task.numbers) <= env.max_numbers
        assert env.low <= min(task.numbers) <= max(task.numbers) <= env.high
        assert 1 <= task.target <= env.max_target
        assert judge(task.solution, task, env.operations) == "solved"
        episode = env.start(seed, 0)
        assert [episode.step(action).reward for action in episode.expert()] == [1.0]


def test_held_out_and_training_seeds_share_no_task():
    env = Countdown(max_numbers=3, high=6, max_target=12)
    held_out = {env.start(seed, 0).task.names for seed in range(300)}
    trained = {env.start(seed, 0).task.names for seed in TRAINING}
    assert len(held_out) > 30
    assert len(trained) > 100
    assert held_out.isdisjoint(trained)


def test_tasks_are_the_same_in_another_process():
    program = (
        "from ragen2.envs.math.countdown import Countdown\n"
        "print([Countdown().start(seed, 0).observation for seed in (0, 1, 100000)])"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    here = [Countdown().start(seed, 0).observation for seed in (0, 1, 100_000)]
    assert ast.literal_eval(output) == here


def test_the_first_tasks_stay_what_they_are():
    assert Countdown().start(100_000, 0).observation == "Numbers: 49 39 80 Target: 90"
    assert Countdown().start(0, 0).observation == "Numbers: 26 1 3 Target: 29"


@pytest.mark.parametrize(
    ("action", "verdict"),
    [
        ("3 * 4 + 6", "solved"),
        ("6+4*3", "solved"),
        ("(6 × 4) − 3 − 3", "wrong numbers"),
        ("3 * 4 + 6 = 18", "solved"),
        ("3 * 4 + 6 = 18.0", "solved"),
        ("3 * 4 + 6 = 99", "solved"),
        ("3 + 4 + 6 = 18", "wrong value"),
        ("3 + 4 + 6", "wrong value"),
        ("3 / (4 - 4) + 6", "wrong numbers"),
        ("18", "wrong numbers"),
        ("3 * 6", "wrong numbers"),
        ("34 + 6", "wrong numbers"),
        ("3 * 4 + 6 = 9 + 9", "unreadable"),
        ("18 = 3 * 4 + 6", "unreadable"),
        ("3 * 4 + 6 = 18 = 18", "unreadable"),
        ("3 ** 4 ** 6", "unreadable"),
        ("the answer is 3 * 4 + 6", "unreadable"),
        ("= 18", "unreadable"),
        ("", "unreadable"),
    ],
)
def test_answers_are_judged(action, verdict):
    assert judge(action, TASK) == verdict


def test_a_division_by_zero_has_a_wrong_value():
    assert judge("6 / (3 - 3)", CountdownTask((3, 3, 6), 2)) == "wrong value"


def test_an_operation_that_is_not_allowed_is_worth_nothing():
    assert judge("3 * 4 + 6", TASK, operations="+-") == "wrong numbers"
    assert judge("-3 + 4 + 6", TASK, operations="+*") == "wrong numbers"


@pytest.mark.parametrize("base", ["9*" * 148 + "9", "=" * 100_000, "1=" * 50_000, "(" * 100_000])
def test_hostile_answers_are_judged_without_delay(base):
    assert judge(base, TASK) in ("unreadable", "wrong numbers")


def verdict_by_brute_force(text, task):
    """The same rules, by Python's own grammar and a count of the digits written."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return "unreadable"
    allowed = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.USub)
    if not all(isinstance(node, (*allowed, ast.UAdd)) for node in ast.walk(tree)):
        return "unreadable"
    if sorted(map(int, re.findall(r"\d+", text))) != sorted(task.numbers):
        return "wrong numbers"
    exact = re.sub(r"\d+", lambda match: f"Fraction({match[0]})", text.strip())
    try:
        value = eval(exact, {"Fraction": Fraction})  # noqa: S307 - the nodes were checked above
    except ZeroDivisionError:
        return "wrong value"
    return "solved" if value == task.target else "wrong value"


def draw_case(rng):
    """A task and an answer to it: mostly well formed over its numbers, sometimes spoilt."""
    numbers = tuple(rng.randint(0, 12) for _ in range(rng.randint(2, 5)))
    parts = [str(number) for number in rng.sample(numbers, len(numbers))]
    while len(parts) > 1:
        left, right = (parts.pop(rng.randrange(len(parts))) for _ in range(2))
        joined = left + rng.choice(["+", "-", "*", "/", " + ", " / "]) + right
        parts.append(f"({joined})" if rng.random() < 0.5 else joined)
    text = parts[0]
    if rng.random() < 0.25:
        place = rng.randint(0, len(text))
        text = text[:place] + rng.choice(["-", "*", "(", ")", "7", " "]) + text[place:]
    text = re.sub(r"\b0+(?=[0-9])", "", text)  # Python refuses 07, which we read as 7
    target = rng.randint(0, 30)
    if rng.random() < 0.5:
        with contextlib.suppress(ValueError, ZeroDivisionError):
            target = int(expressions.evaluate(expressions.parse(text)))
    return CountdownTask(numbers, target), text


def test_the_checker_agrees_with_brute_force_on_ten_thousand_expressions():
    rng = random.Random(0)  # noqa: S311 - a test, not a secret
    cases = [draw_case(rng) for _ in range(10_000)]
    verdicts = [judge(text, task) for task, text in cases]
    assert verdicts == [verdict_by_brute_force(text, task) for task, text in cases]
    counts = collections.Counter(verdicts)
    assert min(counts[verdict] for verdict in get_args(Verdict)) > 300, counts


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_checker_agrees_with_brute_force_wherever_hypothesis_looks(rng):
    task, text = draw_case(rng)
    assert judge(text, task) == verdict_by_brute_force(text, task)


def test_rewards_are_one_a_tenth_and_nothing():
    env = Countdown()
    numbers = env.start(1, 0).task.numbers
    right = env.start(1, 0).step(env.start(1, 0).expert()[0])
    product = env.start(1, 0).step(" * ".join(map(str, [*numbers[:-1], numbers[-1]])))
    wrong = env.start(1, 0).step("1 + 1")
    assert (right.reward, right.done, right.solved) == (1.0, True, True)
    assert (product.reward, product.done, product.solved) == (0.1, True, False)
    assert (wrong.reward, wrong.done, wrong.solved) == (0.0, True, False)


def test_an_unreadable_answer_changes_nothing():
    episode = Countdown().start(1, 0)
    before = episode.observation
    step = episode.step("I do not know")
    assert (step.reward, step.done, step.valid, step.effective) == (0.0, False, False, False)
    assert episode.observation == before
    assert episode.expert()


def test_the_end_shows_the_answer_and_the_verdict():
    episode = Countdown().start(1, 0)
    episode.step("1  +  1")
    assert episode.observation.endswith("\nYou answered 1 + 1: wrong numbers.")
    assert episode.expert() == ()


def test_the_reward_for_the_right_numbers_can_be_set():
    env = Countdown(numbers_reward=0.0, operations="*")
    numbers = env.start(1, 0).task.numbers
    assert env.start(1, 0).step("-" + " * ".join(map(str, numbers))).reward == 0.0


def test_the_worked_example_uses_only_allowed_operations():
    for operations in ("+", "-", "*", "/", "+-", "/*", "+-*/"):
        env = Countdown(operations=operations)
        example = re.search(r"target (\S+): .*<answer>(.*)</answer>", env.instruction)
        task = CountdownTask((2, 4, 8), int(example[1]))
        assert judge(example[2], task, operations) == "solved"


def test_reasoning_names_the_numbers_the_target_and_the_working():
    env = Countdown()
    rng = np.random.default_rng(0)
    texts = set()
    for seed in range(20):
        episode = env.start(seed, 0)
        text = episode.explain(episode.expert(), rng)
        assert all(str(number) in text for number in (*episode.task.numbers, episode.task.target))
        assert f"= {episode.task.target}." in text
        texts.add(re.sub(r"[0-9+*/(),= -]+", " ", text))
    assert len(texts) > 5
    assert episode.explain(("nonsense",), rng)
    assert episode.explain((), rng)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"operations": "+^"}, r"env.operations: must be some of \+-\*/, each once, got '\+\^'"),
        ({"operations": ""}, "must be some of"),
        ({"operations": "++"}, "must be some of"),
        ({"min_numbers": 5, "max_numbers": 4}, "min_numbers 5 is over max_numbers 4"),
        ({"low": 50, "high": 4}, "low 50 is over high 4"),
        ({"max_numbers": 7}, "env.max_numbers must be less than or equal to 6, got 7"),
        ({"held_out_data": "x.jsonl"}, "held_out_data needs data to train on; set data too"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        make(**settings)


def test_settings_that_allow_no_task_are_named(monkeypatch):
    monkeypatch.setattr("ragen2.envs.math.countdown.MAX_DRAWS", 100)
    env = Countdown(operations="*", low=50, high=60, max_target=10)
    with pytest.raises(EnvError, match=r"no Countdown task .* in 100 draws; widen the range"):
        env.start(0, 0)


def write(path, records):
    path.write_text("\n".join(json.dumps(record) for record in records))
    return str(path)


def test_records_without_a_solution_are_solved_and_hopeless_ones_skipped(tmp_path):
    hopeless = [{"nums": [1, 1], "target": target} for target in range(50, 90)]
    good = [{"nums": [3, 4, n], "target": 12 + n} for n in range(1, 21)]
    env = Countdown(data=write(tmp_path / "tasks.jsonl", hopeless + good))
    assert all(expert_steps(env, seed)[-1].solved for seed in [*range(10), *TRAINING[:50]])
    seen = {env.start(seed, 0).task.numbers for seed in TRAINING}
    assert (1, 1) not in seen


def test_a_file_without_a_solvable_task_is_named(tmp_path):
    hopeless = [{"nums": [1, 1], "target": target} for target in range(50, 90)]
    env = Countdown(data=write(tmp_path / "tasks.jsonl", hopeless))
    with pytest.raises(EnvError, match="1000 Countdown records in a row cannot be solved"):
        env.start(0, 0)


def test_a_wrong_solution_in_a_file_is_replaced(tmp_path):
    records = [{"nums": [n, 4, 6], "target": n * 4 + 6, "solution": "1"} for n in range(2, 12)]
    env = Countdown(data=write(tmp_path / "tasks.jsonl", records))
    assert all(expert_steps(env, seed)[-1].solved for seed in range(5))


@pytest.mark.parametrize("nums", [[1], [1, -2], [1.5, 2], "a b", None, [1] * 7])
def test_a_record_that_is_no_task_is_named(tmp_path, nums):
    env = Countdown(data=write(tmp_path / "tasks.jsonl", [{"nums": nums, "target": 3}]))
    with pytest.raises(
        EnvError, match=r"is no Countdown task: .*; it needs nums, a list of 2 to 6"
    ):
        env.start(0, 0)


def test_tables_and_parquet_give_the_same_tasks_as_json(tmp_path):
    records = [{"nums": [n, 4, 6], "target": n * 4 + 6} for n in range(2, 12)]
    expected = load_tasks(write(tmp_path / "tasks.jsonl", records), "", 0.2)
    rows = "".join(f'"{record["nums"]}",{record["target"]}\n' for record in records)
    (tmp_path / "tasks.csv").write_text(f"nums,target\n{rows}")
    assert load_tasks(str(tmp_path / "tasks.csv"), "", 0.2) == expected
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "tasks.parquet")
    assert load_tasks(str(tmp_path / "tasks.parquet"), "", 0.2) == expected


def test_real_tasks_all_have_accepted_solutions_and_disjoint_parts(real_data):
    train = str(real_data("countdown/countdown_train.jsonl.gz"))
    test = str(real_data("countdown/countdown_test.jsonl.gz"))
    tasks = load_tasks(train, test, 0.1)
    assert (len(tasks.training), len(tasks.held_out)) == (7975, 3024)
    for task in tasks.training + tasks.held_out:
        assert judge(task.solution, task) == "solved"
    env = Countdown(data=train, held_out_data=test)
    assert check_env(env, seeds=[*range(50), *TRAINING[:50]])


def test_the_search_solves_real_tasks_without_their_solutions(real_data):
    tasks = load_tasks(str(real_data("countdown/countdown_test.jsonl.gz")), "", 0.1)
    for task in tasks.held_out:
        found = expressions.find(task.numbers, task.target)
        assert found is not None
        assert judge(expressions.write(found), task) == "solved"
