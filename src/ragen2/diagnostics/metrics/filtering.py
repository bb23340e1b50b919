"""What a filter does to the training data: which prompts it leaves out, and whether ever more of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ragen2.spread import spread
from ragen2.types import BoolArray, FloatArray, Group, Selection


def filter_metrics(selection: Selection, groups: Sequence[Group]) -> dict[str, float]:
    """Kept share, in all and by difficulty, and how hard the kept prompts are against the others.

    Difficulty is one minus the group's success rate. ``difficulty_gap`` above 0: the kept prompts are
    harder than the batch. Shares of a kind of prompt that the batch does not hold are left out.
    """
    solved_P = np.array([np.mean([one.solved for one in g.trajectories]) for g in groups])
    metrics = {
        "kept": float(selection.kept_P.sum()),
        "kept_ratio": selection.kept_ratio,
        "difficulty": float(1.0 - solved_P.mean()),
    }
    if selection.kept_P.any():
        kept = float(1.0 - solved_P[selection.kept_P].mean())
        metrics["difficulty_gap"] = kept - metrics["difficulty"]
    # Signals such as the mean reward can be negative; shares of them mean nothing.
    if selection.scores_P.sum() > 0.0 and selection.scores_P.min() >= 0.0:
        metrics["kept_signal"] = float(
            selection.scores_P[selection.kept_P].sum() / selection.scores_P.sum()
        )
    for name, rows_P in (
        ("never_solved", solved_P == 0.0),
        ("sometimes_solved", (solved_P > 0.0) & (solved_P < 1.0)),
        ("always_solved", solved_P == 1.0),
    ):
        metrics |= _share(name, rows_P, selection.kept_P)
    metrics |= _inflation(groups, solved_P)
    return {f"filter/{name}": value for name, value in metrics.items()}


def coverage(kept: Sequence[Sequence[bool]], tasks: Sequence[Sequence[int]]) -> float | None:
    """Share of the distinct tasks of these steps that were updated on at least once."""
    seen: set[int] = set()
    used: set[int] = set()
    for kept_P, tasks_P in zip(kept, tasks, strict=True):
        seen.update(tasks_P)
        used.update(task for task, is_kept in zip(tasks_P, kept_P, strict=True) if is_kept)
    return len(used) / len(seen) if seen else None


def _share(name: str, rows_P: BoolArray, kept_P: BoolArray) -> dict[str, float]:
    return {f"kept_ratio_{name}": float(kept_P[rows_P].mean())} if rows_P.any() else {}


def _inflation(groups: Sequence[Group], solved_P: FloatArray) -> dict[str, float]:
    """Share of reward variance that solving or not does not explain.

    A policy can earn its place in the filter by making rewards vary beside the task.
    """
    shares = []
    for group, rate in zip(groups, solved_P, strict=True):
        total = spread(group.rewards_G, "reward_variance", ddof=0)
        if total == 0.0:
            continue
        solved_G = np.array([one.solved for one in group.trajectories])
        within = sum(
            float(group.rewards_G[rows].var()) * float(rows.mean())
            for rows in (solved_G, ~solved_G)
            if rows.any()
        )
        shares.append(within / total if 0.0 < rate < 1.0 else 1.0)
    return {"variance_beside_success": float(np.mean(shares))} if shares else {}
