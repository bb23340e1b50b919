"""Score pairs with a causal LM: equal contexts are read once, equal continuations scored once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ragen2.backends.learner.logprobs import SplitModel
from ragen2.backends.scoring.copy import score_by_copies
from ragen2.backends.scoring.tree import Job, score_by_trees
from ragen2.policy import Pair
from ragen2.types import FloatArray

logger = logging.getLogger(__name__)

Way = Callable[[SplitModel, Sequence[Job], float, int], list[list[FloatArray]]]
UNUSABLE = (TypeError, ValueError, RuntimeError, IndexError, AttributeError)
"""What architectures raise when a mask has four dimensions and theirs must have two."""


ROUNDING = 0.01
"""Largest error, as a share of what other contexts change. Rounding was seen to reach 1e-4 of it in a
real model; a token that sees a wrong one is off by about as much as other contexts change."""


class PairScorer:
    """Scores pairs in the quickest way that this model gives right numbers with."""

    def __init__(self, split_model: SplitModel, max_tokens: int) -> None:
        self.split_model = split_model
        self.max_tokens = max_tokens
        self._way: Way | None = None

    def try_out(self) -> Way:
        """Trees where the model honours them, copies of the cache elsewhere; found out once."""
        if self._way is None:
            self._way = score_by_trees if honours_trees(self.split_model) else score_by_copies
        return self._way

    @torch.no_grad()
    def score(self, pairs: Sequence[Pair], temperature: float) -> list[FloatArray]:
        """Log-prob of every continuation token, one array a pair."""
        if not pairs:
            return []
        jobs, places = _jobs([self._with_image_ids(pair) for pair in pairs])
        scores = self.try_out()(self.split_model, jobs, temperature, self.max_tokens)
        return [scores[job][member] for job, member in places]

    def _with_image_ids(self, pair: Pair) -> Pair:
        if not pair.images:
            return pair
        return Pair(
            self.split_model.with_image_ids(pair.context_ids_T, pair.images),
            pair.continuation_ids_T,
            pair.images,
        )


def honours_trees(split_model: SplitModel) -> bool:
    """Whether tree masks give this model's own numbers, on a small example of every case."""
    config = split_model.network.config.get_text_config()
    layers = getattr(config, "layer_types", None) or []
    if any(layer != "full_attention" for layer in layers) or _has_window(config, layers):
        return False
    if getattr(config, "_attn_implementation", None) not in {"sdpa", "eager"}:
        return False
    words = [np.array(ids) for ids in ([4, 5], [4, 6, 7], [8], [4, 6, 7, 3])]
    jobs = [Job(np.array(ids), tuple(words)) for ids in ([1, 2, 3], [3])]
    try:
        with torch.no_grad(), torch.autocast(split_model.device.type, enabled=False):
            plain = score_by_copies(split_model, jobs, 1.0, max_tokens=64)
            trees = [score_by_trees(split_model, jobs, 1.0, 64, width=width) for width in (8, 4)]
    except UNUSABLE as error:
        logger.debug("no trees for %s: %s", type(split_model.network).__name__, error)
        return False
    effect = _largest_gap(plain[:1], plain[1:])  # of other words in the context: what a mask hides
    return max(_largest_gap(found, plain) for found in trees) <= ROUNDING * effect


def _largest_gap(
    some: Sequence[Sequence[FloatArray]], others: Sequence[Sequence[FloatArray]]
) -> float:
    return max(
        float(np.abs(one - other).max())
        for job, same in zip(some, others, strict=True)
        for one, other in zip(job, same, strict=True)
    )


def _has_window(config: object, layers: Sequence[str]) -> bool:
    """Without a list of layer types, a window setting is taken to hold for all layers."""
    return not layers and getattr(config, "sliding_window", None) is not None


def _jobs(pairs: Sequence[Pair]) -> tuple[list[Job], list[tuple[int, int]]]:
    """Contexts with their distinct continuations, and where each pair's score will be found."""
    contexts: dict[bytes, int] = {}
    words: dict[bytes, int] = {}
    members: list[dict[int, int]] = []
    first: list[int] = []
    texts: list[int] = []
    places: list[tuple[int, int]] = []
    for index, pair in enumerate(pairs):
        if not len(pair.context_ids_T) or not len(pair.continuation_ids_T):
            raise ValueError(f"pair {index} has an empty context or continuation")
        job = contexts.setdefault(pair.context_ids_T.tobytes(), len(contexts))
        if job == len(members):
            members.append({})
            first.append(index)
        word = words.setdefault(pair.continuation_ids_T.tobytes(), len(words))
        if word == len(texts):
            texts.append(index)
        places.append((job, members[job].setdefault(word, len(members[job]))))
    return [
        Job(
            pairs[index].context_ids_T,
            tuple(pairs[texts[word]].continuation_ids_T for word in known),
        )
        for index, known in zip(first, members, strict=True)
    ], places
