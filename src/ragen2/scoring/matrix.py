"""Cross-scoring: the log-prob of every trace under every distinct prompt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ragen2.policy import Pair, Scorer
from ragen2.scoring.traces import Trace
from ragen2.types import ScoreMatrix


def cross_score(
    traces: Sequence[Trace], scorer: Scorer, temperature: float = 1.0
) -> ScoreMatrix | None:
    """Score N traces under their P distinct prompts; None when fewer than two prompts are distinct.

    Prompts with equal tokens are one column, so that a trace is never asked to tell them apart.
    """
    columns: dict[bytes, int] = {}
    owner_N = np.array(
        [columns.setdefault(trace.prompt_ids_T.tobytes(), len(columns)) for trace in traces],
        dtype=np.int64,
    )
    if len(columns) < 2:
        return None
    prompts = [np.frombuffer(key, dtype=np.int64) for key in columns]
    pairs = [Pair(prompt, trace.reasoning_ids_T) for trace in traces for prompt in prompts]
    scores = [values.sum() for values in scorer.score(pairs, temperature)]
    return ScoreMatrix(
        logp_NP=np.array(scores).reshape(len(traces), len(prompts)),
        length_N=np.array([len(trace.reasoning_ids_T) for trace in traces], dtype=np.int64),
        owner_N=owner_N,
    )
