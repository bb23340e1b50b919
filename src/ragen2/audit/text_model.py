"""Scores without a model: does the wording of a trace fit its own prompt's other traces best?

Each prompt gets a small language model of words, fitted to some of its traces; the remaining
traces are scored under every prompt's model. That gives the matrix that a language model would
give, so all that is measured on it stays the same, but it is about wording, not about likelihood
under the policy.

Every model is fitted to the same number of traces, and no trace is scored under a model that
was fitted to it. If reasoning ignores its prompt, the scored ones are then exchangeable over the
prompts: retrieval is at chance in expectation and permutation p-values are exact. Leaving out one
trace at a time would score more of them, but each pair would count twice, once from each side,
and the permutation null would be too narrow.

Shape letters: N scored traces, P prompts, V words, B pairs of neighbouring words, T words of a trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ragen2.diagnostics.metrics.wording import words
from ragen2.types import FloatArray, IntArray, ScoreMatrix

FEWEST_TRACES = 3
"""A prompt needs two traces to be fitted to and one to be scored."""
PRIOR_RANGE = (2.0, 1000.0)
"""Words' worth of trust in the pooled frequency of a word against a prompt's own: least and most."""
TIE = 1e-9
"""Scores closer than this are tied."""
PAIR_PRIOR = 2.0
"""Pairs' worth of trust in a prompt's word frequencies against its pairs."""


@dataclass(frozen=True, slots=True)
class TextScores:
    """The matrix and which prompts it is about."""

    matrix: ScoreMatrix
    prompts: tuple[int, ...]
    """Place of each column in what was given; prompts with too few traces are left out."""
    rows: tuple[tuple[int, int], ...]
    """Of each row of the matrix: the prompt, and the trace among that prompt's, as they were given."""
    uses_pairs: bool
    """Whether the order of words counted, or the words alone."""


def text_scores(
    traces: Sequence[Sequence[str]], *, uses_pairs: bool | None = None
) -> TextScores | None:
    """Score a part of each prompt's traces; None when fewer than two prompts have enough.

    ``traces`` must be in random order within each prompt: the first ones are fitted to. With
    ``uses_pairs`` left out, those also say whether the order of words helps.
    """
    tokens = [
        [(found, index) for index, text in enumerate(texts) if (found := words(text))]
        for texts in traces
    ]
    enough = [len(texts) for texts in tokens if len(texts) >= FEWEST_TRACES]
    if len(enough) < 2:
        return None
    fitted = (int(np.median(enough)) + 1) // 2
    usable = [place for place, texts in enumerate(tokens) if len(texts) > fitted]
    if len(usable) < 2:
        return None
    fitted_to = [[text for text, _ in tokens[place][:fitted]] for place in usable]
    if uses_pairs is None:
        uses_pairs = _pairs_help(fitted_to)
    model = _WordModel.fit(fitted_to, uses_pairs=uses_pairs)
    scored = [
        (text, column, (place, index))
        for column, place in enumerate(usable)
        for text, index in tokens[place][fitted:]
    ]
    matrix = ScoreMatrix(
        logp_NP=np.stack([model.score(text) for text, _, _ in scored]),
        length_N=np.array([len(text) for text, _, _ in scored], dtype=np.int64),
        owner_N=np.array([column for _, column, _ in scored], dtype=np.int64),
    )
    return TextScores(matrix, tuple(usable), tuple(row for _, _, row in scored), uses_pairs)


def _pairs_help(texts: Sequence[Sequence[Sequence[str]]]) -> bool:
    """Whether the order of words tells prompts apart better than the words alone.

    Answered on the traces that are fitted to, one of each prompt held out at a time, so that the
    scored ones have no say in how they are scored.
    """
    accuracy = []
    for uses_pairs in (False, True):
        hits = []
        for held in range(len(texts[0])):
            others = [[*prompt[:held], *prompt[held + 1 :]] for prompt in texts]
            model = _WordModel.fit(others, uses_pairs=uses_pairs)
            for column, prompt in enumerate(texts):
                scores_P = model.score(prompt[held])
                best_P = scores_P >= scores_P.max() - TIE
                hits.append(best_P[column] / best_P.sum())
        accuracy.append(float(np.mean(hits)))
    return accuracy[1] > accuracy[0]


