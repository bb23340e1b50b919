"""What can be seen without a model: success, turns, lengths, format, repeated wording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ragen2.diagnostics.base import Diagnostic, Evidence, Metrics
from ragen2.types import Finish, Group, StopReason


class Surface(Diagnostic):
    """Success rate and the outward form of replies."""

    kind: Literal["surface"] = "surface"

    def measure(self, evidence: Evidence) -> Metrics:
        """All under ``rollout/``."""
        return {f"rollout/{name}": value for name, value in surface(evidence.groups).items()}


def surface(groups: Sequence[Group]) -> Metrics:
    """Means over trajectories (success, turns, actions) or over turns (lengths, validity)."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    errors = sum(trajectory.stop is StopReason.ENV_ERROR for trajectory in trajectories)
    metrics = {
        "success": float(np.mean([trajectory.solved for trajectory in trajectories])),
        "turns": float(np.mean([len(trajectory.turns) for trajectory in trajectories])),
        "actions": float(
            np.mean([sum(len(t.executed) for t in one.turns) for one in trajectories])
        ),
        "env_errors": float(errors),
    }
    if turns:
        first = [one.turns[0].reply.reasoning for one in trajectories if one.turns]
        metrics |= {
            "format_validity": float(np.mean([turn.reply.valid for turn in turns])),
            "reply_tokens": float(np.mean([len(turn.completion.ids_T) for turn in turns])),
            "reasoning_tokens": float(np.mean([len(turn.reasoning_ids_T) for turn in turns])),
            "cut_ratio": float(
                np.mean([turn.completion.finish is Finish.LENGTH for turn in turns])
            ),
            "distinct_reasoning_ratio": len(set(first)) / len(first),
        }
    return metrics
