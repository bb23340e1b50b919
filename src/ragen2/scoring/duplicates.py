"""Prompts that are nearly the same: columns that no reasoning trace can be asked to tell apart.

Retrieval among them is guessing, so a batch with many has a low retrieval accuracy for no fault of the
reasoning: they are counted beside it. P prompts, L tokens compared.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from rapidfuzz.distance import Levenshtein

from ragen2.types import Image, IntArray

NEAR = 0.9
"""Edit similarity from which two prompts count as near-duplicates."""
MAX_COMPARED = 256
"""Tokens compared of each prompt, after what all share; bounds the cost of long histories."""
PATCH = 14
"""Pixels of a patch's side."""


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
