"""Episodes as replays: turn by turn what the agent saw, thought, did and was paid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ragen2.reports.data.boards import Boards
from ragen2.reports.data.episodes import (
    MOST_EPISODES,
    Row,
    choose,
    count_rows,
    cut,
    read_rows,
    rollout_files,
    shown_steps,
)
from ragen2.reports.data.matrices import Blocks
from ragen2.reports.data.numbers import short
from ragen2.reports.data.pictures import Pictures, seen_of
from ragen2.reports.load import Run
from ragen2.runs.record import StepRecord


def replays_of(run: Run, run_id: str) -> tuple[list[dict[str, Any]], Blocks, list[str]]:
    """Entries for the page, their blocks, and what was left out."""
    files = shown_steps(run)
    by_step = {record.step: record for record in run.records}
    entries, blocks, notes = [], Blocks(), []
    counts = {step: count_rows(path) for step, path in files.items()}
    for step, path in files.items():
        name = f"{run_id}-episodes-{step}"
        blocks[name] = _maker(run, path, by_step[step])
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
        images = seen_of(turn.get("images", ()), picture)
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


def _turn(turn: Row, seen: dict[str, Any]) -> dict[str, Any]:
    return {
        "seen": seen,
        "reasoning": cut(turn["reasoning"]),
        "actions": [cut(action) for action in turn["actions"]],
        "executed": len(turn["executed"]),
        "valid": turn["valid"],
        "problem": turn["problem"],
        "reward": short(turn["reward"]),
        "penalty": short(turn["penalty"]),
        "raw": cut(turn["text"]) if _adds(turn) else "",
    }


def _adds(turn: Row) -> bool:
    """Whether the reply as sampled holds more than its parts: it was not well-formed, or says more."""
    told = len(turn["reasoning"]) + sum(len(action) + 4 for action in turn["actions"])
    return not turn["valid"] or len(turn["text"]) > told + 60


def _view(text: str, boards: Boards, seen: dict[str, Any]) -> dict[str, Any]:
    """What was shown: words, the board they tell of, and the image, where there are any."""
    return {"text": cut(text), "board": boards.read(text), **seen}


def _maker(run: Run, path: Path, record: StepRecord) -> Callable[[], Any]:
    def make() -> Any:
        rows, pictures = read_rows(path), Pictures(run.path)
        kept = dict(zip(record.seeds, record.kept, strict=False))
        return {
            "episodes": [
                episode_of(rows[place], kept.get(rows[place]["seed"]), run.settings, pictures.uri)
                for place in choose(rows)
            ]
        }

    return make
