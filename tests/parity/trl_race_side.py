"""Runs in TRL's own venv, with our package on the path: a real GRPOTrainer races a step that does nothing."""

import json
import sys

import torch

from ragen2.backends.agent import open_model, quiet_transformers
from ragen2.bench.peer_job import PeerJob
from ragen2.bench.rollout import endless_policy
from ragen2.bench.trl import race

PROMPTS, GROUP, TOKENS, STEPS = 2, 4, 6, 3


def main(mode: str) -> None:
    quiet_transformers()
    torch.set_num_threads(1)
    policy = endless_policy(*open_model("ragen2-tiny", device="cpu"))
    before = {name: value.clone() for name, value in policy.network.state_dict().items()}
    asked: list[list[int]] = []
    steps: list[int] = []

    def reward(seeds, replies):
        asked.append(list(seeds))
        return [float(sum(ids) % 7) for ids in replies]

    def our_step(step: int) -> int:
        steps.append(step)
        return 5

    job = PeerJob(
        prompts=[
            (seed, policy.tokenizer.encode(f"go {seed} down")) for seed in range(PROMPTS * STEPS)
        ],
        reward=reward,
        prompts_per_step=PROMPTS,
        group_size=GROUP,
        max_tokens=TOKENS,
        temperature=1.0,
        lr=1e-3,
    )
    laps = race(policy, job, mode, our_step=our_step)
    after = policy.network.state_dict()
    told = {
        "seeds": asked,
        "steps": steps,
        "theirs": [lap.tokens for lap in laps.theirs],
        "ours": [lap.tokens for lap in laps.ours],
        "seconds": [lap.seconds for lap in (*laps.ours, *laps.theirs)],
        "is_untouched": all(torch.equal(before[name], after[name]) for name in before),
    }
    print(json.dumps(told))  # noqa: T201 - the answer to the test


if __name__ == "__main__":
    main(sys.argv[1])
