"""A batch like the one that training cross-scores, made by the scripted expert: for benchmarks."""

from __future__ import annotations

import numpy as np

from ragen2.envs.base import HELD_OUT_SEEDS, Env
from ragen2.policy import ChatTokenizer
from ragen2.rollout.context import system_message, turn_message
from ragen2.rollout.reply import ReplyFormat
from ragen2.scoring import Trace
from ragen2.seeding import stream


def expert_traces(env: Env, tokenizer: ChatTokenizer, *, prompts: int, traces: int) -> list[Trace]:
    """First-turn reasonings of the expert, all different, dealt evenly over distinct prompts."""
    form = ReplyFormat()
    rng = stream("score workload", prompts, traces)
    made: list[Trace] = []
    seen: set[bytes] = set()
    seed = HELD_OUT_SEEDS
    for place in range(prompts):
        wanted = (traces + prompts - 1 - place) // prompts
        while True:
            own = _task_traces(env, tokenizer, form, seed, wanted, rng)
            seed += 1
            if own and own[0].prompt_ids_T.tobytes() not in seen:
                break
        seen.add(own[0].prompt_ids_T.tobytes())
        made += own
    return made


def _task_traces(
    env: Env,
    tokenizer: ChatTokenizer,
    form: ReplyFormat,
    seed: int,
    wanted: int,
    rng: np.random.Generator,
) -> list[Trace]:
    """``wanted`` different reasonings about one task; none when the expert has nothing to say."""
    episode = env.start(seed, 0)
    plan = episode.expert()
    user = turn_message(episode.observation, actions_left=env.max_actions, problem="")
    prompt = tokenizer.start([system_message(env, form), user]) + tokenizer.encode(form.prefill)
    texts: dict[str, None] = {}
    while plan and len(texts) < wanted:
        count = int(rng.integers(1, form.max_actions + 1))
        texts[episode.explain(plan[:count], rng)] = None
    return [
        Trace(np.array(prompt, dtype=np.int64), np.array(tokenizer.encode(text), dtype=np.int64))
        for text in texts
    ]
