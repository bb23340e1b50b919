"""The benchmark's batch: distinct prompts, distinct reasonings, dealt evenly."""

from __future__ import annotations

from collections import Counter

import pytest

from ragen2.backends.scripted import ByteTokenizer
from ragen2.bench.score import expert_traces
from ragen2.envs import FrozenLake


@pytest.mark.parametrize(("prompts", "traces"), [(8, 64), (64, 64), (3, 7)])
def test_traces_are_dealt_evenly_over_distinct_prompts(prompts, traces):
    made = expert_traces(FrozenLake(), ByteTokenizer(), prompts=prompts, traces=traces)
    owners = Counter(trace.prompt_ids_T.tobytes() for trace in made)
    assert len(made) == traces
    assert len(owners) == prompts
    assert max(owners.values()) - min(owners.values()) <= 1
    pairs = {(t.prompt_ids_T.tobytes(), t.reasoning_ids_T.tobytes()) for t in made}
    assert len(pairs) == traces


def test_the_same_sizes_give_the_same_batch():
    one, two = (expert_traces(FrozenLake(), ByteTokenizer(), prompts=4, traces=8) for _ in range(2))
    assert [t.reasoning_ids_T.tolist() for t in one] == [t.reasoning_ids_T.tolist() for t in two]
