"""How likely a text stays when a piece of its context is exchanged for another prompt's.

Of a reply (prompt X, reasoning Z, the tags between, action A), the action is scored after contexts in which
the reasoning or the prompt is exchanged or missing. Of a prompt that is text T with images I among it, the
reasoning is scored after other text or other images. An image is exchanged for one of the same size, which
has as many tokens, so that the pieces that stay are the tokens that were really used.

Shape letters: N traces, P distinct prompts, S exchanges per trace, T tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from ragen2.policy import Pair, Scorer
from ragen2.scoring.matrix import distinct_prompts, summed_scores
from ragen2.scoring.traces import Trace
from ragen2.types import (
    BoolArray,
    FloatArray,
    Group,
    Image,
    IntArray,
    ScoreMatrix,
    Turn,
    context_key,
)


@dataclass(frozen=True, slots=True, eq=False)
class ActionTrace:
    """One turn in its pieces, each as the tokens that were really used."""

    prompt_ids_T: IntArray
    reasoning_ids_T: IntArray
    between_ids_T: IntArray
    """From the end of the reasoning to the action: the closing and opening tags."""
    action_ids_T: IntArray
    images: tuple[Image, ...] = ()
    """Those in the prompt."""


@dataclass(frozen=True, slots=True, eq=False)
class FlowScores:
    """Summed log-probs of N actions as they were written and under each exchange."""

    own_N: FloatArray
    swapped_NS: FloatArray
    """After the reasoning of another prompt."""
    blank_N: FloatArray
    """After no reasoning."""
    redirected_NS: FloatArray
    """After another prompt, with the own reasoning."""
    differs_NS: BoolArray
    """Whether the other reasoning is another text at all."""
    length_N: IntArray
    """Tokens of each action."""
    owner_N: IntArray
    """Which distinct prompt each trace was written for."""


@runtime_checkable
class _Bounded(Protocol):
    max_context: int


def action_traces(
    groups: Sequence[Group], turn: int, limit: int, rng: np.random.Generator
) -> list[ActionTrace]:
    """Turn ``turn`` (from 1) of all trajectories in its pieces; at most ``limit``, even over groups.

    A reply without reasoning or without action has no link between the two and is left out.
    """
    by_group = [
        [
            _pieces(one.turns[turn - 1])
            for one in group.trajectories
            if len(one.turns) >= turn and _has_both(one.turns[turn - 1])
        ]
        for group in groups
    ]
    for members in by_group:
        rng.shuffle(members)
    rounds = range(max((len(members) for members in by_group), default=0))
    chosen = [members[r] for r in rounds for members in by_group if r < len(members)]
    return chosen[:limit]


def score_flow(
    traces: Sequence[ActionTrace],
    scorer: Scorer,
    temperature: float = 1.0,
    *,
    swaps: int,
    rng: np.random.Generator,
) -> FlowScores | None:
    """Score every action under its own context and each exchange; None without a prompt to swap with.

    The ``swaps`` partners of a trace are drawn without replacement from the traces of other prompts;
    fewer where there are fewer. Of another reasoning that would overflow the scorer's context, the end
    is taken that fits: never less than the own one's length.
    """
    owner_N = owners(traces)
    partner_NS = _partners(owner_N, swaps, rng)
    if partner_NS.size == 0:
        return None
    limit = scorer.max_context if isinstance(scorer, _Bounded) else None
    contexts = _Contexts(traces, partner_NS, limit)
    logp = summed_scores(
        [*contexts.own, *contexts.swapped, *contexts.blank, *contexts.redirected],
        scorer,
        temperature,
    )
    N, S = partner_NS.shape
    own_N, swapped, blank_N, redirected = np.split(logp, np.cumsum([N, N * S, N]))
    return FlowScores(
        own_N=own_N,
        swapped_NS=swapped.reshape(N, S),
        blank_N=blank_N,
        redirected_NS=redirected.reshape(N, S),
        differs_NS=_differs(traces, partner_NS),
        length_N=np.array([len(trace.action_ids_T) for trace in traces], dtype=np.int64),
        owner_N=owner_N,
    )


def owners(traces: Sequence[ActionTrace]) -> IntArray:
    """Number of each trace's prompt; prompts with equal tokens and images are one."""
    columns: dict[bytes, int] = {}
    keys = [context_key(trace.prompt_ids_T, trace.images) for trace in traces]
    return np.array([columns.setdefault(key, len(columns)) for key in keys], dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class SwapMatrices:
    """Traces under prompts that differ from their own in all, in the images alone, in the text alone."""

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
    exchanges: list[Callable[[Trace, Trace], Pair]] = [
        lambda one, other: Pair(other.prompt_ids_T, one.reasoning_ids_T, other.images),
        lambda one, other: Pair(one.prompt_ids_T, one.reasoning_ids_T, other.images),
        lambda one, other: Pair(other.prompt_ids_T, one.reasoning_ids_T, one.images),
    ]
    pairs = [exchange(one, other) for exchange in exchanges for one in traces for other in prompts]
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


class _Contexts:
    """The pairs to score, exchange by exchange, trace by trace."""

    def __init__(
        self, traces: Sequence[ActionTrace], partner_NS: IntArray, limit: int | None
    ) -> None:
        partners = [(traces[i], traces[int(j)]) for i, row in enumerate(partner_NS) for j in row]
        self.own = [_pair(one, one, one.reasoning_ids_T) for one in traces]
        self.blank = [_pair(one, one) for one in traces]
        self.swapped = [_pair(one, one, _that_fits(one, other, limit)) for one, other in partners]
        self.redirected = [_pair(one, other, one.reasoning_ids_T) for one, other in partners]


def _pair(trace: ActionTrace, prompt: ActionTrace, *reasoning: IntArray) -> Pair:
    """The action of ``trace`` after the prompt of ``prompt`` and a reasoning, if one is given."""
    context = np.concatenate([prompt.prompt_ids_T, *reasoning, trace.between_ids_T])
    return Pair(context, trace.action_ids_T, prompt.images)


def _that_fits(trace: ActionTrace, other: ActionTrace, limit: int | None) -> IntArray:
    if limit is None:
        return other.reasoning_ids_T
    taken = len(trace.prompt_ids_T) + len(trace.between_ids_T) + len(trace.action_ids_T)
    most = max(limit - taken, len(trace.reasoning_ids_T))
    return other.reasoning_ids_T[-most:]


def _partners(owner_N: IntArray, swaps: int, rng: np.random.Generator) -> IntArray:
    """For each trace the same number of traces of other prompts; no columns when one has none."""
    others = [np.flatnonzero(owner_N != owner) for owner in owner_N]
    width = min([swaps, *(len(one) for one in others)])
    drawn = [rng.choice(one, size=width, replace=False) for one in others]
    return np.array(drawn, dtype=np.int64).reshape(len(owner_N), width)


def _differs(traces: Sequence[ActionTrace], partner_NS: IntArray) -> BoolArray:
    texts = [trace.reasoning_ids_T.tobytes() for trace in traces]
    return np.array([[texts[i] != texts[j] for j in row] for i, row in enumerate(partner_NS)])


def _has_both(turn: Turn) -> bool:
    return len(turn.reasoning_ids_T) > 0 and turn.action_span[0] < turn.action_span[1]


def _pieces(turn: Turn) -> ActionTrace:
    ids_T = turn.completion.ids_T
    start, end = turn.reasoning_span
    return ActionTrace(
        prompt_ids_T=np.concatenate([turn.prompt_ids_T, ids_T[:start]]),
        reasoning_ids_T=turn.reasoning_ids_T,
        between_ids_T=ids_T[end : turn.action_span[0]],
        action_ids_T=turn.action_ids_T,
        images=turn.images,
    )


def _sizes(trace: Trace) -> tuple[tuple[int, int], ...]:
    return tuple(image.size for image in trace.images)


def _lengths(traces: Sequence[Trace]) -> IntArray:
    return np.array([len(trace.reasoning_ids_T) for trace in traces], dtype=np.int64)
