"""Word problems without end: seeded multi-step stories in the four question types of MetaMath."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import numpy as np

QuestionType = Literal["forward", "rephrased", "backward", "self_verification"]
QUESTION_TYPES: tuple[QuestionType, ...] = get_args(QuestionType)

NAMES = (
    *(
        "Mia",
        "Tom",
        "Aisha",
        "Ben",
        "Lena",
        "Omar",
        "Nora",
        "Ivan",
        "Rosa",
        "Kenji",
        "Zara",
        "Paul",
    ),
    *("Leila", "Hugo", "Priya", "Sven", "Chloe", "Diego", "Anya", "Marco", "Freya", "Tariq"),
)
THINGS = (
    *("apples", "marbles", "stickers", "pencils", "books", "shells", "cards", "coins", "stamps"),
    *("beads", "cookies", "buttons", "roses", "candles", "tickets", "postcards", "walnuts"),
)
UNKNOWN = "x"
MAX_QUANTITY = 5000
PERCENTAGES = (10, 20, 25, 40, 50, 60, 75, 80)


@dataclass(frozen=True, slots=True)
class Change:
    """One kind of step: how it is stated, computed, undone, and how its number is found.

    In the arithmetic ``v`` is the quantity before, ``w`` the one after, ``n`` the step's number and
    ``r`` the percentage that is left.
    """

    stated: tuple[str, ...]
    restated: tuple[str, ...]
    done: str
    undone: str
    number: str


CHANGES: dict[str, Change] = {
    "gain": Change(
        (
            "{who} buys {n} more {things}.",
            "{friend} gives {who} {n} {things}.",
            "Then {who} finds {n} more {things}.",
        ),
        (
            "After that {who} gets another {n} {things}.",
            "{n} {things} from {friend} are added to those of {who}.",
        ),
        *("{v} + {n}", "{w} - {n}", "{w} - {v}"),
    ),
    "loss": Change(
        (
            "{who} gives {n} {things} to {friend}.",
            "Then {who} loses {n} of the {things}.",
            "{who} sells {n} of the {things}.",
        ),
        ("{friend} receives {n} {things} from {who}.", "Of these {things}, {who} loses {n}."),
        *("{v} - {n}", "{w} + {n}", "{v} - {w}"),
    ),
    "growth": Change(
        (
            "A week later {who} has {n} times as many {things}.",
            "{who} trades well and now has {n} times as many {things}.",
        ),
        ("The number of {things} that {who} has is then multiplied by {n}.",),
        *("{v} * {n}", "{w} / {n}", "{w} / {v}"),
    ),
    "sharing": Change(
        (
            "{who} splits the {things} equally among {n} boxes and keeps just one box.",
            "{who} shares the {things} equally in a group of {n} people, {who} included.",
        ),
        (
            "All {things} are divided into {n} equal parts, and {who} is left with one part.",
            "{who} keeps one of {n} equal shares of the {things}.",
        ),
        *("{v} / {n}", "{w} * {n}", "{v} / {w}"),
    ),
    "percentage": Change(
        (
            "{who} gives away {n}% of the {things}.",
            "Then {n}% of {who}'s {things} break and are thrown away.",
        ),
        ("{who} donates {n} percent of them.", "A part of {n}% of {who}'s {things} is given up."),
        *("{v} * {r} / 100", "{w} * 100 / {r}", "100 - 100 * {w} / {v}"),
    ),
    "more": Change(
        ("{next} has {n} more {things} than {who}.", "{next} owns {n} {things} more than {who}."),
        ("Compared with {who}, {next} has {n} additional {things}.",),
        *("{v} + {n}", "{w} - {n}", "{w} - {v}"),
    ),
    "fewer": Change(
        ("{next} has {n} fewer {things} than {who}.", "{next} owns {n} {things} less than {who}."),
        ("{who} has {n} {things} more than {next} does.",),
        *("{v} - {n}", "{w} + {n}", "{v} - {w}"),
    ),
    "multiple": Change(
        ("{next} has {n} times as many {things} as {who}.",),
        ("The {things} of {next} are {n} times those of {who}.",),
        *("{v} * {n}", "{w} / {n}", "{w} / {v}"),
    ),
    "price": Change(
        ("{who} sells every one of the {things} for ${n} each.",),
        ("Each of these {things} is then sold by {who} at a price of ${n}.",),
        *("{v} * {n}", "{w} / {n}", "{w} / {v}"),
    ),
}
_HANDING_ON = ("more", "fewer", "multiple")
"""Steps after which the story is about another person."""
_OPENINGS = (
    ("{who} has {n} {things}.", "{who} starts with {n} {things}."),
    ("At first {n} {things} belong to {who}.", "There are {n} {things} in the hands of {who}."),
)


@dataclass(frozen=True, slots=True)
class StoryStep:
    """One step of a story with its number and the quantities around it."""

    change: str
    number: Fraction
    before: Fraction
    after: Fraction
    who: str
    friend: str
    next: str
    """Who has the quantity after this step."""


@dataclass(frozen=True, slots=True)
class Story:
    """A start, steps, and therefore an answer: what all question types of one seed share."""

    things: str
    first: Fraction
    who: str
    steps: tuple[StoryStep, ...]

    @property
    def answer(self) -> Fraction:
        """The quantity after the last step."""
        return self.steps[-1].after


@dataclass(frozen=True, slots=True)
class WordProblem:
    """A question with its exact answer and the arithmetic that leads there."""

    question: str
    answer: str
    type: QuestionType
    original: str
    """The forward question; two problems with one original must not be split over two sets."""
    working: tuple[str, ...]
    """One equation per step."""


def draw_problem(
    rng: np.random.Generator,
    num_steps: int,
    max_number: int = 20,
    types: Sequence[QuestionType] = QUESTION_TYPES,
) -> WordProblem:
    """A problem of one of ``types`` whose story has ``num_steps`` steps.

    Amounts added and taken go up to ``max_number``, the first one to four times that; factors,
    percentages and prices keep to their usual sizes. Every question has exactly one answer.
    """
    story = _draw_story(rng, num_steps, max_number)
    style = [int(draw) for draw in rng.integers(2**16, size=num_steps + 1)]
    original = f"{_tell(story, style, 0)} {_ask(story, 0)}"
    kind = types[int(rng.integers(len(types)))]
    if kind in ("forward", "rephrased"):
        question = original if kind == "forward" else f"{_tell(story, style, 1)} {_ask(story, 1)}"
        return WordProblem(question, show(story.answer), kind, original, _forward_working(story))
    hidden = int(rng.integers(num_steps + 1))
    masked = _tell(story, style, 0, hidden)
    question = (
        f"{masked} {_ask(story, 0)} If we know the answer to the above question is "
        f"{show(story.answer)}, what is the value of unknown variable {UNKNOWN}?"
        if kind == "backward"
        else f"{masked} {_state(story)} What is the value of unknown variable {UNKNOWN}?"
    )
    number = story.steps[hidden - 1].number if hidden else story.first
    return WordProblem(question, show(number), kind, original, _backward_working(story, hidden))


def show(number: Fraction) -> str:
    """A number as people write it, ``12`` or ``2.5``; prices here are whole quarters."""
    return str(number.numerator) if number.denominator == 1 else f"{float(number):.2f}".rstrip("0")


def _draw_story(rng: np.random.Generator, num_steps: int, max_number: int) -> Story:
    order = rng.permutation(len(NAMES))
    people = [NAMES[int(index)] for index in order]
    things = THINGS[int(rng.integers(len(THINGS)))]
    first = quantity = Fraction(int(rng.integers(2, max_number + 1)) * int(rng.integers(1, 5)))
    who, friend = people[0], people[-1]
    steps: list[StoryStep] = []
    for index in range(num_steps):
        change, number, after = _draw_change(rng, quantity, max_number, index == num_steps - 1)
        following = people[index + 1] if change in _HANDING_ON else who
        steps.append(StoryStep(change, number, quantity, after, who, friend, following))
        who, quantity = following, after
    return Story(things, first, people[0], tuple(steps))


def _draw_change(
    rng: np.random.Generator, quantity: Fraction, max_number: int, is_last: bool
) -> tuple[str, Fraction, Fraction]:
    """A step that leaves a positive whole quantity within bounds, and is not vacuous."""
    changes = [name for name in CHANGES if is_last or name != "price"]
    while True:
        change = changes[int(rng.integers(len(changes)))]
        number = _draw_number(rng, change, max_number)
        after = _after(change, quantity, number)
        whole = after.denominator == 1 or change == "price"
        if whole and 0 < after <= MAX_QUANTITY:
            return change, number, after


def _draw_number(rng: np.random.Generator, change: str, max_number: int) -> Fraction:
    if change == "percentage":
        return Fraction(PERCENTAGES[int(rng.integers(len(PERCENTAGES)))])
    if change == "price":
        return Fraction(int(rng.integers(2, 21)), int(rng.choice((1, 2, 4))))
    if change in ("growth", "multiple", "sharing"):
        return Fraction(int(rng.integers(2, 7)))
    return Fraction(int(rng.integers(2, max_number + 1)))


def _after(change: str, quantity: Fraction, number: Fraction) -> Fraction:
    if change in ("gain", "more"):
        return quantity + number
    if change in ("loss", "fewer"):
        return quantity - number
    if change == "sharing":
        return quantity / number
    if change == "percentage":
        return quantity * (100 - number) / 100
    return quantity * number


def _tell(story: Story, style: Sequence[int], wording: int, hidden: int | None = None) -> str:
    """The story in wording 0 (stated) or 1 (restated); number ``hidden`` (0 is the start) becomes x."""
    openings = _OPENINGS[wording]
    opening = openings[style[0] % len(openings)]
    number = UNKNOWN if hidden == 0 else show(story.first)
    sentences = [opening.format(who=story.who, n=number, things=story.things)]
    for index, step in enumerate(story.steps, start=1):
        change = CHANGES[step.change]
        wordings = change.restated if wording else change.stated
        sentence = wordings[style[index] % len(wordings)]
        number = UNKNOWN if hidden == index else _written(step)
        people = {"who": step.who, "friend": step.friend, "next": step.next}
        sentences.append(sentence.format(n=number, things=story.things, **people))
    return " ".join(sentences)


def _written(step: StoryStep) -> str:
    is_money = step.change == "price" and step.number.denominator > 1
    return f"{float(step.number):.2f}" if is_money else show(step.number)


def _ask(story: Story, wording: int) -> str:
    last = story.steps[-1]
    if last.change == "price":
        forms = (
            "How many dollars does {who} get?",
            "What is the sum in dollars that {who} earns this way?",
        )
    else:
        forms = (
            "How many {things} does {who} have now?",
            "What is the number of {things} that {who} has in the end?",
        )
    return forms[wording].format(who=last.next, things=story.things)


def _state(story: Story) -> str:
    last = story.steps[-1]
    if last.change == "price":
        return f"{last.next} gets {show(story.answer)} dollars."
    return f"{last.next} has {show(story.answer)} {story.things} now."


def _forward_working(story: Story, until: int | None = None) -> tuple[str, ...]:
    steps = story.steps[:until]
    return tuple(f"{_arithmetic('done', step)} = {show(step.after)}" for step in steps)


def _backward_working(story: Story, hidden: int) -> tuple[str, ...]:
    """Forward up to the hidden number, back from the answer to it, then the number itself."""
    if hidden == 0:
        return _undone(story.steps)
    step = story.steps[hidden - 1]
    number = f"{UNKNOWN} = {_arithmetic('number', step)} = {show(step.number)}"
    return (*_forward_working(story, hidden - 1), *_undone(story.steps[hidden:]), number)


def _undone(steps: Sequence[StoryStep]) -> tuple[str, ...]:
    return tuple(f"{_arithmetic('undone', step)} = {show(step.before)}" for step in reversed(steps))


def _arithmetic(direction: Literal["done", "undone", "number"], step: StoryStep) -> str:
    form: str = getattr(CHANGES[step.change], direction)
    return form.format(
        v=show(step.before), w=show(step.after), n=show(step.number), r=show(100 - step.number)
    )
