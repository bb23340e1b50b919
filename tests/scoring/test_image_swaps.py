"""Exchanged images: what is scored is exactly what was asked for, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ragen2.policy import Pair
from ragen2.scoring import Trace, cross_score
from ragen2.scoring.exchanges import alike, exchange_last_image, swap_matrices
from ragen2.seeding import stream
from ragen2.types import FloatArray, Image

MARK = 99
"""Stands for an image in the ids."""


class HashScorer:
    """Log-probs that depend on words, images and continuation; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Pair] = []

    def score(self, pairs: Sequence[Pair], temperature: float = 1.0) -> list[FloatArray]:
        self.asked += pairs
        return [self.logp(pair) / temperature for pair in pairs]

    def logp(self, pair: Pair) -> FloatArray:
        images = [image.digest for image in pair.images]
        read = str([pair.context_ids_T.tolist(), images, pair.continuation_ids_T.tolist()])
        return stream(read).uniform(-3.0, -0.1, len(pair.continuation_ids_T))


def image(shade: int, size: tuple[int, int] = (4, 4)) -> Image:
    return Image(np.full((*size, 3), shade, np.uint8))


def trace(words: int, *images: Image, reasoning: Sequence[int] = (7, 8)) -> Trace:
    ids = [MARK] * len(images) + [words]
    return Trace(np.array(ids), np.array(reasoning), images=images)


TRACES = [
    trace(1, image(1), reasoning=(5,)),
    trace(2, image(2), reasoning=(6, 7)),
    trace(1, image(1), reasoning=(5, 5, 5)),
    trace(3, image(1), reasoning=(5,)),
]
"""Three prompts: the first and the third share their image, no two share their words."""


def by_hand(words: int, shown: Image, reasoning: Trace) -> float:
    pair = Pair(trace(words, shown).prompt_ids_T, reasoning.reasoning_ids_T, (shown,))
    return float(HashScorer().logp(pair).sum())


def test_each_matrix_exchanges_what_its_name_says():
    found = swap_matrices(TRACES, HashScorer())
    prompts = [(1, image(1)), (2, image(2)), (3, image(1))]
    for n, one in enumerate(TRACES):
        words, own = int(one.prompt_ids_T[-1]), one.images[0]
        for p, (other_words, other) in enumerate(prompts):
            assert found.whole.logp_NP[n, p] == by_hand(other_words, other, one)
            assert found.image.logp_NP[n, p] == by_hand(words, other, one)
            assert found.text.logp_NP[n, p] == by_hand(other_words, own, one)
    for matrix in (found.whole, found.image, found.text):
        assert matrix.owner_N.tolist() == [0, 1, 0, 2]
        assert matrix.length_N.tolist() == [1, 2, 3, 1]


def test_the_whole_matrix_is_the_one_of_cross_scoring():
    found = swap_matrices(TRACES, HashScorer(), 0.5).whole
    assert np.array_equal(found.logp_NP, cross_score(TRACES, HashScorer(), 0.5).logp_NP)


def test_equal_pairs_are_scored_once():
    scorer = HashScorer()
    swap_matrices(TRACES, scorer)
    asked = {
        (pair.context_ids_T.tobytes(), pair.images, pair.continuation_ids_T.tobytes())
        for pair in scorer.asked
    }
    assert len(asked) == len(scorer.asked)
    swapped = sum(pair.images == (image(2),) for pair in scorer.asked)
    assert 0 < swapped < len(scorer.asked)


def test_one_prompt_has_nothing_to_be_exchanged_with():
    alone = [trace(1, image(1)), trace(1, image(1), reasoning=(5,))]
    assert swap_matrices(alone, HashScorer()) is None
    assert exchange_last_image(alone, HashScorer(), swaps=1, rng=stream("x")) is None


def test_only_the_last_image_is_exchanged_and_never_for_itself():
    shown = [(image(9), image(n)) for n in range(5)]
    traces = [trace(1, *images, reasoning=(n,)) for n, images in enumerate(shown)]
    scorer = HashScorer()
    found = exchange_last_image(traces, scorer, swaps=3, rng=stream("x"))
    own, swapped = scorer.asked[:5], scorer.asked[5:]
    assert [pair.images for pair in own] == shown
    assert len(swapped) == 15
    for place, pair in enumerate(swapped):
        one = traces[place // 3]
        assert pair.images[0] == image(9)
        assert pair.images[1] in {image(n) for n in range(5)} - {one.images[1]}
        assert np.array_equal(pair.context_ids_T, one.prompt_ids_T)
        assert np.array_equal(pair.continuation_ids_T, one.reasoning_ids_T)
        assert found.swapped_NS[place // 3, place % 3] == scorer.logp(pair).sum()
    for row in range(5):
        assert len({pair.images for pair in swapped[3 * row : 3 * row + 3]}) == 3
    assert found.own_N.tolist() == [scorer.logp(pair).sum() for pair in own]
    assert found.owner_N.tolist() == list(range(5))


def test_there_are_no_more_exchanges_than_other_images():
    found = exchange_last_image(TRACES, HashScorer(), swaps=5, rng=stream("x"))
    assert found.swapped_NS.shape == (4, 1)
    assert found.owner_N.tolist() == [0, 1, 0, 0]
    assert found.length_N.tolist() == [1, 2, 3, 1]


def test_images_are_exchanged_among_those_of_the_commonest_size():
    small = [trace(n, image(n)) for n in range(3)]
    wide = [trace(n, image(n, (4, 8))) for n in range(4)]
    text = [trace(n) for n in range(9)]
    assert alike([*small, *text, *wide]) == wide
    assert alike(text) == []
    two = [trace(1, image(1), image(2))]
    assert alike([*two, *small]) == small
