"""What can be seen without a model, counted on a batch small enough to count by hand."""

from __future__ import annotations

import pytest

from ragen2.diagnostics import Evidence, Surface, surface
from ragen2.types import Finish, Group, Message, Prompt, StopReason, Trajectory

PROMPT = Prompt("E", 0, (Message("user", "go"),))


@pytest.fixture
def groups(turn_of) -> list[Group]:
    solved = Trajectory(
        PROMPT,
        0,
        (
            turn_of(reasoning="same", ids=[1] * 10, reasoning_span=(0, 6), executed=["a", "b"]),
            turn_of(reasoning="later", ids=[1] * 20, reasoning_span=(0, 4), problem="no <answer>"),
        ),
        StopReason.DONE,
        solved=True,
    )
    cut = Trajectory(
        PROMPT,
        1,
        (turn_of(reasoning="same", ids=[1] * 30, reasoning_span=(0, 2), finish=Finish.LENGTH),),
        StopReason.ENV_ERROR,
        solved=False,
        error="traceback",
    )
    other = Trajectory(
        PROMPT,
        2,
        (turn_of(reasoning="else", ids=[1] * 40, reasoning_span=(0, 8), executed=[]),),
        StopReason.MAX_TURNS,
        solved=False,
    )
    silent = Trajectory(PROMPT, 3, (), StopReason.CONTEXT_FULL, solved=False)
    return [Group(PROMPT, (solved, cut)), Group(PROMPT, (other, silent))]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("success", 1 / 4),
        ("turns", 4 / 4),
        ("actions", (2 + 1 + 1 + 0) / 4),
        ("env_errors", 1.0),
        ("format_validity", 3 / 4),
        ("reply_tokens", (10 + 20 + 30 + 40) / 4),
        ("reasoning_tokens", (6 + 4 + 2 + 8) / 4),
        ("cut_ratio", 1 / 4),
        ("distinct_reasoning_ratio", 2 / 3),
    ],
)
def test_surface_counts(groups, name, value):
    assert surface(groups)[name] == pytest.approx(value)


def test_without_turns_what_needs_turns_is_left_out():
    silent = Trajectory(PROMPT, 0, (), StopReason.CONTEXT_FULL, solved=False)
    assert surface([Group(PROMPT, (silent,))]) == {
        "success": 0.0,
        "turns": 0.0,
        "actions": 0.0,
        "env_errors": 0.0,
    }


def test_the_diagnostic_names_its_numbers(groups):
    found = Surface().measure(Evidence(1, groups))
    assert found == {f"rollout/{name}": value for name, value in surface(groups).items()}
