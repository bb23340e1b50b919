"""How weights that are not trained are held: matrices in the type they are multiplied in, and once for all.

A trained weight is float32, because most of its steps are smaller than bfloat16 can add. A frozen one is only
read, and products in bfloat16 round it anyway: stored rounded, it gives the same products from half the
memory, and no copy of it has to be made for them. Norms and biases are small and stay float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch


def hold_frozen(network: Any, dtype: torch.dtype) -> None:
    """Store the frozen matrices of a language model in ``dtype``, everything else that it has in float32.

    Only linear layers and embeddings are lowered: other modules may mix types in ways that fail. From then on
    the model is run under autocast. Embeddings are read out in float32, so the residual stream stays so.
    """
    lowered = {id(module.weight) for module in _matrix_modules(network)}
    for weight in filter(torch.is_floating_point, network.parameters()):
        is_low = id(weight) in lowered and not weight.requires_grad
        weight.data = weight.data.to(dtype if is_low else torch.float32)
    for module in _matrix_modules(network):
        is_known = _widen in module._forward_hooks.values()
        if isinstance(module, torch.nn.Embedding) and not is_known:
            module.register_forward_hook(_widen)
    torch.cuda.empty_cache()  # of what was wider, where that was on a GPU


def _matrix_modules(network: Any) -> Iterator[Any]:
    """Linear layers and embeddings that text goes through."""
    head = network.get_output_embeddings()
    for module in (*network.get_decoder().modules(), *([] if head is None else [head])):
        if type(module) in (torch.nn.Linear, torch.nn.Embedding):
            yield module


def _widen(module: Any, given: Any, out: torch.Tensor) -> torch.Tensor:
    del module, given
    return out.float()


@torch.no_grad()
def in_one_piece(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Frozen matrices below each other, as one product reads them; they become views of it.

    A second call finds them so: the sampler's and the learner's are then the same memory as the model's.
    """
    first = weights[0].detach()
    if len(weights) == 1:
        return first
    size = (sum(len(weight) for weight in weights), first.shape[1])
    ends = [first.storage_offset()]
    for weight in weights:
        ends.append(ends[-1] + weight.numel())
    storage = first.untyped_storage().data_ptr()
    if all(
        weight.is_contiguous()
        and weight.untyped_storage().data_ptr() == storage
        and weight.storage_offset() == start
        for weight, start in zip(weights, ends, strict=False)
    ):
        return first.as_strided(size, first.stride(), ends[0])
    joined = torch.cat([weight.detach() for weight in weights])
    for weight, part in zip(weights, torch.split(joined, list(map(len, weights))), strict=True):
        weight.data = part
    if joined.is_cuda:
        torch.cuda.empty_cache()  # pieces of what was there before are too small for the next one
    return joined
