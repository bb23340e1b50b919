"""Score pairs with a causal LM: equal contexts are run once, equal continuations scored once.

Two methods give the same numbers. Trees (``tree.py``) need few passes, but an attention that honours their
mask. Copies of the context's cache, one for each continuation, are slower and ask nothing of the attention:
they are right for sliding windows, recurrent layers and positions that are read off a plain mask.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ragen2.backends.decoder import PositionLookup
from ragen2.backends.device import free_memory
from ragen2.backends.learner.logprobs import SplitModel, target_logprobs
from ragen2.backends.memory import fitting, scoring_bytes, until_it_fits
from ragen2.backends.scoring.tree import ScoringJob, score_by_trees
from ragen2.policy import Pair
from ragen2.progress import report
from ragen2.types import FloatArray, IntArray

logger = logging.getLogger(__name__)

ScoringMethod = Callable[[SplitModel, Sequence[ScoringJob], float, int], list[list[FloatArray]]]
UNUSABLE = (TypeError, ValueError, RuntimeError, IndexError, AttributeError)
"""What architectures raise when a mask has four dimensions and theirs must have two."""


ROUNDING = 0.01
"""Largest error, as a share of what other contexts change. Rounding was seen to reach 1e-4 of it in a
real model; a token that sees a wrong one is off by about as much as other contexts change."""
LOW_ROUNDING = 0.25
"""The same where matrices are stored in bfloat16."""


class PairScorer:
    """Scores pairs by the quickest method that this model gives right numbers with."""

    def __init__(self, split_model: SplitModel, max_tokens: int) -> None:
        self.split_model = split_model
        self.max_tokens = max_tokens
        self._method: ScoringMethod | None = None

    def method(self) -> ScoringMethod:
        """Trees where the model honours them, copies of the cache elsewhere; found out once."""
        if self._method is None:
            self._method = score_by_trees if honours_trees(self.split_model) else score_by_copies
        return self._method

    @torch.no_grad()
    def score(self, pairs: Sequence[Pair], temperature: float) -> list[FloatArray]:
        """Log-prob of every continuation token, one array per pair."""
        if not pairs:
            return []
        jobs, where = _jobs([self._with_image_ids(pair) for pair in pairs])

        def run() -> list[list[FloatArray]]:
            return self.method()(self.split_model, jobs, temperature, self._tokens_at_once())

        scores = until_it_fits(run, self._shrink)
        return [scores[job][member] for job, member in where]

    def _tokens_at_once(self) -> int:
        """As many as asked for, or as there is memory for."""
        device = self.split_model.device
        if device.type != "cuda":
            return self.max_tokens
        size = scoring_bytes(self.split_model.network.config.get_text_config())
        return fitting(self.max_tokens, size, free_memory(device))

    def _shrink(self) -> str:
        """Fewer tokens at once, once memory has run out; nothing if it was one."""
        if self.max_tokens == 1:
            return ""
        self.max_tokens = self._tokens_at_once() // 2 or 1
        return f"up to {self.max_tokens:,} tokens scored at once"

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
    tokens = [np.array(ids) for ids in ([4, 5], [4, 6, 7], [8], [4, 6, 7, 3])]
    jobs = [ScoringJob(np.array(ids), tuple(tokens)) for ids in ([1, 2, 3], [3])]
    try:
        with torch.no_grad(), split_model.own_precision():
            plain = score_by_copies(split_model, jobs, 1.0, max_tokens=64)
            trees = [score_by_trees(split_model, jobs, 1.0, 64, width=width) for width in (8, 4)]
    except torch.OutOfMemoryError:
        raise
    except UNUSABLE as error:
        logger.debug("no trees for %s: %s", type(split_model.network).__name__, error)
        return False
    effect = _largest_gap(plain[:1], plain[1:])  # of other tokens in the context: what a mask hides
    near = LOW_ROUNDING if split_model.dtype is torch.bfloat16 else ROUNDING
    return max(_largest_gap(found, plain) for found in trees) <= near * effect


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


def _jobs(pairs: Sequence[Pair]) -> tuple[list[ScoringJob], list[tuple[int, int]]]:
    """Contexts with their distinct continuations, and where each pair's score will be found."""
    contexts: dict[bytes, int] = {}
    continuations: dict[bytes, int] = {}
    members: list[dict[int, int]] = []
    first: list[int] = []
    texts: list[int] = []
    where: list[tuple[int, int]] = []
    for index, pair in enumerate(pairs):
        if not len(pair.context_ids_T) or not len(pair.continuation_ids_T):
            raise ValueError(f"pair {index} has an empty context or continuation")
        job = contexts.setdefault(pair.context_ids_T.tobytes(), len(contexts))
        if job == len(members):
            members.append({})
            first.append(index)
        known_as = continuations.setdefault(pair.continuation_ids_T.tobytes(), len(continuations))
        if known_as == len(texts):
            texts.append(index)
        where.append((job, members[job].setdefault(known_as, len(members[job]))))
    return [
        ScoringJob(
            pairs[index].context_ids_T,
            tuple(pairs[texts[one]].continuation_ids_T for one in known),
        )
        for index, known in zip(first, members, strict=True)
    ], where


