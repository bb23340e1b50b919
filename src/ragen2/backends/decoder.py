"""One description of a decoder: which models our own code runs, their shapes, and where each weight is.

The Llama, Qwen2 and Qwen3 families are the same network up to biases and norms of heads.
``describe_decoder`` finds its modules and numbers, or says why a model has to be left to Hugging Face's
code. Both sampling engines and the learner's fused layers read weights through ``DecoderWeights``, as one
``LayerWeights`` per layer.

What differs, and stays with each of them, is how they multiply:

- the GPU engine and the learner take gate and up in one product, the CPU engine in two, because its
  activation then works in place and both results stay in a core's cache;
- the CPU engine rotates heads as complex numbers, so it wants the two numbers of a pair side by side
  (``paired``), which Hugging Face keeps half a head apart.

What LoRA adds is multiplied beside the matrices (``adapters.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from transformers.models.llama.modeling_llama import LlamaForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

from ragen2.backends.adapters import JoinedAdapter, is_adapted
from ragen2.backends.four_bits import FourBitLinear, FourBitMatrix
from ragen2.backends.frozen import in_one_piece

ARCHITECTURES = (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
ROTARY = ("default", "linear", "llama3")
"""Rotary embeddings whose frequencies do not depend on the length of the text."""
SMALLEST_HEAD = 32
"""Our kernels multiply half a head at a time, and Triton multiplies no fewer than 16 numbers."""


@dataclass(frozen=True, slots=True)
class LayerModules:
    """The modules of one layer, which hold its parameters."""

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

    @property
    def heads(self) -> tuple[Any, Any, Any]:
        """The projections to heads, in the order in which ``LayerWeights.qkv`` holds them."""
        return self.q, self.k, self.v

    @property
    def has_bias(self) -> bool:
        """Whether the projections to heads have biases (Qwen2)."""
        return self.q.bias is not None

    @property
    def has_head_norms(self) -> bool:
        """Whether queries and keys are normalised head by head (Qwen3)."""
        return self.q_norm is not None

    @property
    def parameters(self) -> list[torch.Tensor]:
        """All parameters of a layer without adapters, in the order in which it uses them."""
        norms = [each for each in (self.q_norm, self.k_norm) if each is not None]
        return [
            self.norm.weight,
            *(each.weight for each in self.heads),
            *(each.bias for each in self.heads if self.has_bias),
            *(each.weight for each in norms),
            self.o.weight,
            self.mlp_norm.weight,
            self.gate.weight,
            self.up.weight,
            self.down.weight,
        ]


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model's modules in the order they run, and the numbers of its shape."""

    network: Any
    embed: Any
    layers: tuple[LayerModules, ...]
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
    def hidden(self) -> int:
        """Width of the residual stream."""
        return int(self.embed.weight.shape[1])

    @property
    def inner(self) -> int:
        """Width of the MLP."""
        return int(weight_of(self.layers[0].gate).shape[0])

    @property
    def scale(self) -> float:
        """What products of queries and keys are multiplied by."""
        return float(self.head_dim**-0.5)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.embed.weight.device
        return device

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
        """Cosines and sines of positions 0 to ``length``, half a head wide, in float32.

        Number i of a head and number i + D/2 are turned together by the angle position x inv_freq[i]
        (RoFormer, eq. 34, in the half-split order of Hugging Face's checkpoints).
        """
        positions = torch.arange(length, dtype=torch.float32, device=self.inv_freq.device)
        angles = positions[:, None] * self.inv_freq.float()[None, :]
        return angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling


def describe_decoder(network: Any, *, adapters: bool = False) -> Decoder | str:
    """The model taken apart, or why it has to be run by Hugging Face's code.

    With ``adapters``, the projections of a model under LoRA may be adapted modules.
    """
    if adapters and hasattr(network, "get_base_model"):
        network = network.get_base_model()
    if type(network) not in ARCHITECTURES:
        return f"{type(network).__name__} is not of the Llama, Qwen2 or Qwen3 family"
    if problem := _unsupported(network, adapters=adapters):
        return f"the model has {problem}"
    config, model = network.config, network.model
    return Decoder(
        network=network,
        embed=model.embed_tokens,
        layers=tuple(_layer_modules(layer) for layer in model.layers),
        norm=model.norm,
        head=network.lm_head,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=model.layers[0].self_attn.head_dim,
        eps=config.rms_norm_eps,
        inv_freq=model.rotary_emb.inv_freq,
        attention_scaling=float(model.rotary_emb.attention_scaling),
    )


