"""Scoring: teacher-forced likelihoods; the only place that knows cross-scoring."""

from ragen2.scoring.matrix import cross_score
from ragen2.scoring.traces import Trace, first_turn_traces

__all__ = ["Trace", "cross_score", "first_turn_traces"]
