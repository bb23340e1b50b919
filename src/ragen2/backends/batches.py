"""Samples as tensors, in micro-batches of a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ragen2.types import FloatArray, Sample


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples as right-padded tensors; suffix N counts loss positions in row-major order."""

    ids: torch.Tensor
    mask: torch.Tensor
    loss_mask: torch.Tensor
    targets_N: torch.Tensor
    old_logp_N: torch.Tensor
    advantages_N: torch.Tensor
    weights_N: torch.Tensor
    temperature: float
    values_N: torch.Tensor | None = None
    returns_N: torch.Tensor | None = None

    @classmethod
    def of(cls, samples: Sequence[Sample], weights: FloatArray, device: torch.device) -> Batch:
        """Pad ``samples``; ``weights`` has one token weight a sample."""
        width = max(len(sample.ids_T) for sample in samples)
        ids = np.zeros((len(samples), width), dtype=np.int64)
        mask = np.zeros((len(samples), width), dtype=np.int64)
        loss_mask = np.zeros((len(samples), width), dtype=np.bool_)
        for row, sample in enumerate(samples):
            length = len(sample.ids_T)
            ids[row, :length] = sample.ids_T
            mask[row, :length] = 1
            loss_mask[row, :length] = sample.loss_mask_T
        chosen = [sample.loss_mask_T for sample in samples]

        def joined(arrays: list[FloatArray]) -> torch.Tensor:
            kept = [array[where] for array, where in zip(arrays, chosen, strict=True)]
            return torch.as_tensor(np.concatenate(kept), dtype=torch.float32, device=device)

        per_token = [np.full(len(s.ids_T), w) for s, w in zip(samples, weights, strict=True)]
        return cls(
            ids=torch.as_tensor(ids, device=device),
            mask=torch.as_tensor(mask, device=device),
            loss_mask=torch.as_tensor(loss_mask, device=device),
            targets_N=torch.as_tensor(ids[loss_mask], device=device),
            old_logp_N=joined([sample.old_logprobs_T for sample in samples]),
            advantages_N=joined([sample.advantages_T for sample in samples]),
            weights_N=joined(per_token),
            temperature=samples[0].temperature,
            values_N=_joined_if_there([s.values_T for s in samples], joined),
            returns_N=_joined_if_there([s.returns_T for s in samples], joined),
        )


def micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Group rows of similar length so that rows x longest stays inside ``budget`` tokens."""
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    batches: list[list[int]] = []
    for row in order:
        if batches and lengths[row] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _joined_if_there(
    arrays: Sequence[FloatArray | None], joined: Callable[[list[FloatArray]], torch.Tensor]
) -> torch.Tensor | None:
    there = [array for array in arrays if array is not None]
    return joined(there) if len(there) == len(arrays) else None
