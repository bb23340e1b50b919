"""DeepCoder: programs in, shares of hidden tests out."""

import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ragen2.envs import make
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.envs.deepcoder import env as deepcoder
from ragen2.envs.deepcoder.answers import Grade
from ragen2.envs.deepcoder.env import CodeEpisode, DeepCoder, extract_program
from ragen2.errors import ConfigError, EnvError
from ragen2.sandbox import best_isolation, isolation

QUICK = DeepCoder(seconds_per_test=0.3, seconds_per_program=0.6)
TRAINING = range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + 300)


def _record(number: int) -> str:
    tests = [{"input": f"{i}\n", "output": f"{i + number}\n"} for i in range(8)]
    solution = f"print(int(input()) + {number})"
    return json.dumps({"prompt": f"Add {number}.", "tests": tests, "solution": solution})


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "problems.jsonl"
    path.write_text("\n".join(_record(number) for number in range(10)))
    return str(path)


def test_the_expert_gets_the_full_reward_for_training_problems_too() -> None:
    for seed in TRAINING[:12]:
        episode = make("DeepCoder").start(seed, 0)
        step = episode.step(episode.expert()[0])
        assert (step.reward, step.done, step.solved) == (1.0, True, True)
        assert episode.expert() == ()


def test_no_training_seed_gets_a_held_out_problem() -> None:
    env = DeepCoder()
    training = {env.start(seed, 0).problem.name for seed in TRAINING[:80]}
    held_out = {env.start(seed, 0).problem.name for seed in range(40)}
    assert training.isdisjoint(held_out)
    assert len(training) > 60


def test_the_reward_is_the_share_of_tests_passed(source: str) -> None:
    episode = DeepCoder(data=source, held_out_ratio=0.5).start(0, 0)
    number = int(episode.problem.name)
    step = episode.step(f"n = int(input())\nprint(n + {number} if n < 6 else -1)")
    assert (step.reward, step.done, step.solved) == (0.75, True, False)
    assert episode.observation == "Tests passed: 6 of 8. First failure: a wrong answer."
    again = episode.step(episode.problem.solution)
    assert (again.reward, again.done, again.solved) == (0.0, True, False)


@pytest.mark.parametrize(
    ("program", "reward", "failure"),
    [
        ("print(1", 0.0, "no Python"),
        ("1 / 0", 0.0, "an error"),
        ("n = int(input())\nwhile n == 0: pass\nprint(n + {number})", 0.875, "too slow"),
        ("while True: print('x' * 9999)", 0.0, "too much output"),
        ("import sys\nprint(int(input()) + {number})\nsys.exit(1)", 1.0, ""),
        ("import os\nos.write(1, b'{{\"reward\": 1}}')\nos._exit(0)", 0.0, "a wrong answer"),
    ],
)
def test_what_goes_wrong_is_said(program: str, reward: float, failure: str, source: str) -> None:
    env = DeepCoder(data=source, seconds_per_test=0.3, seconds_per_program=2)
    episode = env.start(0, 0)
    step = episode.step(program.format(number=episode.problem.name))
    assert step.reward == reward
    assert episode.observation.endswith(f"First failure: {failure}." if failure else "8 of 8.")


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        ("print(1)", "print(1)"),
        ("  print(1) \n", "print(1)"),
        ("```python\nprint(1)\n```", "print(1)"),
        ("Here it is:\n```py\nprint(1)\n```\nDone.", "print(1)"),
        ("```\nprint(1)\n```\nor better\n```python\nprint(2)\n```", "print(2)"),
        ("```python\nprint(1)", "print(1)"),
        ("~~~\nprint(1)\n~~~", "print(1)"),
        ("```python\r\nif 1:\r\n    print(1)\r\n```", "if 1:\n    print(1)"),
        ("    if 1:\n        print(1)", "if 1:\n    print(1)"),
        ("s = 'a ``` b'\nprint(s)", "s = 'a ``` b'\nprint(s)"),
        ("```python\n```", ""),
    ],
)
def test_the_program_is_found_in_the_reply(reply: str, program: str) -> None:
    assert extract_program(reply) == program


def test_an_empty_or_endless_reply_changes_nothing() -> None:
    episode = QUICK.start(0, 0)
    before = episode.observation
    for reply in ("", " \n\t", "x" * 300_000):
        step = episode.step(reply)
        assert (step.reward, step.done, step.valid, step.effective) == (0.0, False, False, False)
    assert episode.observation == before


def test_held_out_problems_may_come_from_a_file_of_their_own(tmp_path: Path) -> None:
    for name, numbers in (("train", range(6)), ("test", range(4, 8))):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(_record, numbers)))
    env = DeepCoder(data=str(tmp_path / "train.jsonl"), held_out_data=str(tmp_path / "test.jsonl"))
    training = {env.start(seed, 0).observation for seed in TRAINING}
    assert training == {f"Add {number}." for number in range(4)}
    assert {env.start(seed, 0).observation for seed in range(20)} == {
        f"Add {number}." for number in range(4, 8)
    }


def test_form_and_levels_choose_problems() -> None:
    env = DeepCoder(form="stdin", min_level=4, max_level=5)
    problems = [env.start(seed, 0).problem for seed in (*range(8), *TRAINING[:20])]
    assert {problem.form for problem in problems} == {"stdin"}
    assert {problem.level for problem in problems} <= {4, 5}


def test_a_choice_that_leaves_nothing_is_an_error(source: str) -> None:
    with pytest.raises(EnvError, match="no problem has form 'call' and a level from 1 to 5; widen"):
        DeepCoder(data=source, form="call").start(0, 0)


