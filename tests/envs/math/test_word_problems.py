"""Generated word problems have one exact answer, and their working is true."""

import re
from fractions import Fraction

import numpy as np
import pytest

from ragen2.envs.math import expressions
from ragen2.envs.math.word_problems import (
    CHANGES,
    QUESTION_TYPES,
    draw_problem,
    show,
)
from ragen2.seeding import stream


def problems(count, num_steps=3, types=QUESTION_TYPES):
    return [draw_problem(stream("test", seed), num_steps, types=types) for seed in range(count)]


def computed(text):
    """The value of arithmetic with decimals, by our exact parser: 2.75 becomes (275/100)."""
    whole = re.sub(r"(\d+)\.(\d+)", lambda m: f"({m[1]}{m[2]}/{10 ** len(m[2])})", text)
    return expressions.evaluate(expressions.parse(whole))


@pytest.mark.parametrize("num_steps", [1, 2, 5, 12])
def test_every_line_of_working_is_true_and_the_last_gives_the_answer(num_steps):
    for problem in problems(200, num_steps):
        assert num_steps <= len(problem.working) <= num_steps + 1
        for line in problem.working:
            *_, left, right = line.split(" = ")
            assert computed(left) == computed(right)
        assert problem.working[-1].endswith(f"= {problem.answer}")


def test_the_working_uses_only_numbers_known_by_then():
    for problem in problems(300):
        known = {Fraction(number) for number in re.findall(r"\d+(?:\.\d+)?", problem.question)}
        for line in problem.working:
            left, _, right = line.removeprefix("x = ").partition(" = ")
            used = {Fraction(number) for number in re.findall(r"\d+(?:\.\d+)?", left)}
            kept = {100 - number for number in known}  # what a percentage leaves
            assert used <= known | kept | {Fraction(100)}
            known.add(Fraction(right))


OPERATIONS = {
    "gain": lambda v, n: v + n,
    "more": lambda v, n: v + n,
    "loss": lambda v, n: v - n,
    "fewer": lambda v, n: v - n,
    "growth": lambda v, n: v * n,
    "multiple": lambda v, n: v * n,
    "price": lambda v, n: v * n,
    "sharing": lambda v, n: v / n,
    "percentage": lambda v, n: v * (100 - n) / 100,
}


def solved_by_reading(question):
    """The quantity at the end of a forward question, from its sentences alone."""
    first, *sentences = re.split(r"(?<=[.?])\s", question)[:-1]
    quantity = Fraction(re.search(r"\d+", first)[0])
    for sentence in sentences:
        kind = next(name for name in CHANGES if matches(sentence, CHANGES[name].stated))
        quantity = OPERATIONS[kind](quantity, Fraction(re.search(r"\d+(?:\.\d+)?", sentence)[0]))
    return quantity


def matches(sentence, forms):
    return any(re.fullmatch(pattern(form), sentence) for form in forms)


def pattern(form):
    parts = re.split(r"(\{\w+\})", form)
    known = {"{n}": r"[\d.]+", "{things}": "[a-z]+"}
    return "".join(
        known.get(part, "[A-Z][a-z]+") if part[:1] == "{" else re.escape(part) for part in parts
    )


def test_a_reader_of_the_sentences_finds_the_same_answer():
    for problem in problems(300, num_steps=4, types=("forward",)):
        assert show(solved_by_reading(problem.question)) == problem.answer


def test_the_answer_to_a_backward_question_completes_the_story():
    for problem in problems(300, types=("backward", "self_verification")):
        story = re.split(r" How many | What is the value", problem.question)[0]
        asked = re.search(r"How many .*?\?", problem.original)[0]
        if problem.type == "self_verification":
            story = re.split(r"(?<=\.)\s", story)[:-1]
            story = " ".join(story)
        filled = re.sub(r"\bx\b", problem.answer, story)
        result = show(solved_by_reading(f"{filled} {asked}"))
        assert show(solved_by_reading(problem.original)) == result
        assert re.search(rf"\b{re.escape(result)}\b", problem.question)


def test_every_type_is_drawn_and_looks_its_part():
    found = {name: [] for name in QUESTION_TYPES}
    for problem in problems(200):
        found[problem.type].append(problem)
    assert min(map(len, found.values())) > 20
    assert all(problem.question == problem.original for problem in found["forward"])
    assert all(problem.question != problem.original for problem in found["rephrased"])
    for problem in found["backward"] + found["self_verification"]:
        assert len(re.findall(r"\bx\b", problem.question)) == 2
        assert problem.question.endswith("what is the value of unknown variable x?") or (
            problem.question.endswith("What is the value of unknown variable x?")
        )


def test_rephrasing_keeps_the_numbers_in_order():
    for problem in problems(200, types=("rephrased",)):
        numbers = [
            re.findall(r"\d+(?:\.\d+)?", text) for text in (problem.question, problem.original)
        ]
        assert numbers[0] == numbers[1]


def test_only_the_types_asked_for_are_drawn():
    assert {problem.type for problem in problems(30, types=("backward",))} == {"backward"}


def test_problems_rarely_repeat():
    assert len({problem.question for problem in problems(1000, num_steps=2)}) > 990


def test_numbers_stay_within_their_bound():
    for seed in range(100):
        problem = draw_problem(np.random.default_rng(seed), 2, max_number=5, types=("forward",))
        assert max(Fraction(n) for n in re.findall(r"\d+(?:\.\d+)?", problem.question)) <= 80


def test_numbers_are_shown_as_people_write_them():
    assert [show(Fraction(n, 4)) for n in (8, 9, 10, 11)] == ["2", "2.25", "2.5", "2.75"]


def test_the_first_problem_stays_what_it_is():
    problem = draw_problem(stream("golden"), 3)
    assert (problem.type, problem.answer) == ("rephrased", "107")
    assert problem.question == (
        "There are 12 beads in the hands of Sven. The beads of Lena are 6 times those of "
        "Sven. Compared with Lena, Marco has 20 additional beads. 15 beads from Chloe are "
        "added to those of Marco. What is the number of beads that Marco has in the end?"
    )
