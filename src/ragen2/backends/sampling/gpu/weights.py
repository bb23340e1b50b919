"""A model's weights as the GPU engine multiplies by them: joined where one product does for several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ragen2.backends.decoder import Block, Family, added_by_adapters, is_adapted, weight_of


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """One layer: joined projections in the engine's type; norms are the model's own tensors."""

    norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class EngineWeights:
    """Projections in the engine's type, cast from the learner's once an update; the rest is shared.

    Embeddings and norms are read from the learner's own memory. A matrix the engine needs in a lower
    precision, or beside another, has to exist once more; it is written in place, never moved.
    """

    def __init__(self, family: Family, dtype: torch.dtype, *, has_head: bool = True) -> None:
        self.family = family
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._adapted: list[tuple[torch.Tensor, Any]] = []
        self._dtype = dtype
        self.embed = family.embed.weight
        self.norm = family.norm.weight
        self.head = self._copied(family.head.weight) if has_head else family.head.weight
        self.blocks = [self._block(block) for block in family.blocks]
        self.version = -1

    @torch.no_grad()
    def refresh(self, version: int) -> bool:
        """Bring the engine's copies up to the learner's weights; True when they had changed."""
        if version == self.version:
            return False
        torch._foreach_copy_([own for own, _ in self._pairs], [src for _, src in self._pairs])
        for own, module in self._adapted:
            own.add_(added_by_adapters(module))
        self.version = version
        return True

    def _own(self, *modules: Any) -> torch.Tensor:
        """The matrices of ``modules`` below each other, with what adapters add."""
        joined = self._copied(*(weight_of(module) for module in modules))
        parts = torch.split(joined, [len(weight_of(module)) for module in modules])
        self._adapted += [
            (part, module)
            for part, module in zip(parts, modules, strict=True)
            if is_adapted(module)
        ]
        return joined

    def _copied(self, *sources: torch.Tensor) -> torch.Tensor:
        """One tensor of the engine that holds ``sources`` below each other."""
        rows = sum(len(source) for source in sources)
        shape = (rows, *sources[0].shape[1:])
        joined = torch.empty(shape, dtype=self._dtype, device=sources[0].device)
        parts = torch.split(joined, [len(source) for source in sources])
        self._pairs += [(a, source.detach()) for a, source in zip(parts, sources, strict=True)]
        return joined

    def _block(self, block: Block) -> BlockWeights:
        heads = (block.q, block.k, block.v)
        has_bias = block.q.bias is not None
        return BlockWeights(
            norm=block.norm.weight,
            qkv=self._own(*heads),
            qkv_bias=self._copied(*(module.bias for module in heads)) if has_bias else None,
            q_norm=_weight(block.q_norm),
            k_norm=_weight(block.k_norm),
            o=self._own(block.o),
            mlp_norm=block.mlp_norm.weight,
            gate_up=self._own(block.gate, block.up),
            down=self._own(block.down),
        )


def _weight(module: Any | None) -> torch.Tensor | None:
    return None if module is None else module.weight
