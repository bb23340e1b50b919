"""Our environments as an agent loop of verl: one call plays one episode, token for token."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    register,
)

from ragen2.config import RunConfig
from ragen2.integrations.verl.sampling import ServerSampler, chat_tokenizer
from ragen2.integrations.verl.tasks import EVALUATE, PROBE, run_at
from ragen2.integrations.verl.translate import AGENT
from ragen2.rollout import Task, play
from ragen2.runs.trajectories import group_lines
from ragen2.trainer.update import conversation
from ragen2.types import Group

EPISODE = "ragen2_episode"
"""Extra field of a row: the whole episode as a line of a rollout file."""
REASONING = "ragen2_reasoning_spans"
"""Extra field of a row: half-open ranges of its response that are reasoning, one per turn."""
# It would warn before every episode that verl cannot continue such a model's tokens; our loop can.
logging.getLogger("verl.utils.tokenizer.continuous_token_wiring").setLevel(logging.ERROR)
_THREADS = ThreadPoolExecutor(max_workers=1024, thread_name_prefix="episode")
"""Episodes wait in them for tokens; they are made as they are needed."""


@register(AGENT)
class EnvAgentLoop(AgentLoopBase):  # type: ignore[misc]  # verl has no types here
    """Plays the environment of the run that ``ragen2.run`` names."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Play the row's task under the luck of its place in the group.

        How to sample is decided by the run file; ``sampling_params`` holds the same.
        """
        del sampling_params
        config = run_at(str(Path(self.config.ragen2.run) / "run.toml"))
        tokenizer = chat_tokenizer(self.tokenizer, self.config.actor_rollout_ref.model.path)
        loop = asyncio.get_running_loop()
        sampler = ServerSampler(loop, self.server_manager, self.rollout_config, tokenizer)
        group = await loop.run_in_executor(_THREADS, partial(play_row, config, sampler, row))
        return _output(group, sampler.versions, int(row["step"]))


def play_row(config: RunConfig, sampler: Any, row: dict[str, Any]) -> Group:
    """The episode a row asks for, under the same random streams as in our own loop."""
    part, env, rollout = row["part"], config.env, config.rollout
    key: tuple[int | str, ...] = (config.seed, part)
    if part == PROBE:
        env = env.model_copy(update={"max_turns": 1})
    elif part == EVALUATE:
        rollout = rollout.model_copy(update={"temperature": config.evaluation.temperature})
    else:
        key = (*key, int(row["step"]))
    task = Task(int(row["task"]), int(row["session_id"]))
    return play(env, sampler, [[task]], rollout, key=key, prompt=config.prompt)[0]


def _output(group: Group, versions: Sequence[int], step: int) -> AgentLoopOutput:
    episode = group.trajectories[0]
    row = conversation(episode)
    return AgentLoopOutput(
        prompt_ids=episode.turns[0].prompt_ids_T.tolist(),
        response_ids=row.ids,
        response_mask=row.mask,
        response_logprobs=row.logprobs,
        reward_score=episode.reward,
        num_turns=2 * len(episode.turns),
        metrics=AgentLoopMetrics(),
        extra_fields={
            EPISODE: group_lines(group, step)[0],
            REASONING: row.reasoning,
            "turn_scores": [turn.reward + turn.penalty for turn in episode.turns],
            "tool_rewards": [],
            "reward_extra_info": {"solved": float(episode.solved)},
            "min_global_steps": min(versions, default=None),
            "max_global_steps": max(versions, default=None),
        },
    )
