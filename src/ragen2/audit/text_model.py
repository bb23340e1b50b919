"""Scores without a model: does the wording of a trace fit its own prompt better than the others?

Three critics, each of which scores a trace under every prompt of its step:

* ``words``: the words of some of the prompt's traces, fitted; the remaining traces are scored,
* ``pairs``: the same for pairs of neighbouring words, so that their order counts,
* ``prompt``: the words of the prompt itself that tell it from the other prompts; needs no fit.

Those that tell the prompts apart best, together, are chosen once for the whole log, by holding out
fitted traces of every step. That gives the matrix that a language model would give, so all that is
measured on it stays the same, but it is about wording, not about likelihood under the policy.

Every prompt of a step is fitted to the same number of traces, and no scored trace has a say in how it is
scored. If reasoning ignores its prompt, the scored ones are then exchangeable over the prompts:
retrieval is at chance in expectation and permutation p-values are exact. Leaving out one trace at a time
would score more of them, but each pair would count twice, once from each side, and the permutation null
would be too narrow.

Shape letters: N scored traces, P prompts, V words (or pairs), T words of a trace, K critics.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np

from ragen2.diagnostics.metrics.wording import words
from ragen2.types import FloatArray, IntArray, ScoreMatrix

FEWEST_TRACES = 3
"""A prompt needs two traces to be fitted to and one to be scored."""
PRIOR_RANGE = (2.0, 1000.0)
"""Words' worth of trust in the pooled frequency of a word against a prompt's own: least and most."""
PROMPT_SHARE = 0.05
"""Share of a trace's words taken to come from its prompt. Retrieval was the same from 0.002 to 0.05."""
FOLDS = 2
"""Fitted traces of each prompt that are held out, one after the other, to choose the critics."""
TIE = 1e-9
"""Scores closer than this are tied."""
Critic = Literal["words", "pairs", "prompt"]
CRITICS: tuple[Critic, ...] = ("words", "pairs", "prompt")
_CELL = re.compile(r"(\d+)\s*([^\w\s])\s*(?=(\d+))")
"""Two numbers with a mark between: ``(2, 1)`` is a place, though 2 and 1 may be in every prompt."""


class _Text(NamedTuple):
    """A text as numbers of its words."""

    words_T: IntArray
    """In order."""
    terms: IntArray
    """Without an order, and with its cells as further words."""


Texts = Sequence[Sequence[_Text]]
"""Traces of each prompt."""
Keys = Sequence[Sequence[IntArray]]
"""The same as keys of what a critic counts."""


@dataclass(frozen=True, slots=True)
class StepTexts:
    """One step: the text of each distinct prompt, and its traces in random order."""

    prompts: Sequence[str]
    traces: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class TextScores:
    """The matrix and which prompts it is about."""

    matrix: ScoreMatrix
    prompts: tuple[int, ...]
    """Place of each column in what was given; prompts with too few traces are left out."""
    rows: tuple[tuple[int, int], ...]
    """Of each row of the matrix: the prompt, and the trace among that prompt's, as they were given."""
    critics: tuple[Critic, ...]
    """Those whose scores were averaged."""
    num_fitted: int
    """Traces that each prompt was fitted to. With 0 only its own words were compared: those that are
    shared tell of dependence, a lack of them tells nothing."""


