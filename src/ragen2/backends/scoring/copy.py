"""Score continuations with one copy of the context's cache for each.

Slower than trees, but asks nothing of the attention: it is right for sliding windows, recurrent
layers and positions that are read off a plain mask.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ragen2.backends.learner.logprobs import SplitModel, target_logprobs
from ragen2.backends.scoring.tree import Job
from ragen2.backends.vision.embedding import PositionLookup
from ragen2.types import FloatArray, IntArray


def score_by_copies(
    split_model: SplitModel, jobs: Sequence[Job], temperature: float, max_tokens: int
) -> list[list[FloatArray]]:
    """Log-prob of every token of every continuation, job by job; contexts one after another."""
    return [_score_job(split_model, job, temperature, max_tokens) for job in jobs]


def _score_job(
    split_model: SplitModel, job: Job, temperature: float, max_tokens: int
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
    """A context that was read: what its continuations go on from."""

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


def _chunks(job: Job, max_tokens: int) -> list[list[int]]:
    """Rows, short ones first, so that padded contexts and continuations stay inside the budget."""
    lengths = [len(ids) for ids in job.continuations]
    chunks: list[list[int]] = [[]]
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        width = len(job.context_ids_T) + lengths[index]
        if chunks[-1] and width * (len(chunks[-1]) + 1) > max_tokens:
            chunks.append([])
        chunks[-1].append(index)
    return chunks
