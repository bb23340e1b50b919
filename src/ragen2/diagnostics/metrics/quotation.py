"""What reasoning takes over from its prompt: copied runs of words, and numbers.

Reasoning that copies its prompt and adds a template tells its prompt as well as any, and so does reasoning
about numbers of its own making, if each prompt has its own. Both are grounded by every likelihood; the text
alone tells them apart. Shape letters: N traces, P prompts, V words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import permutations
from typing import TypeVar

import numpy as np

from ragen2.diagnostics.base import Measured, Metrics
from ragen2.diagnostics.metrics.wording import COMMON, words
from ragen2.diagnostics.statistics.resampling import permutation_p_value, student_quantile
from ragen2.seeding import stream
from ragen2.types import FloatArray, IntArray

RUN = 8
"""Words and marks in a row that count as copied. To name what a prompt says takes fewer: ``(2, 1)`` is 5."""
MOST_TRACES = 128
"""Traces of a batch that are read: bounds the time."""
FEWEST_TRACES = 8
"""Traces that a comparison needs; below, its numbers would be noise."""
FEWEST_NUMBERS = 2
"""Numbers that tell a prompt from others, in the median prompt. One may be a label, such as a board's."""
MOST_NUMBERS = 30
"""Numbers of a prompt that are worked with."""
RESAMPLES = 200
"""Permutations of what is left of the traces."""
_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)|\d+(?:\.\d+)?")
_CELL = re.compile(r"\(\s*(\d+)\s*,\s*(\d+)\s*\)")
FAMILIES = ("copied_ratio", "rest_dependence")
TIE = 1e-9

Words = tuple[str, ...]
Item = TypeVar("Item", bound=Hashable)


