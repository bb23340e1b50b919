"""Trajectories -> samples: which tokens are trained on, and with what advantage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ragen2.algorithms.base import Algorithm
from ragen2.types import Group, Sample, Trajectory, Turn


def make_samples(groups: Sequence[Group], algorithm: Algorithm, temperature: float) -> list[Sample]:
    """Samples of all trajectories, each token with its trajectory's advantage.

    A trajectory whose prompts each continue the one before (full history) is one sample; where the
    history is cut, each uncut stretch is a sample of its own.
    """
    samples: list[Sample] = []
    for group in groups:
        advantages_G = algorithm.advantages(group)
        for trajectory, advantage in zip(group.trajectories, advantages_G, strict=True):
            samples.extend(
                _sample(turns, float(advantage), temperature) for turns in stretches(trajectory)
            )
    return samples


def stretches(trajectory: Trajectory) -> list[list[Turn]]:
    """Turns grouped so that within a group each prompt starts with all tokens of the turn before."""
    found: list[list[Turn]] = []
    for turn in trajectory.turns:
        if found and _continues(found[-1][-1], turn):
            found[-1].append(turn)
        else:
            found.append([turn])
    return found


def _continues(before: Turn, turn: Turn) -> bool:
    prompt, completion = before.prompt_ids_T, before.completion.ids_T
    length = len(prompt) + len(completion)
    return len(turn.prompt_ids_T) >= length and np.array_equal(
        turn.prompt_ids_T[:length], np.concatenate([prompt, completion])
    )


def _sample(turns: Sequence[Turn], advantage: float, temperature: float) -> Sample:
    last = turns[-1]
    ids_T = np.concatenate([last.prompt_ids_T, last.completion.ids_T])
    loss_mask_T = np.zeros(len(ids_T), dtype=np.bool_)
    old_logprobs_T = np.zeros(len(ids_T))
    for turn in turns:
        written = slice(len(turn.prompt_ids_T), len(turn.prompt_ids_T) + len(turn.completion.ids_T))
        loss_mask_T[written] = True
        old_logprobs_T[written] = turn.completion.logprobs_T
    return Sample(
        ids_T, loss_mask_T, old_logprobs_T, np.where(loss_mask_T, advantage, 0.0), temperature
    )