def score_by_copies(
    split_model: SplitModel, jobs: Sequence[ScoringJob], temperature: float, max_tokens: int
) -> list[list[FloatArray]]:
    """Log-prob of every token of every continuation, job by job; contexts one after another."""
    found = []
    for number, job in enumerate(jobs, 1):
        found.append(_score_job(split_model, job, temperature, max_tokens))
        report("scoring", number, len(jobs))
    return found


def _score_job(
    split_model: SplitModel, job: ScoringJob, temperature: float, max_tokens: int
) -> list[FloatArray]:
    context = torch.tensor(job.context_ids_T, device=split_model.device)[None]
    places = split_model.places([job.context_ids_T]) if split_model.embedder else None
    hidden, head, cache = split_model(
        context, torch.ones_like(context), use_cache=True, **_at(places, context, 0)
    )
    found: list[FloatArray] = [np.empty(0)] * len(job.continuations)
    for chunk in _chunks(job, max_tokens):
        continuations = [job.continuations[i] for i in chunk]
        start = _Start(context.shape[1], hidden[:, -1], cache, places)
        rows = _continue(split_model, start, continuations)
        targets = torch.as_tensor(np.concatenate(continuations), device=split_model.device)
        logp = target_logprobs(rows, targets, head, temperature).double().cpu().numpy()
        bounds = np.cumsum([len(ids) for ids in continuations])[:-1]
        for i, values in zip(chunk, np.split(logp, bounds), strict=True):
            found[i] = values
    return found


class _Start(NamedTuple):
    """A context that has run: what its continuations go on from."""

    length: int
    last_row: torch.Tensor
    cache: Any
    places: PositionLookup | None


def _at(places: PositionLookup | None, ids: torch.Tensor, first: int) -> dict[str, torch.Tensor]:
    """Positions from ``first`` on, where they are not what any model reads off the mask."""
    if places is None:
        return {}
    slots = torch.arange(first, first + ids.shape[1], device=ids.device).expand_as(ids)
    return {"position_ids": places(slots, [0] * len(ids))}


def _continue(
    split_model: SplitModel, start: _Start, continuations: list[IntArray]
) -> torch.Tensor:
    """Rows that predict each continuation token, all continuations joined."""
    length = start.length
    lengths = [len(ids) for ids in continuations]
    width = max(lengths)
    ids = torch.zeros((len(lengths), width), dtype=torch.long)
    mask = torch.zeros((len(lengths), length + width), dtype=torch.long)
    mask[:, :length] = 1
    for row, tokens in enumerate(continuations):
        ids[row, : len(tokens)] = torch.as_tensor(tokens)
        mask[row, length : length + len(tokens)] = 1
    own = copy.deepcopy(start.cache)
    own.batch_repeat_interleave(len(lengths))
    ids = ids.to(split_model.device)
    hidden, _, _ = split_model(
        ids,
        mask.to(split_model.device),
        past_key_values=own,
        use_cache=True,
        **_at(start.places, ids, length),
    )
    first = start.last_row.expand(len(lengths), 1, -1)
    shifted = torch.cat([first, hidden[:, :-1]], dim=1)
    return torch.cat([shifted[row, :length] for row, length in enumerate(lengths)])


def _chunks(job: ScoringJob, max_tokens: int) -> list[list[int]]:
    """Rows, short ones first, so that padded contexts and continuations stay inside the budget."""
    lengths = [len(ids) for ids in job.continuations]
    chunks: list[list[int]] = [[]]
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        width = len(job.context_ids_T) + lengths[index]
        if chunks[-1] and width * (len(chunks[-1]) + 1) > max_tokens:
            chunks.append([])
        chunks[-1].append(index)
    return chunks
