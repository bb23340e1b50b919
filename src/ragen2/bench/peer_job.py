"""A single-turn job that another framework's trainer can do as well: for the benchmark of the step.

Both sides get the same prompts, write the same number of tokens, pay the same rewards and make one optimiser
step per batch, so that seconds per trained token can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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

    from ragen2.consent import PluginRule
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


def peer_config(
    run_file: Path | None, overrides: Sequence[str], *, plugins: PluginRule = "known"
) -> RunConfig:
    """The run file with one turn, one optimiser step, plain GRPO, no filter and no diagnostics."""
    return load_run(run_file, [*overrides, *SAME], plugins=plugins)


@dataclass(frozen=True, slots=True)
class PeerJob:
    """What TRL is asked to do. ``reward`` takes seeds and written ids, one of each per completion."""

    prompts: Sequence[tuple[int, Sequence[int]]]
    """Seed and prompt ids of every task, all steps one after another."""
    reward: Callable[[Sequence[int], Sequence[Sequence[int]]], list[float]]
    prompts_per_step: int
    group_size: int
    max_tokens: int
    temperature: float
    lr: float

    @property
    def prompt_tokens(self) -> float:
        """Mean length of the prompts."""
        return sum(len(ids) for _, ids in self.prompts) / len(self.prompts)

    @property
    def steps(self) -> int:
        """Steps that the prompts suffice for."""
        return len(self.prompts) // self.prompts_per_step


def peer_job(config: RunConfig, sampler: Sampler, steps: int) -> PeerJob:
    """The tasks of the first ``steps`` steps of our own run, as another trainer takes them."""
    return PeerJob(
        prompts=[
            task
            for step in range(1, steps + 1)
            for task in prompts_of(config, sampler, step).items()
        ],
        reward=lambda seeds, replies: rewards_of(config, sampler, seeds, replies),
        prompts_per_step=config.rollout.prompts,
        group_size=config.rollout.group_size,
        max_tokens=config.rollout.reply_tokens(config.env),
        temperature=config.rollout.temperature,
        lr=config.learner.lr,
    )


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
        prompt=config.prompt,
    )
    return [(group.trajectories[0].turns[0], group.trajectories[0].reward) for group in groups]


class EndlessSampler(SamplerOver):
    """A sampler that no stop string ends: every completion has the length that was asked for."""

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """As asked, but for the stop strings."""
        return self.sampler.sample(requests, replace(params, stop=()))


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
