"""Prompts that are nearly the same: columns that no reasoning can be asked to tell apart.

V distinct tokens, L tokens compared; P prompts as elsewhere.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from ragen2.types import Image, IntArray

NEAR = 0.9
"""Edit similarity from which two prompts count as near-duplicates."""
MAX_COMPARED = 256
"""Tokens compared of each prompt, after what all share; bounds the cost of long histories."""
PADDING = -1
PATCH = 14
"""Pixels of a patch's side."""


def near_duplicates(prompts: Sequence[IntArray]) -> list[tuple[int, int, float]]:
    """Pairs (i, j, similarity), i < j, whose similarity is at least ``NEAR``.

    The tokens that all prompts share at both ends (rules, chat template) are stripped first, or every
    pair would look alike. Similarity of the rest is 1 - edits / length of the longer one, edits being
    single-token insertions, deletions and replacements.
    """
    cores = [core[:MAX_COMPARED] for core in strip_shared(prompts)]
    found = []
    for i, core in enumerate(cores):
        later = [
            j
            for j in range(i + 1, len(cores))
            if _fewest_edits(core, cores[j]) <= _allowed(core, cores[j])
        ]
        for j, edits in zip(later, edit_distances(core, [cores[j] for j in later]), strict=True):
            similarity = 1.0 - edits / max(len(core), len(cores[j]), 1)
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


def edit_distances(one: IntArray, others: Sequence[IntArray]) -> list[int]:
    """Levenshtein distance of ``one`` to each of ``others``, all computed side by side."""
    if not others:
        return []
    length_J = np.array([len(other) for other in others])
    longest = int(length_J.max())
    padded_JL = np.full((len(others), longest), PADDING, dtype=np.int64)
    for row, other in enumerate(others):
        padded_JL[row, : len(other)] = other
    # Costs are kept less their column: then an insertion costs nothing, and a running minimum adds it.
    cost_JL = np.zeros((len(others), longest + 1), dtype=np.int32)
    for token in one.tolist():
        replaced = cost_JL[:, :-1] - (padded_JL == token)
        cost_JL += 1
        np.minimum(cost_JL[:, 1:], replaced, out=cost_JL[:, 1:])
        np.minimum.accumulate(cost_JL, axis=1, out=cost_JL)
    return [int(edits) for edits in cost_JL[np.arange(len(others)), length_J] + length_J]


def _shared(ids_PL: IntArray) -> int:
    """Leading columns in which all rows agree."""
    agree_L = (ids_PL == ids_PL[0]).all(0)
    return len(agree_L) if agree_L.all() else int(agree_L.argmin())


def _allowed(one: IntArray, other: IntArray) -> float:
    return (1.0 - NEAR) * max(len(one), len(other)) + 1e-9


def _fewest_edits(one: IntArray, other: IntArray) -> int:
    """A bound from below that ignores order: tokens that one has and the other lacks."""
    tokens, place = np.unique(np.concatenate([one, other]), return_inverse=True)
    count_V = np.bincount(place[: len(one)], minlength=len(tokens))
    count_V -= np.bincount(place[len(one) :], minlength=len(tokens))
    return int(max(count_V[count_V > 0].sum(), -count_V[count_V < 0].sum()))
