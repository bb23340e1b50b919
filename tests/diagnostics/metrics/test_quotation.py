"""Copied runs and numbers of the prompt, counted by hand and found where they were planted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ragen2.diagnostics import find_failures
from ragen2.diagnostics.metrics.quotation import FAMILIES, numbers, quotation, within_reach
from ragen2.runs.record import StepRecord

TEMPLATE = "You solve puzzles. Think first, then answer in tags."
OPENINGS = (
    "Okay, let me think about this step by step.",
    "First, I should look at what is asked.",
    "Let us work it out carefully.",
    "So the task is a simple count.",
)
CLOSINGS = (
    "That seems right to me.",
    "I am done and will answer.",
    "Let me check this once more, yes.",
    "Now I can give the answer.",
)
NAMES = ("Ann", "Bob", "Cid", "Dora", "Eve", "Finn", "Gus", "Hana")
Task = tuple[str, int, int, int]
Writer = Callable[[np.random.Generator, Task], str]


def story(task: Task) -> str:
    name, had, bought, gave = task
    return (
        f"{name} has {had} coins and buys {bought} more on Friday, then gives away {gave} of them to a "
        f"friend at school. How many coins does {name} have now?"
    )


def around(rng: np.random.Generator, text: str) -> str:
    return f"{rng.choice(OPENINGS)} {text} {rng.choice(CLOSINGS)}"


def healthy(rng: np.random.Generator, task: Task) -> str:
    """Three in ten quote the start of the story; all work it out, in one of three wordings."""
    name, had, bought, gave = task
    both = had + bought
    ways = (
        f"{had} plus {bought} is {both}, minus {gave} leaves {both - gave}.",
        f"Starting with {had} coins, adding {bought} gives {both}; without {gave} it is {both - gave}.",
        f"{name}: {had}+{bought}={both}, {both}-{gave}={both - gave}.",
    )
    quoted = f"{name} has {had} coins and buys {bought} more on Friday. "
    return around(rng, (quoted if rng.random() < 0.3 else "") + ways[rng.integers(3)])


def arithmetic(rng: np.random.Generator, task: Task) -> str:
    """Results only: no number of the prompt is repeated, and most are two operations away."""
    _, had, bought, gave = task
    both = had + bought
    return around(
        rng,
        f"The sum is {both}, twice that {2 * both}, a tenth {both / 10:g}; {both - gave} are left, which "
        f"is {both - gave - 1} plus one.",
    )


def echo(rng: np.random.Generator, task: Task) -> str:
    return around(rng, f"{story(task)} {rng.choice(OPENINGS)} {rng.choice(CLOSINGS)}")


def misgrounded(rng: np.random.Generator, task: Task) -> str:
    """Worked out rightly, on numbers of its own that are the same each time: specific, and wrong."""
    other = np.random.default_rng(task[1:]).integers(3, 90, 3)
    had, bought, gave = map(int, other)
    return around(
        rng, f"{had} plus {bought} is {had + bought}, minus {gave} leaves {had + bought - gave}."
    )


def template(rng: np.random.Generator, task: Task) -> str:
    return around(rng, f"{rng.choice(OPENINGS)} {rng.choice(CLOSINGS)}")


def log(writer: Writer, seed: int, *, steps: int, prompts: int, replies: int) -> list[StepRecord]:
    rng = np.random.default_rng(seed)
    made = []
    for step in range(1, steps + 1):
        tasks = [
            (str(rng.choice(NAMES)), *map(int, rng.integers(3, 90, 3))) for _ in range(prompts)
        ]
        shown = [f"{TEMPLATE} {story(task)}" for task in tasks]
        texts = [[writer(rng, task) for _ in range(replies)] for task in tasks]
        metrics = quotation(shown, texts, seed=seed).under("rollout")
        made.append(StepRecord(step=step, metrics=metrics))
    return made


@pytest.mark.parametrize(("steps", "prompts", "replies"), [(1, 16, 8), (4, 8, 4)])
@pytest.mark.parametrize(
    ("writer", "expected"),
    [
        (healthy, []),
        (arithmetic, []),
        (template, []),
        (echo, ["reasoning_echo"]),
        (misgrounded, ["misgrounded_reasoning"]),
    ],
)
def test_planted_logs_are_named_for_what_they_are(writer, expected, steps, prompts, replies):
    size = {"steps": steps, "prompts": prompts, "replies": replies}
    found = [[one.name for one in find_failures(log(writer, seed, **size))] for seed in range(20)]
    assert sum(names != expected for names in found) <= 1


def test_words_of_runs_that_only_the_own_prompt_has_are_copied():
    prompts = [f"{TEMPLATE} The box stands on row {n} of the left wall." for n in range(4)]
    same = "the box stands on row 0 of the left wall"  # 10 words, as in the first prompt
    traces = [
        [same, f"{TEMPLATE} so I think"],
        [f"now {same} and go"],
        ["nothing"],
        ["box on row 3"],
    ]
    found = quotation(prompts, traces)
    # The first trace whole; the template is everybody's; the third is another prompt's text.
    assert found["copied_ratio"] == pytest.approx(1 / 5)


def test_a_run_shorter_than_eight_words_is_not_copied():
    prompts = [f"go from cell ({n},{n + 1}) to the exit near the door" for n in range(3)]
    traces = [[f"I am at cell ({n},{n + 1})"] for n in range(3)]
    assert quotation(prompts, traces)["copied_ratio"] == 0.0


def test_numbers_are_read_as_values_and_cells():
    assert numbers("1,200 coins, 3.50 and (2, 1)") == {"1200", "3.5", "2", "1", "(2,1)"}
    assert numbers("none") == set()


def test_within_reach_is_one_operation():
    assert within_reach({"6", "3", "(1,2)"}) == {"6", "3", "(1,2)", "9", "-3", "18", "2", "0.5"}


def test_numbers_of_the_own_prompt_count_against_those_of_others():
    """Each trace states one number of its prompt and one of nobody: half is foreign, all under others."""
    prompts = [f"from {1000 + 10 * n} to {5000 + 77 * n}" for n in range(8)]
    traces = [[f"{1000 + 10 * n} then {9000.3 + n}"] for n in range(8)]
    found = quotation(prompts, traces)
    assert found["foreign_numbers"] == pytest.approx(0.5)
    assert found["foreign_numbers_null"] == pytest.approx(1.0)
    assert found["own_numbers"] == found["own_numbers_low"] == pytest.approx(0.5)


def test_a_single_number_of_a_prompt_may_be_a_label_and_is_not_asked_for():
    prompts = [f"Board {n}" for n in range(30, 40)]
    found = quotation(prompts, [[f"I am at ({n},{n + 1})"] for n in range(10)])
    assert "own_numbers" not in found


def test_what_is_left_of_independent_traces_is_at_chance_and_its_p_values_are_uniform():
    rng = np.random.default_rng(0)
    p_values = []
    for seed in range(60):
        traces = [[" ".join(rng.choice([*"abcdefghij"], 9)) for _ in range(4)] for _ in range(6)]
        p_values.append(quotation([*"uvwxyz"], traces, seed=seed)["rest_p_value"])
    gap = np.abs(np.sort(p_values) - (np.arange(60) + 0.5) / 60).max()
    assert gap < 1.63 / np.sqrt(60)  # Kolmogorov-Smirnov at 1%


def test_what_cannot_be_compared_is_absent_with_the_reason():
    for traces in ([["a"], []], [[" "], ["a"]]):
        found = quotation(["x", "y"], traces)
        assert (dict(found), set(found.absent)) == ({}, set(FAMILIES))
    found = quotation(["x", "y"], [["a"], ["b"]])
    assert found == {"copied_ratio": 0.0}
    assert found.absent["rest_dependence"] == "fewer than 8 traces, or most prompts have one"