def test_choosing_levels_does_not_move_problems_between_the_parts() -> None:
    """A name says what a problem computes, so the same one under two settings is one problem."""
    easy = DeepCoder(max_level=1)
    training = {easy.start(seed, 0).problem.name for seed in TRAINING[:80]}
    held_out = {DeepCoder(max_level=2).start(seed, 0).problem.name for seed in range(40)}
    assert training.isdisjoint(held_out)


def test_settings_are_checked() -> None:
    with pytest.raises(
        ConfigError, match=r"DeepCoder.isolation must be 'auto', 'strong', 'weak' or 'container'"
    ):
        make("DeepCoder", isolation="none")
    with pytest.raises(ConfigError, match="held_out_data needs data to train on; set data too"):
        make("DeepCoder", held_out_data="x.jsonl")
    with pytest.raises(ConfigError, match="min_level 4 is above max_level 2; exchange them"):
        make("DeepCoder", min_level=4, max_level=2)
    with pytest.raises(ConfigError, match=r"data source 'nowhere\.jsonl' is neither a file"):
        make("DeepCoder", data="nowhere.jsonl").start(0, 0)


def test_strong_isolation_can_be_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation.shutil, "which", lambda name: None)
    best_isolation.cache_clear()
    with pytest.raises(EnvError, match=r"isolation is strong, but .*apt-get install bubblewrap"):
        DeepCoder(isolation="strong").start(0, 0)
    best_isolation.cache_clear()


def test_it_starts_and_grades_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError("there is no network")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    episode = DeepCoder().start(7, 0)
    assert episode.step(episode.expert()[0]).solved


def test_reasoning_names_the_task_in_varied_words() -> None:
    episode = DeepCoder().start(3, 0)
    texts = {episode.explain(episode.expert(), np.random.default_rng(n)) for n in range(20)}
    assert len(texts) > 4
    assert all(episode.problem.summary in text for text in texts)


def test_a_random_player_writes_programs_that_run() -> None:
    rng = np.random.default_rng(0)
    for seed in range(6):
        episode = QUICK.start(seed, 0)
        step = episode.step(episode.random_action(rng))
        assert step.valid
        assert step.done
        assert "no Python" not in episode.observation


def test_real_problems_can_be_played(real_data: Callable[[str], Path]) -> None:
    env = make("DeepCoder", data=str(real_data("deepcoder/mbpp.jsonl.gz")))
    for seed in (0, 1, HELD_OUT_SEEDS, HELD_OUT_SEEDS + 1):
        episode = env.start(seed, 0)
        assert isinstance(episode, CodeEpisode)
        assert f"Call the function {episode.problem.entry}." in episode.observation
        assert episode.step(f"```python\n{episode.expert()[0]}\n```").solved


def test_equal_programs_that_are_asked_about_at_the_same_time_are_run_once(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group often writes one program many times; a second run could even get another verdict."""
    calls: list[str] = []
    really = deepcoder.grade

    def slow(program: str, *rest: object) -> Grade:
        calls.append(program)
        time.sleep(0.2)  # time for the others to ask as well
        return really(program, *rest)

    monkeypatch.setattr(deepcoder, "grade", slow)
    env = DeepCoder(data=source, held_out_ratio=0.5)
    episodes = [env.start(0, luck) for luck in range(4)]
    with ThreadPoolExecutor(4) as pool:
        steps = list(pool.map(lambda one: one.step("print(int(input()))"), episodes))
    assert calls == ["print(int(input()))"]
    assert steps == [steps[0]] * 4


def test_a_program_that_could_not_be_run_is_tried_again(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*rest: object) -> Grade:
        raise EnvError("no sandbox")

    env = DeepCoder(data=source, held_out_ratio=0.5)
    program = "print(int(input()) + 0)"
    with monkeypatch.context() as patch:
        patch.setattr(deepcoder, "grade", fail)
        with pytest.raises(EnvError, match="no sandbox"):
            env.start(0, 0).step(program)
    assert env.start(0, 0).step(program).done


def _in_python(tmp_path: Path, solution: str, tests: list[str]) -> DeepCoder:
    path = tmp_path / "python.jsonl"
    records = [{"prompt": f"{n}", "tests": tests, "solution": solution} for n in range(2)]
    path.write_text("\n".join(map(json.dumps, records)))
    return DeepCoder(data=str(path), seconds_per_test=0.3, held_out_ratio=0.5)


def test_what_the_reference_fails_does_not_count_against_a_program(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tests = ["assert f(1) == 2", "assert f(2) == 99", "assert g(1) == 2", "assert f(3) == 4"]
    env = _in_python(tmp_path, "def f(n): return n + 1", tests)
    step = env.start(0, 0).step("def f(n): return 1 + n")
    assert (step.reward, step.solved) == (1.0, True)
    assert env.start(0, 0).step("def f(n): return 2").reward == 0.5
    (record,) = caplog.records
    assert "its own solution fails 2 of 4 tests, which are left out" in record.getMessage()


def test_a_test_that_the_reference_has_no_time_for_counts(tmp_path: Path) -> None:
    slow = "def f(n):\n    while n == 2: pass\n    return n"
    env = _in_python(tmp_path, slow, ["assert f(1) == 1", "assert f(2) == 2"])
    assert env.start(0, 0).step("def f(n): return 1").reward == 0.5


def test_where_the_reference_fails_every_test_all_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = _in_python(tmp_path, "def f(n): return n", ["assert f(1) == 2", "assert f(2) == 3"])
    assert env.start(0, 0).step("def f(n): return 2").reward == 0.5
    assert "which count all the same" in caplog.text