def quotation(
    prompts: Sequence[str], traces: Sequence[Sequence[str]], *, seed: int = 0
) -> Measured:
    """Metrics of the traces of each distinct prompt, without prefix.

    * ``copied_ratio``: share of a trace's words in runs of ``RUN`` that stand in its prompt and not in
      most others; text that prompts share is not copied from any.
    * ``rest_dependence``: how often a trace is most like one of its own prompt once copied runs are
      taken out of all, from 0 (chance) to 1; ``rest_p_value``: chance of traces of a prompt as alike if
      they ignored it.
    * ``foreign_numbers``: share of a trace's numbers that its prompt does not have, nor gives by one sum,
      difference, product or quotient; ``foreign_numbers_null``: the same under the other prompts.
    * ``own_numbers``, with a 95% interval: how far the first lies below the second, 1 where no number is
      foreign and 0 for reasoning about other numbers than its prompt's. Numbers in most prompts, or
      in most traces, say nothing and are left out.
    """
    kept = [place for place, texts in enumerate(traces) if any(map(str.strip, texts))]
    if len(kept) < 2:
        return Measured(absent=dict.fromkeys(FAMILIES, "fewer than two prompts have reasoning"))
    each = max(2, MOST_TRACES // len(kept))
    texts = [[one for one in traces[place] if one.strip()][:each] for place in kept]
    owner_N = np.repeat(np.arange(len(kept)), [len(some) for some in texts])
    flat = [one for some in texts for one in some]
    shown = [prompts[place] for place in kept]
    ratio_N, rest = _copied(shown, flat, owner_N)
    found = Measured({"copied_ratio": float(ratio_N.mean())})
    found.add(_rest(rest, owner_N, stream("rest of reasoning", seed)))
    found.add(_stated_numbers(shown, flat, owner_N))
    return found


def numbers(text: str) -> set[str]:
    """The different numbers of a text, and its cells: ``(2, 1)`` is ``2``, ``1`` and ``(2,1)``."""
    cells = {f"({row},{column})" for row, column in _CELL.findall(text)}
    return cells | {_canonical(float(one.replace(",", ""))) for one in _NUMBER.findall(text)}


def within_reach(stated: set[str]) -> set[str]:
    """The numbers, and what one sum, difference, product or quotient of two of them gives."""
    known = sorted(float(one) for one in stated if not one.startswith("("))[:MOST_NUMBERS]
    found = set(stated)
    for first, second in permutations(known, 2):
        found |= {_canonical(value) for value in (first + second, first - second, first * second)}
        if second:
            found.add(_canonical(first / second))
    return found


def _canonical(value: float) -> str:
    return f"{value:.6g}"


def _copied(
    prompts: Sequence[str], traces: Sequence[str], owner_N: IntArray
) -> tuple[FloatArray, list[set[Words]]]:
    """Copied share of each trace, and the runs of up to three words that are left of it."""
    runs = [set(_runs(words(prompt))) for prompt in prompts]
    uncommon = _uncommon(runs)
    ratio_N = np.zeros(len(traces))
    rest = []
    for row, (trace, owner) in enumerate(zip(traces, owner_N.tolist(), strict=True)):
        text = words(trace)
        copied_T = np.zeros(len(text), dtype=bool)
        for place, run in enumerate(_runs(text)):
            if run in uncommon and run in runs[owner]:
                copied_T[place : place + RUN] = True
        ratio_N[row] = copied_T.mean() if text else 0.0
        kept = ["" if copied else word for word, copied in zip(text, copied_T, strict=True)]
        rest.append({run for length in (1, 2, 3) for run in _runs(kept, length) if all(run)})
    return ratio_N, rest


def _runs(text: Sequence[str], length: int = RUN) -> Iterator[Words]:
    return zip(*(text[start:] for start in range(length)), strict=False)


def _uncommon(sets: Sequence[set[Item]]) -> set[Item]:
    """What fewer than ``COMMON`` of the sets have; what one alone has always counts."""
    times = Counter(item for some in sets for item in some)
    return {item for item, count in times.items() if count < max(2.0, COMMON * len(sets))}


def _rest(rest: Sequence[set[Words]], owner_N: IntArray, rng: np.random.Generator) -> Measured:
    """Whether what is left of traces of one prompt is more alike than that of others."""
    own_NN = owner_N[:, None] == owner_N
    np.fill_diagonal(own_NN, val=False)
    if len(owner_N) < FEWEST_TRACES or own_NN.any(1).mean() <= COMMON:
        why = f"fewer than {FEWEST_TRACES} traces, or most prompts have one"
        return Measured(absent={"rest_dependence": why})
    alike_NN = _likeness(rest)
    np.fill_diagonal(alike_NN, -1.0)
    best_NN = alike_NN >= alike_NN.max(1, keepdims=True) - TIE
    hit = float(((best_NN & own_NN).sum(1) / best_NN.sum(1)).mean())
    chance = float(own_NN.sum(1).mean() / (len(owner_N) - 1))
    first_M, second_M = np.nonzero(own_NN)
    orders = (rng.permutation(len(owner_N)) for _ in range(RESAMPLES))
    null_B = np.array([alike_NN[order[first_M], order[second_M]].sum() for order in orders])
    return Measured(
        {
            "rest_dependence": (hit - chance) / (1.0 - chance),
            "rest_p_value": permutation_p_value(float(alike_NN[own_NN].sum()), null_B),
        }
    )


def _likeness(texts: Sequence[set[Words]]) -> FloatArray:
    """Cosine of the runs that two traces have, each weighted by the logarithm of its rarity."""
    used = Counter(run for text in texts for run in text)
    shared = {run: count for run, count in used.items() if count > 1}
    place = {run: index for index, run in enumerate(shared)}
    rarity_V = np.log(len(texts) / np.array(list(shared.values()), dtype=np.float64))
    weight_NV = np.zeros((len(texts), len(shared)))
    for row, text in enumerate(texts):
        known = [place[run] for run in text if run in place]
        weight_NV[row, known] = rarity_V[known]
    size_N1 = np.linalg.norm(weight_NV, axis=1, keepdims=True)
    weight_NV /= np.where(size_N1 > 0.0, size_N1, 1.0)
    return np.asarray(weight_NV @ weight_NV.T)


def _stated_numbers(prompts: Sequence[str], traces: Sequence[str], owner_N: IntArray) -> Metrics:
    """How many of the traces' numbers are their prompts'; nothing where they are not about numbers."""
    given = [numbers(prompt) for prompt in prompts]
    telling = _uncommon(given)
    if np.median([len(some & telling) for some in given]) < FEWEST_NUMBERS:
        return {}
    common = {one for some in given for one in some} - telling
    stated = [numbers(trace) for trace in traces]
    own_numbers = _uncommon(stated) - common
    rows = [row for row, some in enumerate(stated) if some & own_numbers]
    if len(rows) < FEWEST_TRACES or len(np.unique(owner_N[rows])) < 2:
        return {}
    reach = [within_reach(some) for some in given]
    share_NP = np.array(
        [
            [len(some & near) / len(some) for near in reach]
            for some in (stated[r] & own_numbers for r in rows)
        ]
    )
    own_N = share_NP[np.arange(len(rows)), owner_N[rows]]
    other_N = (share_NP.sum(1) - own_N) / (len(prompts) - 1)
    foreign = 1.0 - float(other_N.mean())
    if foreign <= TIE:
        return {}
    mean, error, freedom = _clustered((own_N - other_N) / foreign, owner_N[rows])
    width = student_quantile(freedom) * error
    return {
        "foreign_numbers": 1.0 - float(own_N.mean()),
        "foreign_numbers_null": foreign,
        "own_numbers": mean,
        "own_numbers_low": mean - width,
        "own_numbers_high": mean + width,
    }


def _clustered(values_N: FloatArray, owner_N: IntArray) -> tuple[float, float, float]:
    """Mean, and its standard error and degrees of freedom when traces of a prompt go together."""
    _, place_N = np.unique(owner_N, return_inverse=True)
    counts_P = np.bincount(place_N)
    mean = float(values_N.mean())
    apart_P = np.bincount(place_N, values_N - mean)
    variance = float((apart_P**2).sum()) * len(counts_P) / (len(counts_P) - 1)
    return mean, variance**0.5 / len(values_N), float(len(counts_P) - 1)
