"""Vision: does reasoning depend on the image, or only sound as if it did?

With Z a reasoning trace, I the images of its prompt, T the text, and a prime for another prompt's (means over
the primed are over all prompts, the own one too; log-probs are per token):

    whole_mi  = mean of log p(Z|I,T) - log mean p(Z|I',T')    all that the reasoning takes from its prompt
    image_mi  = mean of log p(Z|I,T) - log mean p(Z|I',T)     the image's part: only it is exchanged
    text_mi   = mean of log p(Z|I,T) - log mean p(Z|I,T')     the text's part
    shared_mi = whole_mi - image_mi - text_mi                 above 0 where one makes up for the other,
                                                              below 0 where the reasoning needs both

    grounding = how often the own image makes Z likelier than another one: 1/2 is blind
    drop      = mean of log p(Z|I,T) - log p(Z|I',T)

Agents that write fluently about an image they no longer use have image_mi near 0 and grounding near 1/2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from ragen2.diagnostics.base import Diagnostic, Evidence, Measured, Metrics
from ragen2.diagnostics.metrics.flow import TurnScope, mean_interval
from ragen2.diagnostics.metrics.mutual_information import measure
from ragen2.diagnostics.statistics.resampling import (
    stratified_spread,
    student_quantile,
    wilson_interval,
)
from ragen2.scoring import Trace, turn_traces
from ragen2.scoring.exchanges import (
    ImageExchange,
    SwapMatrices,
    alike,
    exchange_last_image,
    swap_matrices,
)
from ragen2.scoring.traces import of_first_prompts
from ragen2.seeding import stream
from ragen2.types import FloatArray, Group

FEWEST_TRACES = 8
"""Reasoning traces a turn position needs to be measured."""
TIE = 1e-6
"""Nats per token within which two scores are the same."""


class Vision(Diagnostic):
    """Does reasoning depend on the image? Silent where none is shown."""

    kind: Literal["vision"] = "vision"
    needs_scorer: ClassVar[bool] = True

    every: int = Field(10, ge=1, description="measured at steps that are multiples of this")
    max_prompts: int = Field(
        8, ge=2, description="first prompts whose images and texts are exchanged with each other"
    )
    max_traces: int = Field(
        32, ge=FEWEST_TRACES, description="reasoning traces scored at most, in each turn position"
    )
    swaps: int = Field(
        2, ge=1, le=10_000, description="other images that each reasoning trace is scored with"
    )
    resamples: int = Field(200, ge=100, le=1_000_000, description="bootstrap draws")

    def measure(self, evidence: Evidence) -> Measured:
        """All under ``vision/<turn>/``; the split of the information for the first turn only."""
        if evidence.scorer is None:
            raise ValueError("the vision diagnostic was called without a scorer")
        whole = Measured()
        for scope in self._scopes(evidence):
            if scope.problem:
                whole.absent[f"vision/{scope.name}"] = scope.problem
                continue
            found = self._grounding(scope, evidence)
            if scope.turn == 1:
                found |= self._split(scope, evidence)
            whole |= {f"vision/{scope.name}/{name}": value for name, value in found.items()}
        return whole

    def _scopes(self, evidence: Evidence) -> Iterator[TurnScope[Trace]]:
        """Turn by turn, if images are shown at all; the same evidence always gives the same traces."""
        if not _shows_images(evidence.groups):
            return
        longest = max(len(one.turns) for g in evidence.groups for one in g.trajectories)
        for number in range(1, max(longest, 1) + 1):
            rng = stream(evidence.seed, "vision traces", evidence.step, number)
            drawn = alike(turn_traces(evidence.groups, number, None, rng))
            if number == 1:
                drawn = of_first_prompts(drawn, self.max_prompts)
            traces = drawn[: self.max_traces]
            name = "first_turn" if number == 1 else f"turn_{number}"
            yield TurnScope(name, number, traces, _problem(traces))

    def _grounding(self, scope: TurnScope[Trace], evidence: Evidence) -> Metrics:
        assert evidence.scorer is not None  # noqa: S101 - measure checked it
        rng = stream(evidence.seed, "vision", evidence.step, scope.turn)
        found = exchange_last_image(
            scope.traces, evidence.scorer, evidence.temperature, swaps=self.swaps, rng=rng
        )
        assert found is not None  # noqa: S101 - a scope without a problem has two images
        return measure_grounding(found, self.resamples, rng)

    def _split(self, scope: TurnScope[Trace], evidence: Evidence) -> Metrics:
        assert evidence.scorer is not None  # noqa: S101 - measure checked it
        found = swap_matrices(scope.traces, evidence.scorer, evidence.temperature)
        return {} if found is None else measure_split(found, self.resamples, evidence.step)


def measure_split(matrices: SwapMatrices, resamples: int, seed: int) -> Metrics:
    """What the prompt, its images and its text each say about the reasoning, in nats per token."""
    metrics: Metrics = {}
    parts = {"whole": matrices.whole, "image": matrices.image, "text": matrices.text}
    for name, matrix in parts.items():
        found = measure(
            matrix.logp_NP, matrix.length_N, matrix.owner_N, resamples=resamples, seed=seed
        )
        for ending in ("", "_low", "_high"):
            if f"mi_estimate{ending}" in found:
                metrics[f"{name}_mi{ending}"] = found[f"mi_estimate{ending}"]
        if name == "image":
            metrics |= {
                key: value
                for key, value in found.items()
                if key.startswith("retrieval_accuracy") and "@" not in key
            }
            metrics["retrieval_chance"] = found["retrieval_chance"]
    metrics["shared_mi"] = metrics["whole_mi"] - metrics["image_mi"] - metrics["text_mi"]
    metrics["num_prompts"] = float(matrices.whole.logp_NP.shape[1])
    return metrics


def measure_grounding(scores: ImageExchange, resamples: int, rng: np.random.Generator) -> Metrics:
    """How much, and how surely, the own image makes the reasoning likelier than another one."""
    gap_NS = (scores.own_N[:, None] - scores.swapped_NS) / scores.length_N[:, None]
    wins_NS = np.where(np.abs(gap_NS) <= TIE, 0.5, gap_NS > 0.0)
    drop_N, share_N = gap_NS.mean(1), wins_NS.mean(1)
    low, high = mean_interval(drop_N, scores.owner_N, resamples, rng)
    share = float(share_N.mean())
    share_low, share_high = _share_interval(share_N, scores, resamples, rng)
    return {
        "grounding": share,
        "grounding_low": share_low,
        "grounding_high": share_high,
        "drop": float(drop_N.mean()),
        "drop_low": low,
        "drop_high": high,
        "num_traces": float(len(share_N)),
    }


def _share_interval(
    share_N: FloatArray, scores: ImageExchange, resamples: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Wilson's, with the error that traces of one image show among each other."""
    spread = stratified_spread(share_N[:, None], scores.owner_N, resamples, rng)
    if spread is None:  # every image has one trace
        one_sample = np.zeros_like(scores.owner_N)
        spread = stratified_spread(share_N[:, None], one_sample, resamples, rng)
    assert spread is not None  # noqa: S101 - a scope has several traces
    count = len(share_N)
    return wilson_interval(
        float(share_N.mean()),
        float(spread.error_M[0]),
        student_quantile(float(spread.freedom_M[0])),
        fewest=count,
        most=count * scores.swapped_NS.shape[1],
    )


def _shows_images(groups: Sequence[Group]) -> bool:
    return any(
        any(message.images for message in group.prompt.messages)
        or any(turn.images for one in group.trajectories for turn in one.turns)
        for group in groups
    )


def _problem(traces: list[Trace]) -> str:
    if len(traces) < FEWEST_TRACES:
        return f"{len(traces)} reasoning traces with images of one size, {FEWEST_TRACES} are needed"
    images = len({trace.images[-1] for trace in traces})
    return "" if images > 1 else "all reasoning traces are about one image, 2 are needed"