def text_scores(steps: Sequence[StepTexts]) -> list[TextScores | str]:
    """Score traces of every step; a text says why a step has no scores.

    Where prompts have fewer than ``FEWEST_TRACES`` traces nothing can be fitted: all traces are scored, by
    the words they share with the prompts alone.
    """
    numbers: dict[str, int] = {}
    divided = [_divide(step, numbers) for step in steps]
    fitted = [step for step in divided if isinstance(step, _Step) and step.fitted]
    chosen = _choose(fitted)
    ratios = _pooled_ratios([step.fitted for step in fitted])
    found: list[TextScores | str] = []
    for step in divided:
        if isinstance(step, str):
            found.append(step)
            continue
        critics: tuple[Critic, ...] = chosen if step.fitted else ("prompt",)
        scores_NP = np.mean([_score(critic, step, ratios) for critic in critics], axis=0)
        if not step.fitted and np.ptp(scores_NP, axis=1).max() <= TIE:
            found.append(
                "no reasoning trace uses a word that tells the prompts apart; without --model this "
                f"needs at least {FEWEST_TRACES} reasoning traces per prompt"
            )
            continue
        length_N = np.array([len(text.words_T) for text in step.scored], dtype=np.int64)
        matrix = ScoreMatrix(scores_NP, length_N, step.owner_N)
        found.append(TextScores(matrix, step.places, step.rows, critics, step.num_fitted))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A step's texts as numbers of words, divided into those fitted to and those scored."""

    prompts: list[IntArray]
    """The different terms of each prompt."""
    fitted: list[list[_Text]]
    """As many traces of each prompt; empty where none can be spared."""
    scored: list[_Text]
    owner_N: IntArray
    places: tuple[int, ...]
    rows: tuple[tuple[int, int], ...]

    @property
    def num_fitted(self) -> int:
        """Traces of each prompt that are fitted to."""
        return len(self.fitted[0]) if self.fitted else 0

    def holding_out(self, fold: int) -> _Step:
        """The same prompts, with the fitted trace at this place as the only one to score."""
        kept = [[*texts[:fold], *texts[fold + 1 :]] for texts in self.fitted]
        held = [texts[fold] for texts in self.fitted]
        return _Step(self.prompts, kept, held, np.arange(len(held)), self.places, ())


def _divide(step: StepTexts, numbers: dict[str, int]) -> _Step | str:
    """The traces to fit to come first. Only the words are numbered here; nothing is learnt from them."""

    def numbered(text: str) -> _Text:
        cells = ["".join(cell) for cell in _CELL.findall(text)]
        found = [numbers.setdefault(word, len(numbers)) for word in (*words(text), *cells)]
        terms = np.array(found, dtype=np.int64)
        return _Text(terms[: len(terms) - len(cells)], terms)

    tokens = [
        [(found, index) for index, text in enumerate(texts) if len((found := numbered(text)).terms)]
        for texts in step.traces
    ]
    sizes = [len(texts) for texts in tokens]
    enough = [size for size in sizes if size >= FEWEST_TRACES]
    fitted = 0
    if len(enough) >= 2 and 2 * sum(enough) >= sum(sizes):
        fitted = (int(np.median(enough)) + 1) // 2
    if sum(size > fitted for size in sizes) < 2:
        fitted = 0
    places = [place for place, size in enumerate(sizes) if size > fitted]
    if len(places) < 2:
        return f"needs reasoning traces of at least 2 prompts, found {len(places)}"
    scored = [
        (text, column, (place, index))
        for column, place in enumerate(places)
        for text, index in tokens[place][fitted:]
    ]
    return _Step(
        prompts=[np.unique(numbered(step.prompts[place]).terms) for place in places],
        fitted=[[text for text, _ in tokens[place][:fitted]] for place in places] if fitted else [],
        scored=[text for text, _, _ in scored],
        owner_N=np.array([column for _, column, _ in scored], dtype=np.int64),
        places=tuple(places),
        rows=tuple(row for _, _, row in scored),
    )


