"""The wording of reasoning traces: phrases in the traces of most prompts, and traces that are alike.

A template is the same words whatever the prompt; here it can be read, before any model scores it.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from ragen2.types import FloatArray

SHORTEST, LONGEST = 3, 30
"""Words of a phrase."""
MOST_WORDS = 200
"""Words of each trace that are compared: bounds the time, and a template shows early."""
COMMON = 0.5
"""Share of the prompts that a templated phrase stands in."""
_UNSPACED = (
    "\u3005\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U000323af"  # Han, Hiragana, Katakana
    "\u0e01-\u0e4e\u0e80-\u0ecf\u0edc-\u0edf"  # Thai, Lao
    "\u1000-\u103f\u1050-\u108f\u1780-\u17d3"  # Burmese, Khmer
)
"""Letters of scripts that put no spaces between words; their digits are not among them."""
_PLAIN_WORD = re.compile(r"\w+(?:'\w+)*", re.ASCII)

_GLUED = re.compile(r" (?=[.,:;!?)\]])|(?<=[(\[]) ")

Gram = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Phrase:
    """A run of words, the number of prompts whose traces have it, and of traces."""

    text: str
    prompts: int
    traces: int


@dataclass(frozen=True, slots=True)
class Likeness:
    """Two traces of different prompts and the share of word pairs that both have."""

    first: int
    second: int
    similarity: float


def words(text: str) -> list[str]:
    """Lower-case words and punctuation marks, in order: the one definition of a word in the package.

    A script without spaces between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese) has one word per
    character, with the accents and vowel signs on it; Korean has spaces, and so has words.
    """
    return _word().findall(text.lower())


def num_words(text: str) -> int:
    """How many ``words`` a text has, punctuation marks left out."""
    if text.isascii():  # nearly all that is logged, and three times as fast
        return len(_PLAIN_WORD.findall(text))
    return sum(1 for word in words(text) if word[0].isalnum() or word[0] == "_")


def templated_phrases(traces: Sequence[str], owners: Sequence[int], most: int = 12) -> list[Phrase]:
    """Phrases of ``SHORTEST`` to ``LONGEST`` words in traces of most prompts, the most templated first.

    That is by share of prompts, times share of traces, times words: long and everywhere comes first.
    A phrase inside a chosen one, or made of its words shifted, is left out.
    """
    texts = [words(text)[:MOST_WORDS] for text in traces]
    num_prompts = len(set(owners))
    least = max(2, int(np.ceil(COMMON * num_prompts)))
    found: dict[Gram, tuple[int, int]] = {}
    common: set[Gram] | None = None
    for length in range(SHORTEST, LONGEST + 1):
        counted = _count(texts, owners, length, common)
        kept = {gram: count for gram, count in counted.items() if count[0] >= least}
        if not kept:
            break
        found |= kept
        common = set(kept)
    ranked = sorted(found, key=lambda gram: (-found[gram][0] * found[gram][1] * len(gram), gram))
    return [Phrase(_GLUED.sub("", " ".join(gram)), *found[gram]) for gram in _apart(ranked, most)]


def nearest_traces(traces: Sequence[str], owners: Sequence[int], most: int = 12) -> list[Likeness]:
    """Traces of different prompts that are most alike, each one in at most two of the pairs.

    Likeness is the number of different word pairs (neighbours in order) that both have, over those that
    either has: 1 for the same wording, 0 for nothing in common.
    """
    if len(traces) < 2:
        return []
    alike_NN = _jaccard([_pairs(text) for text in traces])
    owner_N = np.asarray(owners)
    alike_NN[owner_N[:, None] == owner_N[None, :]] = -1.0
    first_M, second_M = np.triu_indices(len(traces), k=1)
    order = np.argsort(-alike_NN[first_M, second_M], kind="stable")
    chosen: list[Likeness] = []
    uses = [0] * len(traces)
    for place in order.tolist():
        i, j = int(first_M[place]), int(second_M[place])
        if alike_NN[i, j] <= 0.0 or len(chosen) == most:
            break
        if max(uses[i], uses[j]) < 2:
            uses[i], uses[j] = uses[i] + 1, uses[j] + 1
            chosen.append(Likeness(i, j, float(alike_NN[i, j])))
    return chosen


@cache
def _word() -> re.Pattern[str]:
    """Python takes no vowel sign or accent for a letter: a word of Hindi would be several."""
    marks = "".join(
        sign for sign in map(chr, range(0x300, 0x10000)) if unicodedata.category(sign)[0] == "M"
    )
    letters = rf"[^\W{_UNSPACED}]+"
    return re.compile(
        rf"[{_UNSPACED}][{marks}]*|{letters}(?:(?:[{marks}]+|['\u2019]){letters})*[{marks}]*|[^\w\s]"
    )


def _count(
    texts: Sequence[Sequence[str]], owners: Sequence[int], length: int, common: set[Gram] | None
) -> dict[Gram, tuple[int, int]]:
    """Prompts and traces of each phrase; with ``common``, of those whose both ends are in it."""
    prompts: dict[Gram, set[int]] = defaultdict(set)
    traces: dict[Gram, int] = defaultdict(int)
    for text, owner in zip(texts, owners, strict=True):
        for gram in {tuple(text[i : i + length]) for i in range(len(text) - length + 1)}:
            if common is None or (gram[:-1] in common and gram[1:] in common):
                prompts[gram].add(owner)
                traces[gram] += 1
    return {gram: (len(seen), traces[gram]) for gram, seen in prompts.items()}


def _apart(ranked: Sequence[Gram], most: int) -> list[Gram]:
    chosen: list[Gram] = []
    taken: set[Gram] = set()
    for gram in ranked:
        parts = {gram[i : i + SHORTEST] for i in range(len(gram) - SHORTEST + 1)}
        if 2 * len(parts & taken) >= len(parts):
            continue
        chosen.append(gram)
        taken |= parts
        if len(chosen) == most:
            break
    return chosen


def _pairs(text: str) -> set[Gram]:
    found = words(text)[:MOST_WORDS]
    return set(pairwise(found)) or {(word,) for word in found}


def _jaccard(sets: Sequence[set[Gram]]) -> FloatArray:
    places: dict[Gram, int] = {}
    for one in sets:
        for gram in one:
            places.setdefault(gram, len(places))
    has_NV = np.zeros((len(sets), max(1, len(places))), dtype=np.float32)
    for row, one in enumerate(sets):
        has_NV[row, [places[gram] for gram in one]] = 1.0
    both_NN = (has_NV @ has_NV.T).astype(np.float64)
    size_N = np.diag(both_NN)
    either_NN = size_N[:, None] + size_N[None, :] - both_NN
    return np.divide(both_NN, either_NN, out=np.zeros_like(both_NN), where=either_NN > 0)
