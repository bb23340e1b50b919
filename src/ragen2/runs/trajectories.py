"""Trajectories as JSON lines, with everything needed to replay, audit or re-score them."""

from __future__ import annotations

import json
from typing import Any

from ragen2.types import Group, Trajectory, Turn


def group_lines(group: Group, step: int) -> list[str]:
    """One line a trajectory."""
    return [json.dumps(_trajectory(one, step), ensure_ascii=False) for one in group.trajectories]


def _trajectory(trajectory: Trajectory, step: int) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "env": trajectory.prompt.env,
        "seed": trajectory.prompt.seed,
        "luck": trajectory.luck,
        "step": step,
        "messages": [
            {"role": message.role, "content": message.content}
            for message in trajectory.prompt.messages
        ],
        "turns": [_turn(turn) for turn in trajectory.turns],
        "reward": trajectory.reward,
        "solved": trajectory.solved,
        "stop": trajectory.stop.value,
        "error": trajectory.error,
    }


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "prompt_ids": turn.prompt_ids_T.tolist(),
        "ids": turn.completion.ids_T.tolist(),
        "logprobs": [round(value, 6) for value in turn.completion.logprobs_T.tolist()],
        "text": turn.completion.text,
        "finish": turn.completion.finish.value,
        "reasoning": turn.reply.reasoning,
        "reasoning_span": list(turn.reasoning_span),
        "actions": list(turn.reply.actions),
        "executed": list(turn.executed),
        "valid": turn.reply.valid,
        "problem": turn.reply.problem,
        "observation": turn.observation,
        "reward": turn.reward,
        "penalty": turn.penalty,
    }