def _choose(steps: Sequence[_Step]) -> tuple[Critic, ...]:
    """The critics whose mean ranks the own prompt of held-out fitted traces best, over all steps.

    Those that score every prompt alike whatever the trace are not asked.
    """
    if not steps:
        return ("prompt",)
    ranks: dict[tuple[Critic, ...], list[float]] = {
        chosen: [] for size in range(1, 4) for chosen in combinations(CRITICS, size)
    }
    telling: set[tuple[Critic, ...]] = set()
    for fold in range(FOLDS):
        held = [step.holding_out(fold) for step in steps]
        ratios = _pooled_ratios([step.fitted for step in held])
        for step in held:
            scores = {critic: _score(critic, step, ratios) for critic in CRITICS}
            for chosen, found in ranks.items():
                mean_NP = np.mean([scores[critic] for critic in chosen], axis=0)
                found.append(_reciprocal_rank(mean_NP, step.owner_N))
                if np.ptp(mean_NP, axis=1).max() > TIE:
                    telling.add(chosen)
    candidates = [chosen for chosen in ranks if chosen in telling] or [CRITICS]
    return max(candidates, key=lambda chosen: float(np.mean(ranks[chosen])))


def _reciprocal_rank(scores_NP: FloatArray, owner_N: IntArray) -> float:
    """Mean of one over the rank of the own prompt, ties broken fairly: 1 where it is always the best."""
    ahead_NP = scores_NP - scores_NP[np.arange(len(owner_N)), owner_N][:, None]
    better_N = (ahead_NP > TIE).sum(1)
    last_N = (ahead_NP >= -TIE).sum(1)
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, scores_NP.shape[1] + 1))])
    return float(((harmonic[last_N] - harmonic[better_N]) / (last_N - better_N)).mean())


_Ratios = dict[Critic, tuple[IntArray, FloatArray]]
"""Of each critic that is fitted: the keys of its words or pairs, sorted, and how much each differs."""


def _pooled_ratios(steps: Sequence[Texts]) -> _Ratios:
    """How much each word and pair differs over prompts, against chance, in all steps together.

    One step has few prompts and traces; a word that says nothing about them in most steps is better
    known as such by all.
    """
    ratios: _Ratios = {}
    for critic in CRITICS[:2]:
        keys, excess, freedom = [np.empty(0, dtype=np.int64)], [np.empty(0)], [np.empty(0)]
        for texts in steps:
            keys_V, counts_PV = _count(_keyed(critic, texts))
            keys.append(keys_V)
            excess.append((len(texts) - 1) * dispersion(counts_PV))
            freedom.append(np.full(len(keys_V), len(texts) - 1.0))
        all_V, place = np.unique(np.concatenate(keys), return_inverse=True)
        size = len(all_V)
        summed_V = np.bincount(place, np.concatenate(excess), minlength=size)
        ratios[critic] = all_V, summed_V / np.bincount(place, np.concatenate(freedom), size)
    return ratios


def _score(critic: Critic, step: _Step, ratios: _Ratios) -> FloatArray:
    if critic == "prompt":
        return _shared_words(step)
    keys_V, counts_PV = _count(_keyed(critic, step.fitted))
    all_V, ratio_V = ratios[critic]
    logp_PV = np.log(word_probabilities(counts_PV, ratio_V[np.searchsorted(all_V, keys_V)]))
    (scored,) = _keyed(critic, [step.scored])
    return np.stack([logp_PV[:, _known(keys_V, text)].sum(1) for text in scored])


def _keyed(critic: Critic, texts: Texts) -> Keys:
    """Texts as keys of what the critic counts: a pair is its two words in one number."""

    def keys(text_T: IntArray) -> IntArray:
        if critic == "words":
            return text_T
        return (np.concatenate([[0], text_T[:-1] + 1]) << 32) | text_T

    return [[keys(text.words_T) for text in prompt] for prompt in texts]


def _count(texts: Keys) -> tuple[IntArray, FloatArray]:
    """The keys that at least two texts have, sorted, and how often each prompt has them.

    What one text alone has cannot be told from chance, and there is much of it.
    """
    there = np.concatenate([np.unique(text) for prompt in texts for text in prompt])
    seen, times = np.unique(there, return_counts=True)
    keys_V = seen[times > 1]
    counts_PV = np.zeros((len(texts), len(keys_V)))
    for counts_V, prompt in zip(counts_PV, texts, strict=True):
        np.add.at(counts_V, _known(keys_V, np.concatenate(prompt)), 1.0)
    return keys_V, counts_PV


