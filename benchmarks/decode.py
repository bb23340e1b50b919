"""Tokens a second of our sampler for several numbers of sequences, against what the memory allows.

The limit comes from the bandwidth of a plain copy on the same device in the same run: each step of decoding
reads all weights once, and the keys and values of every sequence. Writes results/decode_LABEL.json.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ragen2.backends.agent import quiet_transformers
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.bench.device import copy_bandwidth, machine
from ragen2.bench.rollout import (
    OURS,
    RolloutSize,
    engine_of,
    limit_of,
    open_endless,
    timed_in_turn,
    write_ours,
)
from ragen2.runs.files import write_atomically

RESULTS = Path(__file__).parents[1] / "results"


def point(policy: HFPolicy, size: RolloutSize, bandwidth: float, repeats: int) -> dict[str, Any]:
    """One number of sequences: measured, allowed, and the share that is reached."""
    write = partial(write_ours, policy, tokens=size.new_tokens)
    cost = timed_in_turn(policy, {OURS: write}, size, repeats)[OURS]
    limit = limit_of(policy, size, bandwidth)
    allowed = limit.tokens_per_second
    share = cost.tokens_per_second / allowed
    print(
        f"{size.describe()}: {cost.tokens_per_second:,.0f} tokens/s of {allowed:,.0f}, {share:.1%}"
    )
    return {
        **asdict(size),
        **asdict(cost),
        "weight_bytes": limit.weight_bytes,
        "cache_bytes": limit.cache_bytes,
        "limit_tokens_per_second": allowed,
        "share": share,
    }


def sizes(sequences: list[int], prompt_tokens: int, new_tokens: int) -> list[RolloutSize]:
    """Groups of 16 where there are enough sequences, else one prompt."""
    return [RolloutSize(n, max(1, n // 16), prompt_tokens, new_tokens) for n in sequences]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ragen2-tiny")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 16, 64, 128, 256, 512])
    parser.add_argument("--prompt-tokens", type=int, default=86)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--label", required=True, help="names the machine in the result's file name"
    )
    given = parser.parse_args()
    quiet_transformers()
    policy = open_endless(given.model, given.device, given.dtype)
    bandwidth = copy_bandwidth(policy.device)
    found = {
        "model": given.model,
        "dtype": str(policy.dtype).removeprefix("torch."),
        "engine": engine_of(policy),
        **machine(policy.device),
        "bandwidth": bandwidth,
        "points": [
            point(policy, size, bandwidth, given.repeats)
            for size in sizes(given.sequences, given.prompt_tokens, given.new_tokens)
        ],
    }
    RESULTS.mkdir(exist_ok=True)
    write_atomically(RESULTS / f"decode_{given.label}.json", json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
