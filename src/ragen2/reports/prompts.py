"""On which prompts reasoning is not grounded: read off the score matrices of a run's present period."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ragen2.diagnostics.judging.periods import periods
from ragen2.diagnostics.judging.regime import HALF, Regime
from ragen2.diagnostics.metrics.grounding import grounded_by_prompt
from ragen2.reports.load import Run
from ragen2.runs.scores import list_scores, read_scores
from ragen2.types import ScoreMatrix

MOST = 5
"""Prompts that are named."""
MOST_STEPS = 20
"""Newest steps that are looked at."""


@dataclass(frozen=True, slots=True)
class UngroundedPrompt:
    """A prompt most of whose traces ignore it."""

    label: str
    """Its name in the newest matrix that has it."""
    text: str
    step: int
    """Of that matrix."""
    scope: str
    share: float
    """Of its traces that are grounded."""
    num_traces: int


def ungrounded_prompts(run: Run) -> tuple[UngroundedPrompt, ...]:
    """Those with the least grounded reasoning; none where it is all grounded, none at all, or not known."""
    found = periods(run.records, run.main_scope)
    if not found or found[-1].regime not in {Regime.PARTIAL, Regime.WEAK}:
        return ()
    files = [file for step, file in list_scores(run.path) if step >= found[-1].first_step]
    seen: dict[str, UngroundedPrompt] = {}
    for file in files[-MOST_STEPS:]:
        record = read_scores(file)
        for scores in record.scopes:
            if scores.name != run.main_scope or len(scores.prompts) < 2:
                continue
            owner_N = np.array(scores.owner)
            logp_NP = np.array(scores.logp, dtype=np.float64)
            share_P = grounded_by_prompt(
                ScoreMatrix(logp_NP, np.array(scores.length), owner_N),
                found[-1].share,
                np.array(found[-1].strengths),
            )
            for column, traces in zip(*np.unique(owner_N, return_counts=True), strict=True):
                text = scores.prompts[column]
                before = seen.get(text)
                total, share = int(traces), float(share_P[column])
                if before is not None:
                    total += before.num_traces
                    share = (share * traces + before.share * before.num_traces) / total
                label = scores.prompt_labels[column]
                seen[text] = UngroundedPrompt(label, text, record.step, scores.name, share, total)
    below = [one for one in seen.values() if one.share < HALF]
    return tuple(sorted(below, key=lambda one: (one.share, -one.num_traces))[:MOST])
