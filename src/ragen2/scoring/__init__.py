"""Scoring: teacher-forced likelihoods; the only place that knows cross-scoring."""

from ragen2.scoring.matrix import cross_score, near_duplicates, prompt_words
from ragen2.scoring.traces import Trace, first_turn_traces, trajectory_traces, turn_traces

__all__ = [
    "Trace",
    "cross_score",
    "first_turn_traces",
    "near_duplicates",
    "prompt_words",
    "trajectory_traces",
    "turn_traces",
]
