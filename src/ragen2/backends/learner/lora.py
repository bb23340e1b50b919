"""Low-rank adapters: the only weights trained when a run asks for them."""

from __future__ import annotations

from typing import Any

import torch

from ragen2.backends.settings import ModelSettings
from ragen2.errors import DependencyError
from ragen2.seeding import stream_key


def add_lora(network: Any, model: ModelSettings, seed: int) -> Any:
    """Wrap the model so that only low-rank adapters of its linear layers are trained."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise DependencyError("LoRA needs peft; pip install 'ragen2[lora]'") from error
    settings = LoraConfig(
        r=model.lora_rank,
        lora_alpha=model.lora_alpha,
        target_modules=targets(network, model),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(stream_key(seed, "lora") % 2**63)
        return get_peft_model(network, settings)


def targets(network: Any, model: ModelSettings) -> str | list[str]:
    """Which layers get adapters: all linear ones, or those of the language model if the rest is frozen."""
    decoder = network.get_decoder()
    if model.vision == "trained" or not reads_images(network):
        return "all-linear"
    start = next(name for name, module in network.named_modules() if module is decoder)
    return [
        f"{start}.{name}"
        for name, module in decoder.named_modules()
        if isinstance(module, torch.nn.Linear)
    ]


def reads_images(network: Any) -> bool:
    """Whether a model has anything before its language model that images go through."""
    return hasattr(network, "get_image_features") and hasattr(network.config, "vision_config")


def base_of(network: Any) -> Any:
    """The Hugging Face model inside a PEFT wrapper, or the model itself."""
    return network.get_base_model() if hasattr(network, "get_base_model") else network
