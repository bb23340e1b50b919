"""Synthetic sources of reasoning whose information about the prompt is known exactly.

A source has finitely many prompts X and one tabular autoregressive policy for each. Every trace Z it
can write is listed, so I(X;Z), H(Z|X), H(Z) and the best possible retrieval are sums, not estimates.
Tests and benchmarks hold the estimators against them.

Shape letters: S traces that can be written, P prompts, N sampled traces, T positions, V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ragen2.errors import ConfigError
from ragen2.seeding import stream
from ragen2.types import FloatArray, IntArray, ScoreMatrix

NEVER = -1000.0
"""Log-prob written for a trace that a prompt cannot give: ``exp`` of it is exactly 0."""
MOST_TRACES = 100_000
"""Traces listed at most; beyond that the exact sums would be slow."""
END = 0
"""The token that ends a trace in a source with ``ends``."""
NOTHING = -1
"""Fills the positions behind the end of a short trace."""


@dataclass(frozen=True, eq=False)
class TabularSource:
    """All traces of a source with their log-probs under each prompt; prompts are equally likely."""

    logp_SP: FloatArray
    """Summed log-prob of each trace under each prompt; ``exp`` of a column sums to 1."""
    length_S: IntArray
    """Tokens of each trace, the end token included."""

    @classmethod
    def make(
        cls,
        *,
        prompts: int = 8,
        vocabulary: int = 4,
        length: int = 6,
        groundedness: float = 0.5,
        ends: bool = False,
        seed: int = 0,
    ) -> TabularSource:
        """A source between independent (``groundedness`` 0) and deterministic (1).

        At each position prompt x writes the token of its own codeword with probability g_x, and else a
        token drawn given the last one from a table that all prompts share. Codewords differ; g_x is
        ``groundedness`` to a power between 1/2 and 2, so prompts differ in how far they are followed.
        With ``ends``, token 0 ends a trace and ``length`` is the longest.
        """
        if not 0.0 <= groundedness <= 1.0:
            raise ConfigError(f"groundedness must be in [0, 1], got {groundedness}")
        traces_ST = _all_traces(vocabulary, length, ends=ends)
        if prompts > len(traces_ST):
            raise ConfigError(
                f"{prompts} prompts need as many different codewords, but {vocabulary} tokens at "
                f"length {length} give {len(traces_ST)}; take a longer length or a larger vocabulary"
            )
        rng = stream("tabular source", seed)
        shared_VV = rng.dirichlet(np.ones(vocabulary), vocabulary + 1)
        code_PT = traces_ST[rng.permutation(len(traces_ST))[:prompts]]
        own_P = groundedness ** (2.0 ** rng.uniform(-1.0, 1.0, prompts))
        return cls(_log_probs(traces_ST, code_PT, own_P, shared_VV), (traces_ST != NOTHING).sum(1))

    @property
    def num_prompts(self) -> int:
        """Prompts of the source."""
        return int(self.logp_SP.shape[1])

    @cached_property
    def probability_SP(self) -> FloatArray:
        """Probability of each trace under each prompt."""
        return np.asarray(np.exp(self.logp_SP))

    @cached_property
    def conditional_entropy(self) -> float:
        """H(Z|X) in nats per trace."""
        return float(-(self.probability_SP * self.logp_SP).sum(0).mean())

    @cached_property
    def entropy(self) -> float:
        """H(Z) in nats per trace."""
        mixture_S = self.probability_SP.mean(1)
        written_S = mixture_S[mixture_S > 0.0]
        return float(-(written_S * np.log(written_S)).sum())

    @property
    def mutual_information(self) -> float:
        """I(X;Z) in nats per trace."""
        return self.entropy - self.conditional_entropy

    @cached_property
    def bayes_accuracy(self) -> float:
        """How often the likeliest prompt of a trace is its own: the best that any retrieval can do.

        However ties are broken, one of the tied prompts is right in the same share of cases.
        """
        return float(self.probability_SP.max(1).sum() / self.num_prompts)

    def only(self, prompts: Sequence[int] | IntArray) -> TabularSource:
        """The source of some of the prompts, with its own exact values."""
        return TabularSource(self.logp_SP[:, self._distinct(prompts)], self.length_S)

    def sample(
        self,
        traces_per_prompt: int,
        rng: np.random.Generator,
        prompts: Sequence[int] | IntArray | None = None,
    ) -> ScoreMatrix:
        """A batch: traces drawn from ``prompts`` (all when left out), scored under each of them."""
        columns = self._distinct(np.arange(self.num_prompts) if prompts is None else prompts)
        chances = rng.random((len(columns), traces_per_prompt))
        drawn = [
            np.searchsorted(self._cumulative_PS[column], chance, side="right")
            for column, chance in zip(columns, chances, strict=True)
        ]
        traces_N = np.concatenate(drawn).clip(max=len(self.length_S) - 1)
        return ScoreMatrix(
            self.logp_SP[np.ix_(traces_N, columns)],
            self.length_S[traces_N],
            np.repeat(np.arange(len(columns)), traces_per_prompt),
        )

    def draw(self, prompt: int, rng: np.random.Generator) -> int:
        """One trace of a prompt."""
        place = np.searchsorted(self._cumulative_PS[prompt], rng.random(), side="right")
        return min(int(place), len(self.length_S) - 1)

    def every_trace(self) -> tuple[ScoreMatrix, FloatArray]:
        """Each trace once for each prompt that gives it, and its probability: an endless batch."""
        owner_N, trace_N = np.nonzero(self.probability_SP.T)
        matrix = ScoreMatrix(self.logp_SP[trace_N], self.length_S[trace_N], owner_N)
        return matrix, self.probability_SP[trace_N, owner_N] / self.num_prompts

    @cached_property
    def _cumulative_PS(self) -> FloatArray:
        return np.ascontiguousarray(self.probability_SP.cumsum(0).T)

    def _distinct(self, prompts: Sequence[int] | IntArray) -> IntArray:
        chosen = np.asarray(prompts, dtype=np.int64)
        if len(np.unique(chosen)) != len(chosen):
            raise ConfigError("a batch names each prompt once: equal prompts are one column")
        return chosen


def _all_traces(vocabulary: int, length: int, *, ends: bool) -> IntArray:
    """Every complete trace as one row of tokens, short ones filled up with ``NOTHING``."""
    if vocabulary < 2 or length < 1:
        raise ConfigError(
            f"a source needs 2 tokens and length 1 at least, got {vocabulary} and {length}"
        )
    if vocabulary**length > MOST_TRACES:
        raise ConfigError(
            f"{vocabulary} tokens at length {length} give {vocabulary**length} traces, more than "
            f"the {MOST_TRACES} that are listed; take fewer or shorter"
        )
    every_ST = np.indices((vocabulary,) * length).reshape(length, -1).T.astype(np.int64)
    if not ends:
        return every_ST
    behind_ST = np.cumsum(every_ST == END, axis=1) - (every_ST == END) > 0
    return np.unique(np.where(behind_ST, NOTHING, every_ST), axis=0)


def _log_probs(
    traces_ST: IntArray, code_PT: IntArray, own_P: FloatArray, shared_VV: FloatArray
) -> FloatArray:
    """Summed log-prob of each trace under each prompt; row -1 of ``shared_VV`` begins a trace."""
    logp_SP = np.zeros((len(traces_ST), len(code_PT)))
    last_S = np.full(len(traces_ST), -1)
    for token_S, code_P in zip(traces_ST.T, code_PT.T, strict=True):
        # Behind the end of its codeword a prompt has no token of its own to write.
        own = np.where(code_P == NOTHING, 0.0, own_P)
        shared_S = shared_VV[last_S, token_S]
        hit_SP = token_S[:, None] == code_P
        chance_SP = own * hit_SP + (1.0 - own) * shared_S[:, None]
        with np.errstate(divide="ignore"):
            step_SP = np.log(chance_SP)
        logp_SP += np.where((token_S == NOTHING)[:, None], 0.0, step_SP)
        last_S = token_S
    return np.asarray(np.maximum(logp_SP, NEVER))
