"""Cross-scoring: the log-prob of every trace under every distinct prompt, and near duplicates of prompts."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from rapidfuzz.distance import Levenshtein

from ragen2.errors import ConfigError
from ragen2.policy import Pair, Scorer
from ragen2.scoring.traces import Trace, first_of_prompts
from ragen2.seeding import stream
from ragen2.types import BoolArray, FloatArray, Image, IntArray, ScoreMatrix, context_key

NEAR = 0.9
"""Edit similarity from which two prompts count as near-duplicates."""
MAX_COMPARED = 256
"""Tokens compared of each prompt, after what all share; bounds the cost of long histories."""
PATCH = 14
"""Pixels of a patch's side."""


def cross_score(
    traces: Sequence[Trace],
    scorer: Scorer,
    temperature: float = 1.0,
    *,
    max_tokens: int | None = None,
    rng: np.random.Generator | None = None,
) -> ScoreMatrix | None:
    """Score N traces under their P distinct prompts; None when fewer than two prompts are distinct.

    Prompts with equal tokens and images are one column, so that a trace is never asked to tell them
    apart.
    Equal (prompt, reasoning) pairs are scored once.

    ``max_tokens`` bounds the scorer's forward passes: every prompt once, and a trace once for each
    column it is scored under. When all pairs are more than that, every trace keeps its own column
    and gets an equal number of others, drawn from ``rng`` for each trace on its own; a pair that was
    not drawn is NaN. ``rng`` is touched only then; left out, the draw is the same every time.
    """
    prompts, owner_N = distinct_prompts(traces)
    if len(prompts) < 2:
        return None
    length_N = np.array([len(trace.reasoning_ids_T) for trace in traces], dtype=np.int64)
    scored_NP = np.ones((len(traces), len(prompts)), dtype=np.bool_)
    lengths = [len(prompt.prompt_ids_T) for prompt in prompts]
    others = affordable_columns(lengths, length_N, max_tokens)
    if others < len(prompts) - 1:
        scored_NP = draw_columns(owner_N, len(prompts), others, rng or stream("cross_score"))
    logp_NP = _score(traces, prompts, scored_NP, scorer, temperature)
    return ScoreMatrix(logp_NP=logp_NP, length_N=length_N, owner_N=owner_N)


def summed_scores(pairs: Sequence[Pair], scorer: Scorer, temperature: float) -> FloatArray:
    """Log-prob of each continuation as a whole; equal pairs are scored once."""
    keys = [
        (context_key(pair.context_ids_T, pair.images), pair.continuation_ids_T.tobytes())
        for pair in pairs
    ]
    distinct = dict(zip(keys, pairs, strict=True))
    scores = scorer.score(list(distinct.values()), temperature)
    logp = {key: float(values.sum()) for key, values in zip(distinct, scores, strict=True)}
    return np.array([logp[key] for key in keys])


def distinct_prompts(traces: Sequence[Trace]) -> tuple[list[Trace], IntArray]:
    """The first trace of each prompt that differs, and the column of each trace's own."""
    columns: dict[bytes, int] = {}
    keys = [trace.prompt_key for trace in traces]
    owner_N = np.array([columns.setdefault(key, len(columns)) for key in keys], dtype=np.int64)
    return first_of_prompts(traces), owner_N


def affordable_columns(
    prompt_lengths: Sequence[int], length_N: IntArray, max_tokens: int | None
) -> int:
    """Columns besides its own that each trace can be scored under within ``max_tokens``."""
    most = len(prompt_lengths) - 1
    if max_tokens is None:
        return most
    # A scorer with a prefix cache runs each prompt once; each column then costs the traces' own tokens.
    fixed = sum(prompt_lengths) + int(length_N.sum())
    others = (max_tokens - fixed) // int(length_N.sum())
    if others < 1:
        raise ConfigError(
            f"max_tokens is {max_tokens}, but {len(length_N)} traces under their own and one other "
            f"of {len(prompt_lengths)} prompts are {fixed + int(length_N.sum())} tokens; raise it to "
            "that, or score fewer traces"
        )
    return min(others, most)


