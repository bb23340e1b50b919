"""Samples as tensors, in micro-batches of a bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ragen2.backends.learner.packing import Packing
from ragen2.seeding import stream
from ragen2.types import FloatArray, IntArray, Sample


def random_parts(count: int, asked: int, seed: int, updates: int, epoch: int) -> list[list[int]]:
    """The policy's: ``asked`` parts of one size or two, drawn anew in each pass; no part is empty.

    ``updates`` is the number of optimiser steps before this pass.
    """
    if asked == 1:
        return [list(range(count))]
    order = stream(seed, "minibatches", updates, epoch).permutation(count)
    return [part.tolist() for part in np.array_split(order, min(asked, count))]


def even_parts(count: int, asked: int) -> list[list[int]]:
    """The critic's: every ``asked``-th sample, so that each part holds members of all groups."""
    parts = min(asked, count)
    return [list(range(part, count, parts)) for part in range(parts)]


@dataclass(slots=True)
class TokenBudget:
    """How many tokens a micro-batch may have: ``most``, and ``now`` no more than memory allows."""

    most: int
    now: int = 0
    _largest: int = 0
    """Tokens of the largest micro-batch of several samples."""

    def __post_init__(self) -> None:
        self.now = self.most

    def note(self, parts: Sequence[Sequence[int]], lengths: Sequence[int]) -> None:
        """Remember how samples were cut, each part a list of their numbers."""
        several = [sum(lengths[row] for row in part) for part in parts if len(part) > 1]
        self._largest = max(several, default=0)

    def halve(self) -> bool:
        """Cut the largest in two from now on; False when each sample is alone already."""
        if not self._largest:
            return False
        self.most = self.now = self._largest // 2
        return True


