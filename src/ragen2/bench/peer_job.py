"""A single-turn job that another framework's trainer can do as well: for the benchmark of the step.

Both sides get the same prompts, write the same number of tokens, pay the same rewards and make one optimiser
step a batch, so that seconds a trained token can be compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ragen2.bench.step import SamplerOver
from ragen2.config import RunConfig, load_run
from ragen2.rollout import Task, play
from ragen2.trainer.batch import play_batch, training_tasks
from ragen2.trainer.update import update
from ragen2.types import Completion, Finish

if TYPE_CHECKING:
    from pathlib import Path

    from ragen2.policy import Learner, Request, Sampler, SamplingParams
    from ragen2.types import Turn

SAME = (
    "env.max_turns=1",
    "rollout.resample_rounds=0",
    "filter.kind=keep_all",
    "learner.epochs=1",
    "learner.minibatches=1",
    "algorithm.kind=grpo",
    "algorithm.kl_coefficient=0.0",
    "diagnostics=[]",
)
"""What makes a run file a job that both can do."""


def peer_config(run_file: Path | None, overrides: Sequence[str]) -> RunConfig:
    """The run file with one turn, one optimiser step, plain GRPO, no filter and no diagnostics."""
    return load_run(run_file, [*overrides, *SAME])


def our_step(config: RunConfig, sampler: Sampler, learner: Learner, step: int) -> int:
    """One step of our own; the number of tokens trained on."""
    batch = play_batch(config, EndlessSampler(sampler), step)
    done = update(config, learner, batch.selection, batch.groups, step)
    return done.num_tokens if done is not None else 0


def prompts_of(config: RunConfig, sampler: Sampler, step: int) -> dict[int, list[int]]:
    """The seed of every task of a step, with the tokens of its prompt as our rollout makes them."""
    seeds = [group[0].seed for group in training_tasks(config, step)]
    turns = [turn for turn, _ in _played(config, sampler, seeds, [[]] * len(seeds))]
    return {seed: turn.prompt_ids_T.tolist() for seed, turn in zip(seeds, turns, strict=True)}


def rewards_of(
    config: RunConfig,
    sampler: Sampler,
    seeds: Sequence[int],
    replies: Sequence[Sequence[int]],
) -> list[float]:
    """What our environment pays for replies that were written elsewhere, one task seed each."""
    return [reward for _, reward in _played(config, sampler, seeds, replies)]


def _played(
    config: RunConfig, sampler: Sampler, seeds: Sequence[int], replies: Sequence[Sequence[int]]
) -> list[tuple[Turn, float]]:
    """The only turn of each task with its reply, and what the task paid; luck counts the tasks."""
    groups = play(
        config.env,
        _Written(sampler, replies),
        [[Task(seed, luck)] for luck, seed in enumerate(seeds)],
        config.rollout,
        key=(config.seed, "peer"),
    )
    return [(group.trajectories[0].turns[0], group.trajectories[0].reward) for group in groups]


class EndlessSampler(SamplerOver):
    """A sampler that no stop string ends: every completion has the length that was asked for."""

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """As asked, but for the stop strings."""
        return self.sampler.sample(requests, dataclasses.replace(params, stop=()))


class _Written(SamplerOver):
    """A sampler that hands out replies already written."""

    def __init__(self, sampler: Sampler, replies: Sequence[Sequence[int]]) -> None:
        super().__init__(sampler)
        self._replies = replies

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Requests are matched by the luck in their key, which counts the tasks."""
        del params
        return [self._completion(int(request.key[-2])) for request in requests]

    def _completion(self, task: int) -> Completion:
        ids_T = np.array(self._replies[task], dtype=np.int64)
        return Completion(
            ids_T, np.zeros(len(ids_T)), self.tokenizer.decode(ids_T.tolist()), Finish.LENGTH
        )