def _known(keys_V: IntArray, text_T: IntArray) -> IntArray:
    """Places of a text's keys among the sorted ones; others are left out."""
    if not len(keys_V):
        return np.empty(0, dtype=np.int64)
    place_T = np.minimum(np.searchsorted(keys_V, text_T), len(keys_V) - 1)
    return np.asarray(place_T[keys_V[place_T] == text_T])


def dispersion(counts_PV: FloatArray) -> FloatArray:
    """Variance of each word's counts over prompts by that of chance: about 1 where all use it alike."""
    expected_PV = np.maximum(counts_PV.sum(1, keepdims=True), 1.0) * _pooled(counts_PV)
    return np.asarray(((counts_PV - expected_PV) ** 2 / expected_PV).sum(0) / (len(counts_PV) - 1))


def word_probabilities(counts_PV: FloatArray, ratio_V: FloatArray) -> FloatArray:
    """Each prompt's words, drawn towards the pooled frequencies word by word.

    A word whose counts differ over prompts no more than chance would have it says nothing about them
    and keeps its pooled frequency; one that differs much is believed. The strength s of the pull is
    that of a Dirichlet-multinomial with this ratio r of observed to multinomial variance:
    r = (n + s) / (1 + s), with n words per prompt.
    """
    total_P1 = counts_PV.sum(1, keepdims=True)
    least, most = PRIOR_RANGE
    differs_V = ratio_V > 1.0
    strength_V = np.full_like(ratio_V, most)
    strength_V[differs_V] = (total_P1.mean() - ratio_V[differs_V]) / (ratio_V[differs_V] - 1.0)
    strength_V = np.clip(strength_V, least, most)
    words_PV = (counts_PV + strength_V * _pooled(counts_PV)) / (total_P1 + strength_V)
    return np.asarray(words_PV / words_PV.sum(1, keepdims=True))


def _pooled(counts_PV: FloatArray) -> FloatArray:
    pooled_V = counts_PV.sum(0) + 0.5
    return np.asarray(pooled_V / pooled_V.sum())


def _shared_words(step: _Step) -> FloatArray:
    """Log-likelihood ratio of each trace if some of its words came from a prompt, the rarer ones rather.

    A word counts by the logarithm of one over the share of prompts that have it, so text common to all
    prompts counts nothing, and a prompt's words add up to one whatever its length. A long prompt still
    shares words by chance more often: each column is brought to the mean and the spread of all, over
    these traces whoever wrote them. So a trace that ignores its prompt prefers none.
    """
    there, prompts_V = np.unique(np.concatenate(step.prompts), return_counts=True)
    own = prompts_V < len(step.prompts)
    keys_V, rarity_V = there[own], np.log(len(step.prompts) / prompts_V[own])
    weight_PV = np.zeros((len(step.prompts), len(keys_V)))
    for weight_V, prompt in zip(weight_PV, step.prompts, strict=True):
        place = _known(keys_V, prompt)
        weight_V[place] = rarity_V[place] / max(rarity_V[place].sum(), TIE)
    texts = [text.terms for prompt in step.fitted or [step.scored] for text in prompt]
    used_V = np.bincount(_known(keys_V, np.concatenate(texts)), minlength=len(keys_V)) + 0.5
    frequency_V = used_V / (sum(map(len, texts)) + 0.5 * (len(keys_V) + 1))
    ratio_PV = np.log1p(PROMPT_SHARE / (1.0 - PROMPT_SHARE) * weight_PV / frequency_V)
    shared_NP = np.stack([ratio_PV[:, _known(keys_V, one.terms)].sum(1) for one in step.scored])
    spread_P = shared_NP.std(0)
    centred_NP = shared_NP - shared_NP.mean(0)
    even_NP = centred_NP * (spread_P.mean() / np.where(spread_P > TIE, spread_P, np.inf))
    return np.asarray(even_NP - even_NP.max(1, keepdims=True))


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
