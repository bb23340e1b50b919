"""The collapse diagnostic: MI proxies, retrieval and entropies of first-turn reasoning."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ragen2.diagnostics.base import Diagnostic, Evidence, Metrics
from ragen2.diagnostics.mutual_information import measure

PREFIX = "collapse/first_turn/"


class Collapse(Diagnostic):
    """Does reasoning still depend on the prompt?"""

    kind: Literal["collapse"] = "collapse"
    needs_scores: ClassVar[bool] = True

    max_traces: int = Field(64, ge=2, description="traces cross-scored at most, even over prompts")
    resamples: int = Field(200, ge=100, description="bootstrap and permutation draws")
    interval: Literal["batch", "population"] = Field(
        "batch", description="what intervals are for: these prompts, or the prompts they come from"
    )

    def measure(self, evidence: Evidence) -> Metrics:
        """All proxies, under ``collapse/first_turn/``."""
        if evidence.scores is None:
            raise ValueError("the collapse diagnostic was called without cross-scores")
        scores = evidence.scores
        found = measure(
            scores.logp_NP,
            scores.length_N,
            scores.owner_N,
            interval=self.interval,
            resamples=self.resamples,
            ema=evidence.ema,
            seed=evidence.step,
        )
        return {f"{PREFIX}{name}": value for name, value in found.items()}