def draw_columns(
    owner_N: IntArray, num_prompts: int, others: int, rng: np.random.Generator
) -> BoolArray:
    """Own column and ``others`` more of each row, every other column being equally likely."""
    # Ranks of random numbers are a uniform draw without replacement, for all rows at once. It must be
    # uniform: then the mean over drawn columns estimates that over all without bias (``marginals``).
    order_NP = rng.random((len(owner_N), num_prompts))
    order_NP[np.arange(len(owner_N)), owner_N] = -1.0  # sorts first: the own pair is always scored
    return np.asarray(order_NP.argsort(axis=1).argsort(axis=1) <= others)


def _score(
    traces: Sequence[Trace],
    prompts: Sequence[Trace],
    scored_NP: BoolArray,
    scorer: Scorer,
    temperature: float,
) -> FloatArray:
    """Summed log-probs where ``scored_NP``, NaN elsewhere; rows with equal tokens share their pairs."""
    pairs: list[Pair] = []
    seen: dict[tuple[bytes, int], int] = {}
    place_NP = np.full(scored_NP.shape, -1, dtype=np.int64)
    for row, trace in enumerate(traces):
        key = trace.reasoning_ids_T.tobytes()
        for column in np.flatnonzero(scored_NP[row]).tolist():
            place = seen.setdefault((key, column), len(pairs))
            if place == len(pairs):
                prompt = prompts[column]
                pairs.append(Pair(prompt.prompt_ids_T, trace.reasoning_ids_T, prompt.images))
            place_NP[row, column] = place
    sums = np.array([values.sum() for values in scorer.score(pairs, temperature)])
    return np.where(scored_NP, sums[place_NP], np.nan)


def near_duplicates(prompts: Sequence[IntArray]) -> list[tuple[int, int, float]]:
    """Pairs (i, j, similarity), i < j, whose similarity is at least ``NEAR``.

    The tokens that all prompts share at both ends (rules, chat template) are stripped first, or every
    pair would look alike. Similarity of the rest is 1 - edits / length of the longer one, edits being
    single-token insertions, deletions and replacements.
    """
    cores = [core[:MAX_COMPARED].tolist() for core in strip_shared(prompts)]
    found = []
    for (i, one), (j, other) in combinations(enumerate(cores), 2):
        longer = max(len(one), len(other), 1)
        # Past this many edits a pair is not near, and counting stops; the rest is for rounding.
        most = int((1.0 - NEAR) * longer + 1e-9)
        similarity = 1.0 - Levenshtein.distance(one, other, score_cutoff=most) / longer
        if similarity >= NEAR:
            found.append((i, j, similarity))
    return found


def prompt_words(ids_T: IntArray, images: Sequence[Image]) -> IntArray:
    """The tokens of a prompt, then a number for each patch of its images: what makes prompts alike.

    Equal patches have equal numbers, so boards that differ in one cell are nearly the same.
    """
    if not images:
        return ids_T
    patches = [zlib.crc32(patch) for image in images for patch in _patches(image)]
    return np.concatenate([ids_T, np.array(patches, dtype=np.int64)])


def _patches(image: Image) -> Iterator[bytes]:
    height, width = image.size
    for row in range(0, height, PATCH):
        for column in range(0, width, PATCH):
            yield image.pixels[row : row + PATCH, column : column + PATCH].tobytes()


def strip_shared(prompts: Sequence[IntArray]) -> list[IntArray]:
    """Each prompt without the tokens that all of them begin and end with."""
    if not prompts:
        return []
    shortest = min(len(prompt) for prompt in prompts)
    head = _shared(np.stack([prompt[:shortest] for prompt in prompts]))
    rest = shortest - head
    tails = np.stack([prompt[len(prompt) - rest :] for prompt in prompts])
    tail = _shared(tails[:, ::-1])
    return [prompt[head : len(prompt) - tail] for prompt in prompts]


def _shared(ids_PL: IntArray) -> int:
    """Leading columns in which all rows agree."""
    agree_L = (ids_PL == ids_PL[0]).all(0)
    return len(agree_L) if agree_L.all() else int(agree_L.argmin())