def _unsupported(network: Any, *, adapters: bool) -> str:
    """The settings of a known architecture that our code does not compute, joined; empty if none."""
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
    return " and ".join(reason for reason, holds in reasons.items() if holds)


def _layer_modules(layer: Any) -> LayerModules:
    attention, mlp = layer.self_attn, layer.mlp
    return LayerModules(
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


def _is_plain(module: Any, *, adapters: bool) -> bool:
    """A linear layer, perhaps under LoRA of the plain kind."""
    base = getattr(module, "base_layer", module)
    if type(base) is not torch.nn.Linear and not (adapters and type(base) is FourBitLinear):
        return False
    is_dora = any(getattr(module, "use_dora", {}).values())
    return base is module or (adapters and is_adapted(module) and not is_dora)


@dataclass(frozen=True, slots=True)
class LayerAdapters:
    """What LoRA adds to the products of one layer; None where it adds nothing."""

    qkv: JoinedAdapter | None = None
    o: JoinedAdapter | None = None
    gate_up: JoinedAdapter | None = None
    down: JoinedAdapter | None = None

    @property
    def all(self) -> list[JoinedAdapter]:
        """Those there are, in the order in which a layer uses them."""
        return [each for each in (self.qkv, self.o, self.gate_up, self.down) if each is not None]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """What one layer multiplies by; rows of a matrix are its outputs, as in ``torch.nn.Linear``."""

    norm: torch.Tensor
    qkv: torch.Tensor
    """Queries', keys' and values' matrices below each other: they read the same input."""
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: tuple[torch.Tensor, ...]
    """One matrix with up's rows below gate's, or the two apart where they are multiplied apart."""
    down: torch.Tensor
    adapters: LayerAdapters

    @property
    def head_norms(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Norms of queries' and keys' heads, where a model has them."""
        if self.q_norm is None or self.k_norm is None:
            return None
        return self.q_norm, self.k_norm


class DecoderWeights:
    """A decoder's weights as a forward pass multiplies by them; ``refresh`` after every change of them.

    Norms, embeddings, frozen matrices of the right type and with ``shares`` all matrices that stand alone are
    the model's own memory. A trained matrix that is needed in another precision or beside another has to
    exist once more, as have adapters: such copies are written in place and never move, so that CUDA graphs
    may point at them.

    Args:
        decoder: the model.
        dtype: type of the copies.
        shares: leave alone what can be read as it is (gate and up then stand apart): for a CPU.
        paired: order the rows of queries and keys, head by head, so that the two numbers that are rotated
            together lie side by side. Products of queries and keys do not change when both are put in
            another order.
        has_head: whether logits are made with these weights.
    """

    def __init__(
        self,
        decoder: Decoder,
        dtype: torch.dtype,
        *,
        shares: bool = False,
        paired: bool = False,
        has_head: bool = True,
    ) -> None:
        self.decoder = decoder
        self._dtype, self._shares = dtype, shares
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._ordered: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._adapters: list[JoinedAdapter] = []
        self._packed: dict[int, FourBitMatrix] = {}
        """Matrices in 4 bits, by the address of what stands for them in ``layers``."""
        # (0, D/2, 1, D/2 + 1, ...): what was half a head apart comes together.
        pairs = torch.arange(decoder.head_dim).view(2, -1).t().reshape(-1)
        self._pairs = pairs.to(decoder.device) if paired else None
        self.embed = decoder.embed.weight.detach()
        self.norm = decoder.norm.weight.detach()
        self.head = self._matrix(decoder.head) if has_head else decoder.head.weight.detach()
        self.layers = [self._layer(modules) for modules in decoder.layers]
        """As they are stored; ``opened`` is what to multiply by."""
        self.version = -1

    def opened(self, number: int) -> LayerWeights:
        """A layer's weights as numbers; those in 4 bits are unpacked anew at every call."""
        layer = self.layers[number]
        if not self._packed:
            return layer
        (gate_up,) = layer.gate_up
        return replace(
            layer,
            qkv=self._unpacked(layer.qkv),
            o=self._unpacked(layer.o),
            gate_up=(self._unpacked(gate_up),),
            down=self._unpacked(layer.down),
        )

    def _unpacked(self, matrix: torch.Tensor) -> torch.Tensor:
        packed = self._packed.get(matrix.data_ptr())
        return packed.unpack() if packed else matrix

    @torch.no_grad()
    def refresh(self, version: int) -> bool:
        """Bring the copies up to the model's weights; True when ``version`` is a new one."""
        if version == self.version:
            return False
        if self._copies:
            torch._foreach_copy_([own for own, _ in self._copies], [src for _, src in self._copies])
        for own, source in self._ordered:
            own.copy_(source[:, self._pairs])
        for adapter in self._adapters:
            adapter.refresh()
        self.version = version
        return True

    def _layer(self, modules: LayerModules) -> LayerWeights:
        biases = [each.bias.detach() for each in modules.heads if modules.has_bias]
        mlp = (modules.gate, modules.up)
        return LayerWeights(
            norm=modules.norm.weight.detach(),
            qkv=self._matrix(*modules.heads, rotated=2),
            qkv_bias=self._joined(biases, rotated=2) if biases else None,
            q_norm=self._head_norm(modules.q_norm),
            k_norm=self._head_norm(modules.k_norm),
            o=self._matrix(modules.o),
            mlp_norm=modules.mlp_norm.weight.detach(),
            gate_up=tuple(map(self._matrix, mlp)) if self._shares else (self._matrix(*mlp),),
            down=self._matrix(modules.down),
            adapters=self._layer_adapters(modules),
        )

    def _layer_adapters(self, modules: LayerModules) -> LayerAdapters:
        groups = (modules.heads, (modules.o,), (modules.gate, modules.up), (modules.down,))
        found = LayerAdapters(
            *(
                JoinedAdapter(group, self._dtype) if any(map(is_adapted, group)) else None
                for group in groups
            )
        )
        self._adapters += found.all
        return found

    def _matrix(self, *modules: Any, rotated: int = 0) -> torch.Tensor:
        """The matrices of ``modules`` below each other, without what adapters add."""
        layers = [getattr(module, "base_layer", module) for module in modules]
        if all(isinstance(layer, FourBitLinear) for layer in layers):
            packed = FourBitMatrix.below_each_other(layers)
            self._packed[packed.packed.data_ptr()] = packed
            return packed.packed
        sources: list[torch.Tensor] = [layer.weight for layer in layers]
        if self._shares and len(modules) == 1:
            return sources[0].detach()
        is_ready = all(not one.requires_grad and one.dtype is self._dtype for one in sources)
        if is_ready and self._pairs is None:
            return in_one_piece(sources)
        return self._joined([source.detach() for source in sources], rotated=rotated)

    def _head_norm(self, module: Any | None) -> torch.Tensor | None:
        if module is None:
            return None
        weight: torch.Tensor = module.weight.detach()
        return weight if self._pairs is None else self._joined([weight], rotated=1)

    def _joined(self, sources: Sequence[torch.Tensor], *, rotated: int = 0) -> torch.Tensor:
        """A copy that holds ``sources`` below each other; the first ``rotated`` of them head by head."""
        shape = (sum(len(source) for source in sources), *sources[0].shape[1:])
        joined = torch.empty(shape, dtype=self._dtype, device=sources[0].device)
        parts = torch.split(joined, [len(source) for source in sources])
        for number, (own, source) in enumerate(zip(parts, sources, strict=True)):
            if self._pairs is None or number >= rotated:
                self._copies.append((own, source))
            else:
                by_head = (-1, self.decoder.head_dim, *source.shape[1:])
                self._ordered.append((own.view(by_head), source.view(by_head)))
        return joined


class PositionLookup(Protocol):
    """Positions of the tokens of some rows."""

    def __call__(self, slots_BW: torch.Tensor, rows: Sequence[int] | None = None) -> torch.Tensor:
        """Positions of tokens by their index in their row; slots behind its end go on from there.

        ``rows`` names the rows that ``slots_BW`` are about, by default all in order.
        """
        ...


def text_positions(slots_BW: torch.Tensor, rows: Sequence[int] | None = None) -> torch.Tensor:
    """Text, and images whose tokens count like text: a token's position is its index."""
    del rows
    return slots_BW
