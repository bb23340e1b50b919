"""Does length alone explain it? Controls that hold the length of reasoning fixed.

Reasoning can give its prompt away by its length only: hard prompts get long traces. These numbers tell
that apart from content. Shape letters: N traces, P prompts.
"""

from __future__ import annotations

import numpy as np

from ragen2.diagnostics.metrics.mutual_information import p_values
from ragen2.diagnostics.statistics.inputs import score_matrix
from ragen2.diagnostics.statistics.jackknife import credit, rivals, score_forms
from ragen2.seeding import stream
from ragen2.types import BoolArray, FloatArray, IntArray, ScoreMatrix

STRATA = 8
"""Groups of traces of like length, at most."""
FEWEST_IN_STRATUM = 4
MATCHED_SHARE = 0.5
"""Share of the other prompts that count as matched: those of the nearest mean length."""


def length_control(
    logp_NP: FloatArray,
    length_N: IntArray,
    owner_N: IntArray,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, float]:
    """Numbers to read beside those of ``measure``, which takes the same arrays.

    * ``length_explained``: share of the variance of length that the prompt explains, corrected for
      chance; absent when all traces are of one length or each prompt has one trace.
    * ``length_retrieval``: how often the prompt whose other traces have the nearest mean length is the
      own one; absent with one trace per prompt. Its chance is that of retrieval.
    * ``length_matched_retrieval`` and ``length_matched_chance``: retrieval against the half of the other
      prompts whose mean length is nearest. If it stays high, content did it.
    * ``mi_length_matched_p_value``, ``retrieval_length_matched_p_value``: permutation p-values when
      owners are permuted only among traces of like length. Small ones say that length alone
      cannot explain the dependence; with ``resamples=0`` they are left out.
    """
    matrix = score_matrix(logp_NP, length_N, owner_N)
    found: dict[str, float] = {}
    explained = length_explained(matrix.length_N, matrix.owner_N)
    if explained is not None:
        found["length_explained"] = explained
    guessed = _length_retrieval(matrix)
    if guessed is not None:
        found["length_retrieval"] = guessed
    if matrix.logp_NP.shape[1] > 1:
        found |= _matched_retrieval(matrix)
    if resamples:
        strata_N = length_strata(matrix.length_N)
        found_p = p_values(matrix, strata_N, resamples, stream("length control", seed))
        found |= {f"{name}_length_matched_p_value": value for name, value in found_p.items()}
    return found


def length_explained(length_N: IntArray, owner_N: IntArray) -> float | None:
    """Share of the variance of length between prompts, 0 on average where there is no difference.

    One minus the variance within prompts over the whole variance, both unbiased; it can be a little
    below 0. None where it is not defined.
    """
    prompts, place_N = np.unique(owner_N, return_inverse=True)
    whole = float(np.var(length_N, ddof=1)) if len(length_N) > 1 else 0.0
    if whole == 0.0 or len(length_N) == len(prompts):
        return None
    mean_P = np.bincount(place_N, length_N) / np.bincount(place_N)
    within = float(((length_N - mean_P[place_N]) ** 2).sum()) / (len(length_N) - len(prompts))
    return 1.0 - within / whole


def length_strata(length_N: IntArray) -> IntArray:
    """Traces of like length share a number; equal lengths are never parted."""
    groups = max(1, min(STRATA, len(length_N) // FEWEST_IN_STRATUM))
    edges = np.quantile(length_N, np.arange(1, groups) / groups, method="higher")
    return np.asarray(np.searchsorted(np.unique(edges), length_N, side="right"))


def _length_retrieval(matrix: ScoreMatrix) -> float | None:
    """Retrieval by the distance to each prompt's mean length, the trace itself left out of it."""
    prompts = matrix.logp_NP.shape[1]
    counts_P = np.bincount(matrix.owner_N, minlength=prompts)
    if (counts_P < 2).any():
        return None
    sums_P = np.bincount(matrix.owner_N, matrix.length_N, minlength=prompts)
    own_NP = matrix.owner_N[:, None] == np.arange(prompts)
    mean_NP = (sums_P - own_NP * matrix.length_N[:, None]) / (counts_P - own_NP)
    better_NP, tied_NP = rivals(-np.abs(mean_NP - matrix.length_N[:, None]), matrix.owner_N)
    return float(credit(better_NP.sum(1), tied_NP.sum(1), 1).mean())


def _matched_retrieval(matrix: ScoreMatrix) -> dict[str, float]:
    near_NP = _near_prompts(matrix)[matrix.owner_N]
    token_NP = score_forms(matrix)[""]
    better_NP, tied_NP = rivals(np.where(near_NP, token_NP, np.nan), matrix.owner_N)
    rivals_N = (near_NP & np.isfinite(token_NP)).sum(1)
    return {
        "length_matched_retrieval": float(credit(better_NP.sum(1), tied_NP.sum(1), 1).mean()),
        "length_matched_chance": float((1.0 / rivals_N).mean()),
    }


def _near_prompts(matrix: ScoreMatrix) -> BoolArray:
    """For each prompt, itself and the half of the others whose mean length is nearest, ties included."""
    prompts = matrix.logp_NP.shape[1]
    counts_P = np.bincount(matrix.owner_N, minlength=prompts)
    sums_P = np.bincount(matrix.owner_N, matrix.length_N, minlength=prompts)
    # A prompt without traces has no length of its own: it is matched last.
    mean_P = np.where(counts_P > 0, sums_P / np.maximum(counts_P, 1), np.inf)
    with np.errstate(invalid="ignore"):
        away_PP = np.nan_to_num(np.abs(mean_P[:, None] - mean_P), nan=np.inf, posinf=np.inf)
    np.fill_diagonal(away_PP, -1.0)
    kept = 1 + max(1, round(MATCHED_SHARE * (prompts - 1)))
    limit_P = np.sort(away_PP, axis=1)[:, kept - 1]
    return np.asarray(away_PP <= limit_P[:, None])