def word_probabilities(counts_PV: FloatArray) -> FloatArray:
    """Each prompt's words, drawn towards the pooled frequencies word by word.

    A word whose counts differ over prompts no more than chance would have it says nothing about them
    and keeps its pooled frequency; one that differs much is believed. The strength s of the pull is
    that of a Dirichlet-multinomial with the same ratio r of observed to multinomial variance:
    r = (n + s) / (1 + s), with n words per prompt.
    """
    total_P1 = counts_PV.sum(1, keepdims=True)
    pooled_V = counts_PV.sum(0) + 0.5
    pooled_V /= pooled_V.sum()
    expected_PV = total_P1 * pooled_V
    ratio_V = ((counts_PV - expected_PV) ** 2 / expected_PV).sum(0) / (len(counts_PV) - 1)
    least, most = PRIOR_RANGE
    differs_V = ratio_V > 1.0
    strength_V = np.full_like(ratio_V, most)
    strength_V[differs_V] = (total_P1.mean() - ratio_V[differs_V]) / (ratio_V[differs_V] - 1.0)
    strength_V = np.clip(strength_V, least, most)
    words_PV = (counts_PV + strength_V * pooled_V) / (total_P1 + strength_V)
    return np.asarray(words_PV / words_PV.sum(1, keepdims=True))


@dataclass(frozen=True, slots=True, eq=False)
class _WordModel:
    """A prompt's words, backed off to all prompts' words; with pairs, each given the word before."""

    word_ids: dict[str, int]
    pair_ids: dict[tuple[int, int], int]
    words_PV: FloatArray
    """Probability of each word at each prompt; the last word stands for all unknown ones."""
    pairs_PB: FloatArray
    """Counts of each pair at each prompt; the last is a pair that nobody wrote."""
    before_PV: FloatArray
    """How often each word came before another at each prompt; the last two: unknown, start."""
    uses_pairs: bool

    @classmethod
    def fit(cls, texts: Sequence[Sequence[Sequence[str]]], *, uses_pairs: bool) -> _WordModel:
        """One model per prompt, over one vocabulary."""
        word_ids: dict[str, int] = {}
        pair_ids: dict[tuple[int, int], int] = {}
        for text in (text for prompt in texts for text in prompt):
            for word in text:
                word_ids.setdefault(word, len(word_ids))
        start = len(word_ids) + 1
        counts_PV = np.zeros((len(texts), len(word_ids) + 1))
        before_PV = np.zeros((len(texts), len(word_ids) + 2))
        seen: list[list[int]] = []
        for column, prompt in enumerate(texts):
            seen.append([])
            for text in prompt:
                ids = [word_ids[word] for word in text]
                np.add.at(counts_PV[column], ids, 1.0)
                np.add.at(before_PV[column], [start, *ids[:-1]], 1.0)
                for pair in zip([start, *ids[:-1]], ids, strict=True):
                    seen[column].append(pair_ids.setdefault(pair, len(pair_ids)))
        pairs_PB = np.zeros((len(texts), len(pair_ids) + 1))
        for column, places in enumerate(seen):
            np.add.at(pairs_PB[column], places, 1.0)
        words_PV = word_probabilities(counts_PV)
        return cls(word_ids, pair_ids, words_PV, pairs_PB, before_PV, uses_pairs)

    def score(self, text: Sequence[str]) -> FloatArray:
        """Summed log-prob of a text at each prompt."""
        unknown, start = len(self.word_ids), len(self.word_ids) + 1
        ids = [self.word_ids.get(word, unknown) for word in text]
        if not self.uses_pairs:
            return np.asarray(np.log(self.words_PV[:, ids]).sum(1))
        before = [start, *ids[:-1]]
        nobody = len(self.pair_ids)
        pairs = [self.pair_ids.get(pair, nobody) for pair in zip(before, ids, strict=True)]
        seen_PT = self.pairs_PB[:, pairs]
        prior_PT = PAIR_PRIOR * self.words_PV[:, ids]
        total_PT = self.before_PV[:, before] + PAIR_PRIOR
        return np.asarray(np.log((seen_PT + prior_PT) / total_PT).sum(1))


def effective_traces(traces: Sequence[Sequence[str]]) -> float | None:
    """How many different traces a prompt has in effect: one over the chance that two are equal.

    Pairs within a prompt are compared by wording, each prompt counting the same; this is the
    exponential of the collision entropy, which is at most H(Z|X). None without a pair to compare.
    When no two are equal the number of pairs is what can be vouched for.
    """
    shares, num_pairs = [], 0
    for texts in traces:
        if len(texts) < 2:
            continue
        counts: IntArray = np.unique([" ".join(words(text)) for text in texts], return_counts=True)[
            1
        ]
        pairs = len(texts) * (len(texts) - 1)
        shares.append(float((counts * (counts - 1)).sum()) / pairs)
        num_pairs += pairs // 2
    if not shares:
        return None
    return 1.0 / max(float(np.mean(shares)), 1.0 / num_pairs)
