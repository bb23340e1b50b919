"""Reward variance prompt by prompt: what the filter saw and kept, and why flat prompts are flat."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from ragen2.diagnostics.base import Played, attempts_of
from ragen2.diagnostics.metrics.triage import Label, Triaged, triage
from ragen2.errors import RunError
from ragen2.reading import read_bytes
from ragen2.reports.data.episodes import cut, rollout_files
from ragen2.reports.data.numbers import short, shorts, spread_over
from ragen2.reports.load import Run
from ragen2.runs.trajectories import groups_of

MOST_PROMPTS = 20_000
"""Prompts of all steps together whose numbers are in the page."""
TRIAGED_STEPS = 4
"""Newest steps whose prompts are labelled."""
MOST_EXAMPLES = 3
"""Prompts shown for each label of a step."""
FROM_ROLLOUTS = (
    "Labels here come from the saved rollouts alone; the shares in the curves also rest on replays in "
    "the environment, so they may differ."
)
Labelled = tuple[int, Triaged]


def reward_of(run: Run) -> dict[str, Any] | None:
    """The histogram's numbers and the triage; None when no step has prompts."""
    if run.audit is not None:
        return None
    scored = [record for record in run.records if record.scores]
    if not scored:
        return None
    widest = max(len(record.scores) for record in scored)
    shown = spread_over(scored, max(2, MOST_PROMPTS // widest))
    labelled = {
        step: _triaged_file(path)
        for step, path in list(rollout_files(run).items())[-TRIAGED_STEPS:]
    }
    settings = run.settings.get("filter", {})
    signal = settings.get("signal", "score") if isinstance(settings, dict) else "score"
    notes = [f"{len(shown)} of {len(scored)} steps are in this page."]
    return {
        "signal": str(signal).replace("_", " "),
        "steps": [
            {
                "step": record.step,
                "scores": shorts(record.scores),
                "kept": record.kept,
                "seeds": record.seeds,
                "labels": _labels(labelled.get(record.step, ()), record.seeds),
            }
            for record in shown
        ],
        "triage": [
            example
            for step, found in sorted(labelled.items(), reverse=True)
            for example in _examples(step, found)
        ],
        "note": " ".join((notes if len(shown) < len(scored) else []) + [FROM_ROLLOUTS]),
    }


def _triaged_file(path: Path) -> tuple[Labelled, ...]:
    seen = path.stat()
    return _triaged(path, seen.st_mtime_ns, seen.st_size)


@lru_cache(maxsize=64)
def _triaged(path: Path, modified: int, size: int) -> tuple[Labelled, ...]:
    del modified, size  # they name the state of the file
    try:
        groups = groups_of(read_bytes(path).splitlines())
    except RunError as error:
        raise RunError(f"{path} {error}") from error
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    found = triage([attempts_of(group) for group in groups])
    return tuple(zip((group.prompt.seed for group in groups), found, strict=True))


def _labels(found: tuple[Labelled, ...], seeds: list[int]) -> list[str]:
    by_seed = {seed: one.label.value for seed, one in found}
    labels = [by_seed.get(seed, "") for seed in seeds]
    return labels if all(labels) else []


def _examples(step: int, found: tuple[Labelled, ...]) -> list[dict[str, Any]]:
    """Of each label but ``live`` some prompts, the worrying labels first."""
    order = (Label.REWARD_BLIND, Label.TOO_HARD, Label.TOO_EASY, Label.UNCLEAR)
    return [
        {
            "step": step,
            "label": label.value,
            "name": one.name,
            "reason": one.reason,
            "examples": [cut(_attempt(who, play)) for who, play in one.examples],
        }
        for label in order
        for one in [one for _, one in found if one.label is label][:MOST_EXAMPLES]
    ]


def _attempt(who: str, play: Played) -> str:
    ended = "" if play.solved is None else (", solved" if play.solved else ", not solved")
    actions = " || ".join(play.actions) or "nothing"
    return f"{who}: {actions} -> {short(play.reward):g}{ended}"
