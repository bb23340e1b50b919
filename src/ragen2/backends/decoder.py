"""Which models the engines can run themselves, and where their weights are.

The Llama, Qwen2 and Qwen3 families are the same network up to biases and norms of heads. Anything
else, and any setting of these that would change the mathematics, is left to Hugging Face's own code.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from transformers.models.llama.modeling_llama import LlamaForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

FAMILIES = (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
ROTARY = ("default", "linear", "llama3")
"""Rotary embeddings whose frequencies do not depend on the length of the text."""
SMALLEST_HEAD = 32
"""Our kernels multiply half a head at a time, and Triton multiplies no fewer than 16 numbers."""


@dataclass(frozen=True, slots=True)
class Block:
    """The modules of one layer."""

    norm: Any
    q: Any
    k: Any
    v: Any
    q_norm: Any | None
    k_norm: Any | None
    o: Any
    mlp_norm: Any
    gate: Any
    up: Any
    down: Any


@dataclass(frozen=True, slots=True)
class Family:
    """A model's modules in the order they run, and the numbers of its shape."""

    network: Any
    embed: Any
    blocks: tuple[Block, ...]
    norm: Any
    head: Any
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    inv_freq: torch.Tensor
    attention_scaling: float

    @property
    def vocabulary(self) -> int:
        """Rows of the output head."""
        return int(self.head.weight.shape[0])

    @property
    def kernel_problem(self) -> str | None:
        """Why our GPU kernels cannot run this model, if so."""
        if find_spec("triton") is None:
            return "Triton is not installed"
        if self.head_dim & (self.head_dim - 1):
            return f"heads are {self.head_dim} wide, and our kernels count in powers of two"
        if self.head_dim < SMALLEST_HEAD:
            return f"heads are {self.head_dim} wide, and our kernels need {SMALLEST_HEAD}"
        return None

    def rotary(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of positions 0 to ``length``, half a head wide, in float32."""
        positions = torch.arange(length, dtype=torch.float32, device=self.inv_freq.device)
        angles = positions[:, None] * self.inv_freq.float()[None, :]
        return angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling


def read_family(network: Any, *, adapters: bool = False) -> Family | str:
    """The model taken apart, or why it has to be run by Hugging Face's code.

    With ``adapters``, the projections of a model under LoRA may be adapted modules: the caller reads
    them with ``weight_of``.
    """
    if adapters and hasattr(network, "get_base_model"):
        network = network.get_base_model()
    if type(network) not in FAMILIES:
        return f"{type(network).__name__} is not of the Llama, Qwen2 or Qwen3 family"
    config = network.config
    rotary = network.model.rotary_emb
    reasons = {
        f"rotary embedding {rotary.rope_type}": rotary.rope_type not in ROTARY,
        "a sliding window": any(
            kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()
        ),
        f"activation {config.hidden_act}": config.hidden_act not in {"silu", "swish"},
        "a bias in the MLP": bool(getattr(config, "mlp_bias", False)),
        "a bias after attention": network.model.layers[0].self_attn.o_proj.bias is not None,
        "an output bias": network.lm_head.bias is not None,
        "an adapted head or embedding": type(network.lm_head) is not torch.nn.Linear
        or type(network.model.embed_tokens) is not torch.nn.Embedding,
        "adapted or quantised layers": any(
            not _is_plain(module, adapters=adapters)
            for layer in network.model.layers
            for module in (*layer.self_attn.children(), *layer.mlp.children())
            if hasattr(module, "in_features")
        ),
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        return f"the model has {' and '.join(found)}"
    blocks = tuple(_block(layer) for layer in network.model.layers)
    return Family(
        network=network,
        embed=network.model.embed_tokens,
        blocks=blocks,
        norm=network.model.norm,
        head=network.lm_head,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=network.model.layers[0].self_attn.head_dim,
        eps=config.rms_norm_eps,
        inv_freq=rotary.inv_freq,
        attention_scaling=float(rotary.attention_scaling),
    )


def _block(layer: Any) -> Block:
    attention, mlp = layer.self_attn, layer.mlp
    return Block(
        norm=layer.input_layernorm,
        q=attention.q_proj,
        k=attention.k_proj,
        v=attention.v_proj,
        q_norm=getattr(attention, "q_norm", None),
        k_norm=getattr(attention, "k_norm", None),
        o=attention.o_proj,
        mlp_norm=layer.post_attention_layernorm,
        gate=mlp.gate_proj,
        up=mlp.up_proj,
        down=mlp.down_proj,
    )


def weight_of(module: Any) -> torch.Tensor:
    """A projection's matrix as it is stored, without what an adapter adds."""
    weight: torch.Tensor = getattr(module, "base_layer", module).weight
    return weight


def is_adapted(module: Any) -> bool:
    """Whether LoRA adds something to this projection."""
    return hasattr(module, "get_delta_weight")


def added_by_adapters(module: Any) -> torch.Tensor:
    """What LoRA adds to a projection's matrix now."""
    added: torch.Tensor = sum(module.get_delta_weight(name) for name in module.active_adapters)
    return added


def _is_plain(module: Any, *, adapters: bool) -> bool:
    """A linear layer, perhaps under LoRA of the plain kind."""
    base = getattr(module, "base_layer", module)
    if type(base) is not torch.nn.Linear:
        return False
    is_dora = any(getattr(module, "use_dora", {}).values())
    return base is module or (adapters and is_adapted(module) and not is_dora)
