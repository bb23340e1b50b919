"""Episodes as replays: which ones a page shows, and turn by turn what the agent saw, thought and did."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from ragen2.diagnostics.metrics.problems import count_problems
from ragen2.errors import RunError
from ragen2.reading import LARGEST, open_file, read_bytes
from ragen2.reports.data.boards import Boards
from ragen2.reports.data.numbers import short, spread_over
from ragen2.reports.load import Run
from ragen2.runs.files import files_by_step
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory
from ragen2.runs.trajectories import SHOWN, ImageStore, ShownTrajectory, ShownTurn, first_problem

MOST_STEPS = 40
"""Steps whose episodes are in the page."""
MOST_EPISODES = 24
"""Episodes of each of them."""
MOST_CHARACTERS = 6000
"""Of one text: an observation, a reply."""
STEP_CHARACTERS = 600_000
"""Of all texts of one step; fewer episodes where they are long."""
CUT = " […]"
Row = ShownTrajectory
Blocks = dict[str, Callable[[], Any]]
"""Heavy parts of a page by name, each made when it is asked for."""
MOST_IMAGE_CHARACTERS = 2_000_000
"""Of all images of one block; boards take a few hundred each."""
PNG = "data:image/png;base64,"
IMAGE_NAME = re.compile("[0-9a-f]{32}")
"""An image by its pixels, as ``Image.digest`` has it."""


def rollout_files(run: Run) -> dict[int, Path]:
    """The rollout files of recorded steps, earliest first."""
    recorded = {record.step for record in run.records}
    found = files_by_step(run.path / "rollouts", ".jsonl")
    return {step: path for step, path in found if step in recorded}


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


def members_by_prompt(rows: Sequence[Row]) -> list[list[int]]:
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
    for members in members_by_prompt(rows):
        ranked = sorted(members, key=lambda place: (-rows[place]["reward"], place))
        orders.append([ranked[0], *ranked[:0:-1]] if len(ranked) > 1 else ranked)
    chosen: list[int] = []
    left = STEP_CHARACTERS
    for rank in range(max((len(order) for order in orders), default=0)):
        for order in orders:
            if rank >= len(order) or len(chosen) == MOST_EPISODES:
                continue
            left -= _characters(rows[order[rank]])
            if chosen and left < 0:
                return sorted(chosen)
            chosen.append(order[rank])
    return sorted(chosen)


def cut(text: str) -> str:
    """The text within its limit."""
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + CUT


class Pictures:
    """Finds images of a run directory for one block of a page."""

    def __init__(self, run: Path) -> None:
        self._store = ImageStore(run)
        self._left = MOST_IMAGE_CHARACTERS
        self._known: dict[str, str] = {}

    def uri(self, name: str) -> str:
        """The image as a URI; empty when it is missing from the run directory, or does not fit."""
        if name not in self._known:
            try:
                data = self._store.file(name, at_most=self._left * 3 // 4)
            except RunError:  # the page says so where the image would be
                return ""
            self._known[name] = PNG + base64.b64encode(data).decode("ascii")
        found = self._known[name]
        if len(found) > self._left:
            return ""
        self._left -= len(found)
        return found


def missing_images(run: Run) -> str:
    """One line about the images of the page's episodes that the run directory lacks; empty for none.

    A damaged archive is an error.
    """
    named: set[str] = set()
    for path in shown_steps(run).values():
        rows = read_rows(path)
        named.update(name for place in choose(rows) for name in _image_names(rows[place]))
    store = ImageStore(run.path)
    lost = sorted(name for name in named if not store.has(name))
    if not lost:
        return ""
    return (
        f"{len(lost)} of {len(named)} images of {run.path} are missing from {store.folder}, "
        f"{lost[0]}.png for one; put back the archives of their steps"
    )


def changed_files(run: Run) -> str:
    """One line about files of the page's steps that are not as they were recorded; empty for none."""
    recorded = [record for record in run.records if record.files]
    return RunDirectory(run.path).changed_files(spread_over(recorded, MOST_STEPS))


def missing_records(run: Run) -> str:
    """One line about records that a run must have had; empty for an audit, or where none is missing."""
    return "" if run.audit else RunDirectory(run.path).missing_records(run.records)


def seen_of(images: Sequence[object], picture: Callable[[str], str]) -> dict[str, Any]:
    """What a view holds of the images of a prompt; nothing where none was shown.

    It is the last one that a turn is about. Pictures that stand in the file itself, as other programs
    write them, are all shown.
    """
    texts = [one for one in images if isinstance(one, str)]
    if data := [one for one in texts if one.startswith("data:image/")]:
        return {"images": data}
    names = [one for one in texts if IMAGE_NAME.fullmatch(one)]
    if not names:
        return {}
    uri = picture(names[-1])
    return {"images": [uri]} if uri else {"images": [], "image_missing": True}


def replays_of(run: Run, run_id: str) -> tuple[list[dict[str, Any]], Blocks, list[str]]:
    """Entries for the page, their blocks, and what was left out."""
    files = shown_steps(run)
    by_step = {record.step: record for record in run.records}
    entries, blocks, notes = [], Blocks(), []
    counts = {step: count_rows(path) for step, path in files.items()}
    for step, path in files.items():
        name = f"{run_id}-episodes-{step}"
        blocks[name] = _step_block(run, path, by_step[step])
        count = min(counts[step], MOST_EPISODES)
        entries.append({"step": step, "count": count, "of": counts[step], "block": name})
    every = len(rollout_files(run))
    if every > len(files) or any(count > MOST_EPISODES for count in counts.values()):
        notes.append(
            f"Replays of {len(files)} of {every} steps are in this page, evenly over the run, and of "
            f"each at most {MOST_EPISODES} episodes: every prompt's best paid, then its worst, then "
            "others, fewer where texts are long. All are in the run directory's rollouts folder."
        )
    return entries, blocks, notes