MAX_PADDING = {"cpu": 0.05, "cuda": 0.25}
"""Largest share of padding in a micro-batch of padded samples; a GPU pays for their number, too."""
MIN_SHARED = 16
"""Fewest first tokens that two samples share before one pass over them serves both."""


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Samples for one forward pass; suffix N counts the tokens that carry loss, sample after sample."""

    ids: torch.Tensor
    """One packed row, or one right-padded row per sample."""
    packing: Packing | None
    """None when the samples are padded."""
    mask: torch.Tensor | None
    """None when they are packed."""
    predictors_N: torch.Tensor
    """Index, in all rows joined, of the token before each one that carries loss."""
    targets_N: torch.Tensor
    old_logp_N: torch.Tensor
    advantages_N: torch.Tensor
    weights_N: torch.Tensor
    temperature: float
    values_N: torch.Tensor | None = None
    returns_N: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    """Of each token of ``ids``, where they are more than its index in its sample."""

    @classmethod
    def of(
        cls,
        samples: Sequence[Sample],
        weights: FloatArray,
        device: torch.device,
        *,
        is_packed: bool,
        shared: Sequence[tuple[int, int]] | None = None,
        positions: Sequence[IntArray] | None = None,
    ) -> Microbatch:
        """Join ``samples``; ``weights`` has one token weight per sample, ``shared`` is for packed ones.

        ``positions`` are those of each sample's tokens, axes x tokens.
        """
        begins = shared or [(0, 0)] * len(samples)
        lengths = [len(s.ids_T) - count for s, (_, count) in zip(samples, begins, strict=True)]
        width = max(lengths)
        starts = np.cumsum([0, *lengths[:-1]]) if is_packed else np.arange(len(lengths)) * width
        flat = np.zeros(sum(lengths) if is_packed else len(lengths) * width, dtype=np.int64)
        predictors = []
        for start, length, sample, (other, count) in zip(
            starts, lengths, samples, begins, strict=True
        ):
            flat[start : start + length] = sample.ids_T[count:]
            # A token of the shared beginning is predicted where the sample that is whole has it.
            before = np.flatnonzero(sample.loss_mask_T) - 1
            predictors.append(np.where(before < count, starts[other], start - count) + before)
        real = torch.arange(width) < torch.tensor(lengths)[:, None]
        targets = np.concatenate([sample.ids_T[sample.loss_mask_T] for sample in samples])
        counts = [len(each) for each in predictors]
        return cls(
            ids=torch.as_tensor(flat).view(1 if is_packed else len(lengths), -1).to(device),
            packing=Packing.of(lengths, device, begins) if is_packed else None,
            mask=None if is_packed else real.long().to(device),
            predictors_N=torch.as_tensor(np.concatenate(predictors)).to(device),
            targets_N=torch.as_tensor(targets).to(device),
            old_logp_N=_floats(samples, [s.old_logprobs_T for s in samples], device),
            advantages_N=_floats(samples, [s.advantages_T for s in samples], device),
            weights_N=torch.as_tensor(np.repeat(weights, counts), dtype=torch.float32).to(device),
            temperature=samples[0].temperature,
            values_N=_floats_if_there(samples, [s.values_T for s in samples], device),
            returns_N=_floats_if_there(samples, [s.returns_T for s in samples], device),
            positions=_side_by_side(positions, begins, is_packed).to(device) if positions else None,
        )


def _side_by_side(
    positions: Sequence[IntArray], begins: Sequence[tuple[int, int]], is_packed: bool
) -> torch.Tensor:
    """Axes x rows x tokens: one row of all, without what is shared, or a row each."""
    if is_packed:
        parts = [one[:, count:] for one, (_, count) in zip(positions, begins, strict=True)]
        return torch.as_tensor(np.concatenate(parts, axis=1))[:, None]
    width = max(one.shape[1] for one in positions)
    rows = [np.pad(one, ((0, 0), (0, width - one.shape[1]))) for one in positions]
    return torch.as_tensor(np.stack(rows, axis=1))


def packed_batches(lengths: Sequence[int], budget: int, at_once: int = 1) -> list[list[int]]:
    """Rows in their order, cut into like parts whose tokens stay inside ``budget``.

    Their number is a multiple of those run ``at_once``, but for what is not worth a second part.
    """
    whole = sum(lengths)
    count = at_once * -(-whole // (at_once * budget)) if whole > budget // 2 else 1
    batches: list[list[int]] = []
    done = total = 0
    for row, length in enumerate(lengths):
        is_due = done + length / 2 > len(batches) * whole / count
        if batches and total + length <= budget and not is_due:
            batches[-1].append(row)
            total += length
        else:
            batches.append([row])
            total = length
        done += length
    return batches


def shared_beginnings(samples: Sequence[Sample]) -> list[tuple[int, int]]:
    """For each sample, an earlier one that is whole in the row and how many first tokens they share.

    At least one token stays each sample's own, and few shared ones are not worth the joining.
    """
    found: list[tuple[int, int]] = []
    whole = 0
    for row, sample in enumerate(samples):
        count = min(_common(samples[whole].ids_T, sample.ids_T), len(sample.ids_T) - 1)
        if row == 0 or count < MIN_SHARED:
            whole, count = row, 0
        found.append((whole if count else 0, count))
    return found


def _common(one_T: IntArray, other_T: IntArray) -> int:
    """Length of the beginning that both have."""
    length = min(len(one_T), len(other_T))
    differs = np.flatnonzero(one_T[:length] != other_T[:length])
    return int(differs[0]) if len(differs) else length


def padded_batches(
    lengths: Sequence[int], budget: int, max_padding: float = MAX_PADDING["cpu"]
) -> list[list[int]]:
    """Rows of similar length, so that rows x longest stays inside ``budget`` with little padding."""
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    batches: list[list[int]] = []
    total = 0
    for row in order:
        total += lengths[row]
        whole = lengths[row] * (len(batches[-1]) + 1) if batches else 0
        if batches and whole <= budget and total >= (1.0 - max_padding) * whole:
            batches[-1].append(row)
        else:
            batches.append([row])
            total = lengths[row]
    return batches


def _floats(
    samples: Sequence[Sample], arrays: Sequence[FloatArray], device: torch.device
) -> torch.Tensor:
    """Values at the tokens that carry loss."""
    kept = [array[s.loss_mask_T] for s, array in zip(samples, arrays, strict=True)]
    return torch.as_tensor(np.concatenate(kept), dtype=torch.float32).to(device)


def _floats_if_there(
    samples: Sequence[Sample], arrays: Sequence[FloatArray | None], device: torch.device
) -> torch.Tensor | None:
    there = [array for array in arrays if array is not None]
    return _floats(samples, there, device) if len(there) == len(arrays) else None
