"""LoRA adapters as our own code multiplies by them: beside the matrices that they adapt, never merged.

A matrix W with adapters gives y = x W^T + (x A^T) (s B)^T. Merged into bfloat16, most of s B A would be lost:
numbers around W's 0.02 are 0.0001 apart there, and a step of training adds less. The sampler would then not
write with the policy that is trained, and merging and unmerging would drift. Merged into a copy of every
layer in float32, it would need twice the memory that the model has. Beside it, it costs two thin products.

Adapters of projections that read the same input are one: their A below each other, their B on a diagonal.

Suffixes: T tokens, I inputs, O outputs of all projections together, R ranks of all adapters together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ragen2.backends.device import float_product
from ragen2.backends.four_bits import FourBitLinear


@dataclass(frozen=True, slots=True)
class AdapterPart:
    """One adapter's trained matrices, and where its copies lie."""

    a: torch.Tensor
    b: torch.Tensor
    scaling: float
    outputs: slice
    ranks: slice


class JoinedAdapter:
    """What LoRA adds to projections that are one product; ``refresh`` after the adapters have changed."""

    def __init__(self, modules: Sequence[Any], dtype: torch.dtype) -> None:
        self.parts: list[AdapterPart] = []
        outputs = ranks = 0
        for module in modules:
            end = outputs + int(module.out_features)
            for name in module.active_adapters if is_adapted(module) else ():
                a, b = module.lora_A[name].weight, module.lora_B[name].weight
                place = slice(outputs, end), slice(ranks, ranks + len(a))
                self.parts.append(AdapterPart(a, b, float(module.scaling[name]), *place))
                ranks += len(a)
            outputs = end
        like = self.parts[0].a.detach()
        self.a_RI = like.new_zeros((ranks, like.shape[1]), dtype=dtype)
        self.b_OR = like.new_zeros((outputs, ranks), dtype=dtype)

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The trained matrices, in the order of ``gradients``."""
        return [weight for part in self.parts for weight in (part.a, part.b)]

    @torch.no_grad()
    def refresh(self) -> None:
        """Bring the copies up to the trained matrices."""
        for part in self.parts:
            self.a_RI[part.ranks] = part.a
            self.b_OR[part.outputs, part.ranks] = part.b * part.scaling

    def gradients(self, grad_TO: torch.Tensor, rows_TI: torch.Tensor) -> list[torch.Tensor]:
        """Of ``parameters``, in float32: d A = (d y s B)^T x and d B = s d y^T (x A^T)."""
        inner_TR, pull_TR = rows_TI @ self.a_RI.T, grad_TO @ self.b_OR
        found = []
        for part in self.parts:
            found.append(float_product(pull_TR[:, part.ranks].T, rows_TI))
            b = float_product(grad_TO[:, part.outputs].T, inner_TR[:, part.ranks])
            found.append(b.mul_(part.scaling))
        return found


def adapt(out_TO: torch.Tensor, rows_TI: torch.Tensor, adapter: JoinedAdapter | None) -> None:
    """Add what an adapter adds, (x A^T) (s B)^T, to the projections of ``rows_TI``, in place."""
    if adapter is not None:
        out_TO.addmm_(rows_TI @ adapter.a_RI.T, adapter.b_OR.T)


def pull_back(
    grad_TO: torch.Tensor, matrix_OI: torch.Tensor, adapter: JoinedAdapter | None
) -> torch.Tensor:
    """The gradient of the input of a product: d y W, and d y (s B) A where there is an adapter."""
    found_TI = grad_TO @ matrix_OI
    return found_TI if adapter is None else found_TI.addmm_(grad_TO @ adapter.b_OR, adapter.a_RI)


def is_adapted(module: Any) -> bool:
    """Whether LoRA adds something to this projection."""
    return hasattr(module, "get_delta_weight")


def named_weights(network: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight once, under its name in a Hugging Face checkpoint, with what LoRA adds to it.

    Weights that are tied come under the first of their names. What is added is added to a copy, in float32:
    merging in place and back would round the trained weights each time.
    """
    inner = network.get_base_model() if hasattr(network, "get_base_model") else network
    adapted = {
        f"{name}.base_layer.weight": module
        for name, module in inner.named_modules()
        if is_adapted(module) and hasattr(module, "base_layer")
    }
    seen: set[int] = set()
    for name, weight in inner.state_dict(keep_vars=True).items():
        if id(weight) in seen or ".lora_" in name or name.endswith(".base_layer.scales"):
            continue
        seen.add(id(weight))
        value = weight.detach()
        if name in adapted:
            module = adapted[name]
            if isinstance(module.base_layer, FourBitLinear):
                value = module.base_layer.matrix.unpack()
            deltas = [module.get_delta_weight(one).detach() for one in module.active_adapters]
            value = value + torch.stack(deltas).sum(0)
        yield name.replace(".base_layer.", "."), value


def save_merged(network: Any, folder: Path) -> None:
    """Write a model under LoRA as one without, in float32, so that nothing of what adapters add is lost.

    Matrices are merged one by one and leave the device, which need not hold a second model.
    """
    inner = network.get_base_model()
    state = {
        name: value.to("cpu", torch.float32 if value.is_floating_point() else value.dtype)
        for name, value in named_weights(network)
    }
    inner.save_pretrained(folder, state_dict=state)
    inner.config.dtype = "float32"  # save_pretrained says what is in memory, not what it was given
    inner.config.save_pretrained(folder)
