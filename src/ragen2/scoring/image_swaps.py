"""How likely a reasoning stays when its image, or its words, are exchanged for another prompt's.

A prompt X is words T with images I among them. An image is exchanged for one of the same size, which has as
many tokens, so that the words around it stay the tokens that were really used.

Shape letters: N traces, P distinct prompts, S exchanges a trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ragen2.policy import Pair, Scorer
from ragen2.scoring.matrix import distinct_prompts, summed_scores
from ragen2.scoring.traces import Trace
from ragen2.types import FloatArray, Image, IntArray, ScoreMatrix


@dataclass(frozen=True, slots=True, eq=False)
class SwapMatrices:
    """Traces under prompts that differ from their own in all, in the images alone, in the words alone."""

    whole: ScoreMatrix
    image: ScoreMatrix
    text: ScoreMatrix


@dataclass(frozen=True, slots=True, eq=False)
class ImageExchange:
    """Summed log-probs of N traces as they were written, and with another image in place of the last."""

    own_N: FloatArray
    swapped_NS: FloatArray
    length_N: IntArray
    owner_N: IntArray
    """Which distinct last image each trace was written for."""


def alike(traces: Sequence[Trace]) -> list[Trace]:
    """Traces whose images can be exchanged for each other's: the most with the same sizes."""
    sizes = Counter(_sizes(trace) for trace in traces if trace.images)
    if not sizes:
        return []
    ((most, _),) = sizes.most_common(1)
    return [trace for trace in traces if _sizes(trace) == most]


def swap_matrices(
    traces: Sequence[Trace], scorer: Scorer, temperature: float = 1.0
) -> SwapMatrices | None:
    """Score traces that are ``alike`` under every combination; None with fewer than two prompts."""
    prompts, owner_N = distinct_prompts(traces)
    if len(prompts) < 2:
        return None
    ways: list[Callable[[Trace, Trace], Pair]] = [
        lambda one, other: Pair(other.prompt_ids_T, one.reasoning_ids_T, other.images),
        lambda one, other: Pair(one.prompt_ids_T, one.reasoning_ids_T, other.images),
        lambda one, other: Pair(other.prompt_ids_T, one.reasoning_ids_T, one.images),
    ]
    pairs = [way(one, other) for way in ways for one in traces for other in prompts]
    logp = summed_scores(pairs, scorer, temperature).reshape(3, len(traces), len(prompts))
    length_N = _lengths(traces)
    whole, image, text = (ScoreMatrix(each, length_N, owner_N) for each in logp)
    return SwapMatrices(whole, image, text)


def exchange_last_image(
    traces: Sequence[Trace],
    scorer: Scorer,
    temperature: float = 1.0,
    *,
    swaps: int,
    rng: np.random.Generator,
) -> ImageExchange | None:
    """Score traces that are ``alike`` with ``swaps`` other traces' last images; None without any."""
    numbers: dict[Image, int] = {}
    owner_N = np.array([numbers.setdefault(trace.images[-1], len(numbers)) for trace in traces])
    images = list(numbers)
    if len(images) < 2:
        return None
    width = min(swaps, len(images) - 1)
    pairs = [Pair(one.prompt_ids_T, one.reasoning_ids_T, one.images) for one in traces]
    for one, owner in zip(traces, owner_N.tolist(), strict=True):
        others = np.delete(np.arange(len(images)), owner)
        for other in rng.choice(others, size=width, replace=False).tolist():
            swapped = (*one.images[:-1], images[other])
            pairs.append(Pair(one.prompt_ids_T, one.reasoning_ids_T, swapped))
    logp = summed_scores(pairs, scorer, temperature)
    swapped_NS = logp[len(traces) :].reshape(len(traces), width)
    return ImageExchange(logp[: len(traces)], swapped_NS, _lengths(traces), owner_N)


def _sizes(trace: Trace) -> tuple[tuple[int, int], ...]:
    return tuple(image.size for image in trace.images)


def _lengths(traces: Sequence[Trace]) -> IntArray:
    return np.array([len(trace.reasoning_ids_T) for trace in traces], dtype=np.int64)
