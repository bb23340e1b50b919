"""Which rollouts a page shows: a fixed, even choice of steps, and of each step's trajectories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ragen2.errors import RunError
from ragen2.reports.data.numbers import spread_over
from ragen2.reports.load import Run

MOST_STEPS = 40
"""Steps whose episodes are in the page."""
MOST_EPISODES = 24
"""Episodes of each of them."""
MOST_CHARACTERS = 6000
"""Of one text: an observation, a reply."""
STEP_CHARACTERS = 600_000
"""Of all texts of one step; fewer episodes where they are long."""
CUT = " […]"
ROW = ("env", "seed", "luck", "reward", "solved", "stop", "error")
MESSAGE = ("role", "content")
TURN = (
    *("text", "reasoning", "actions", "executed", "valid", "problem"),
    *("observation", "reward", "penalty"),
)
"""What a page reads of a trajectory, a message and a turn."""

Row = dict[str, Any]


def rollout_files(run: Run) -> dict[int, Path]:
    """The rollout files of recorded steps, earliest first."""
    recorded = {record.step for record in run.records}
    found = {
        int(path.stem.removeprefix("step_")): path
        for path in (run.path / "rollouts").glob("step_*.jsonl")
    }
    return {step: found[step] for step in sorted(found.keys() & recorded)}


def shown_steps(run: Run) -> dict[int, Path]:
    """At most ``MOST_STEPS`` of them, evenly over the run, both ends among them."""
    files = rollout_files(run)
    return {step: files[step] for step in spread_over(list(files), MOST_STEPS)}


def count_rows(path: Path) -> int:
    """Trajectories of a file; counted once for each state of the file."""
    seen = path.stat()
    return _count(path, seen.st_mtime_ns, seen.st_size)


def read_rows(path: Path) -> list[Row]:
    """All trajectories of one step, as they were written; read once for each state of the file."""
    seen = path.stat()
    return _read(path, seen.st_mtime_ns, seen.st_size)


def groups_of(rows: Sequence[Row]) -> list[list[int]]:
    """Places of the members of each prompt, prompts in order of appearance."""
    members: dict[tuple[str, int], list[int]] = {}
    for place, row in enumerate(rows):
        members.setdefault((row["env"], row["seed"]), []).append(place)
    return list(members.values())


def choose(rows: Sequence[Row]) -> list[int]:
    """Places of the episodes to show, in their old order.

    Every prompt has its turn: first each one's best paid episode, then its worst, then the others. The
    choice ends at ``MOST_EPISODES`` or ``STEP_CHARACTERS``, but never before one episode.
    """
    orders = []
    for members in groups_of(rows):
        ranked = sorted(members, key=lambda place: (-rows[place]["reward"], place))
        orders.append([ranked[0], *ranked[:0:-1]] if len(ranked) > 1 else ranked)
    chosen: list[int] = []
    room = STEP_CHARACTERS
    for rank in range(max((len(order) for order in orders), default=0)):
        for order in orders:
            if rank >= len(order) or len(chosen) == MOST_EPISODES:
                continue
            room -= _characters(rows[order[rank]])
            if chosen and room < 0:
                return sorted(chosen)
            chosen.append(order[rank])
    return sorted(chosen)


def cut(text: str) -> str:
    """The text within its limit."""
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + CUT


def _characters(row: Row) -> int:
    texts = [one["content"] for one in row["messages"]]
    texts += [text for turn in row["turns"] for text in (turn["text"], turn["observation"])]
    return sum(min(len(text), MOST_CHARACTERS) for text in texts)


@lru_cache(maxsize=1024)
def _count(path: Path, modified: int, size: int) -> int:
    del modified, size  # they name the state of the file
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


@lru_cache(maxsize=2)
def _read(path: Path, modified: int, size: int) -> list[Row]:
    del modified, size
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            row = json.loads(line)
            _check(row)
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{path} line {number} is not a trajectory ({error!r}); remove the file to report "
                "without it"
            ) from error
        rows.append(row)
    return rows


def _check(row: Row) -> None:
    """Raise where a line lacks what a page reads."""
    parts = [(row, ROW), *((one, MESSAGE) for one in row["messages"])]
    parts += [(turn, TURN) for turn in row["turns"]]
    for part, names in parts:
        for name in names:
            part[name]