def episode_of(
    row: Row,
    kept: bool | None,
    settings: Mapping[str, Any],
    picture: Callable[[str], str] = lambda name: "",
) -> dict[str, Any]:
    """One trajectory as the page takes it; ``picture`` finds an image's URI by its name."""
    env = settings.get("env", {})
    boards = Boards(row["env"], env if isinstance(env, dict) else {})
    messages = row["messages"]
    shown = messages[-1]["content"] if messages else ""
    turns = []
    for turn in row["turns"]:
        images = seen_of(turn.get("images") or (), picture)
        turns.append(_turn(turn, _view(shown, boards, images)))
        shown = turn["observation"]
    last = [turn.get("shown_image") for turn in row["turns"][-1:]]
    return {
        "label": f"seed {row['seed']}, play {row['luck']}",
        "env": row["env"],
        "seed": row["seed"],
        "luck": row["luck"],
        "reward": short(row["reward"]),
        "solved": row["solved"],
        "stop": row["stop"].replace("_", " "),
        "error": cut(row["error"]),
        "kept": kept,
        "system": "\n".join(cut(one["content"]) for one in messages if one["role"] == "system"),
        "turns": turns,
        "end": _view(shown, boards, seen_of(last, picture)) if turns else None,
    }


def _characters(row: Row) -> int:
    texts = [one["content"] for one in row["messages"]]
    texts += [text for turn in row["turns"] for text in (turn["text"], turn["observation"])]
    return sum(min(len(text), MOST_CHARACTERS) for text in texts)


@lru_cache(maxsize=1024)
def _count(path: Path, modified: int, size: int) -> int:
    del modified  # with the size it names the state of the file
    if size > LARGEST:
        raise RunError(f"{path} cannot be read: it holds more than {LARGEST // 2**20} MB")
    try:
        with open_file(path) as file:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error


@lru_cache(maxsize=2)
def _read(path: Path, modified: int, size: int) -> list[Row]:
    del modified, size
    rows: list[Row] = []
    try:
        lines = read_bytes(path).splitlines()
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        try:
            rows.append(SHOWN.validate_json(line, strict=True))
        except ValueError as error:
            raise RunError(
                f"{path} line {number} is not a trajectory ({first_problem(error)}); remove the file "
                "to report without it"
            ) from error
    return rows


def _image_names(row: Row) -> list[str]:
    """Names of the images that a page shows of an episode."""
    turns = row["turns"]
    shown: list[list[str | None]] = [[*(turn.get("images") or [])[-1:]] for turn in turns]
    shown += [[turn.get("shown_image")] for turn in turns[-1:]]
    return [
        one for part in shown for one in part if isinstance(one, str) and IMAGE_NAME.fullmatch(one)
    ]


def _turn(turn: ShownTurn, seen: dict[str, Any]) -> dict[str, Any]:
    return {
        "seen": seen,
        "reasoning": cut(turn["reasoning"]),
        "actions": [cut(action) for action in turn["actions"]],
        "fates": _fates(turn),
        "valid": turn["valid"],
        "problem": problem_of(turn),
        "reward": short(turn["reward"]),
        "penalty": short(turn["penalty"]),
        "raw": cut(turn["text"]) if _has_more(turn) else "",
    }


def problem_of(turn: ShownTurn) -> str:
    """Why a reply could not be executed as written; empty where it could."""
    unknown = [f"unknown action {one[:40]!r}" for one in turn.get("unknown", ())[:1]]
    return turn["problem"] or "".join(unknown)


def _fates(turn: ShownTurn) -> list[str]:
    """What became of each action of a reply: taken, without effect, unknown, or not taken."""
    flags = turn.get("effective")
    effects = flags if flags is not None else [True] * len(turn["executed"])
    executed = list(zip(turn["executed"], effects, strict=False))
    unknown = list(turn.get("unknown", ()))
    fates = []
    for action in turn["actions"]:
        if unknown and unknown[0] == action:
            unknown.pop(0)
            fates.append("unknown")
        elif executed and executed[0][0] == action:
            fates.append("taken" if executed.pop(0)[1] else "without effect")
        else:
            fates.append("not taken")
    return fates


def _has_more(turn: ShownTurn) -> bool:
    """Whether the reply as sampled holds more than its parts: it was not well-formed, or says more."""
    known = len(turn["reasoning"]) + sum(len(action) + 4 for action in turn["actions"])
    return not turn["valid"] or len(turn["text"]) > known + 60


def _view(text: str, boards: Boards, seen: dict[str, Any]) -> dict[str, Any]:
    """What was shown: words, the board they tell of, and the image, where there are any."""
    return {"text": cut(text), "board": boards.read(text), **seen}


def _step_block(run: Run, path: Path, record: StepRecord) -> Callable[[], Any]:
    def make() -> Any:
        rows, pictures = read_rows(path), Pictures(run.path)
        kept = dict(zip(record.seeds, record.kept, strict=False))
        replies = [(problem_of(turn), turn["text"]) for row in rows for turn in row["turns"]]
        return {
            "replies": len(replies),
            "problems": [
                {**asdict(one), "examples": [cut(text) for text in one.examples]}
                for one in count_problems(replies)
            ],
            "episodes": [
                episode_of(rows[place], kept.get(rows[place]["seed"]), run.settings, pictures.uri)
                for place in choose(rows)
            ],
        }

    return make
