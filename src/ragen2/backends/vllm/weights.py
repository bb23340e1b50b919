"""The learner's weights as another engine takes them: checkpoint names, adapters merged in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ragen2.backends.device import disk_errors
from ragen2.backends.sampling.kv_cache import weights_version

WEIGHTS_FILE = "model.safetensors"


def named_weights(network: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight once, under its name in a Hugging Face checkpoint.

    Weights that are tied come under the first of their names. LoRA adapters are added to a copy of
    the layer they adapt: merging in place and back would round the trained weights at every push.
    """
    inner = network.get_base_model() if hasattr(network, "get_base_model") else network
    adapted = {
        f"{name}.base_layer.weight": module
        for name, module in inner.named_modules()
        if hasattr(module, "get_delta_weight") and hasattr(module, "base_layer")
    }
    seen: set[int] = set()
    for name, weight in inner.state_dict(keep_vars=True).items():
        if id(weight) in seen or ".lora_" in name:
            continue
        seen.add(id(weight))
        value = weight.detach()
        if name in adapted:
            module = adapted[name]
            deltas = [module.get_delta_weight(one).detach() for one in module.active_adapters]
            value = value + torch.stack(deltas).sum(0)
        yield name.replace(".base_layer.", "."), value


def save_weights(network: Any, folder: Path) -> None:
    """Write all weights into ``folder`` as one safetensors file."""
    tensors = {name: value.cpu().contiguous() for name, value in named_weights(network)}
    with disk_errors():
        save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})


class WeightSync:
    """Whether another engine has the learner's newest weights; at first it has not."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self._pushed: int | None = None

    @property
    def is_behind(self) -> bool:
        """Whether the engine has older weights."""
        return self._pushed != weights_version(self._network)

    def mark_pushed(self) -> None:
        """The engine has the weights as they are now."""
        self._pushed = weights_version(self._network)
