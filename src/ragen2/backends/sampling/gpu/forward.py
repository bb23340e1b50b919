"""The forward pass of the GPU engine: eight kernels per layer, for decoding and for prefilling prompts.

It is not the CPU engine's nor the learner's: every result goes into memory that was reserved before, so
that a step of decoding can be captured in a CUDA graph and replayed without Python, and decoding's
attention reads rows of the cache where they lie. Under LoRA each product has two thin ones beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from ragen2.backends.adapters import adapt
from ragen2.backends.decoder import DecoderWeights, LayerWeights
from ragen2.backends.kernels import GATE_BLOCK, add_norm, gate
from ragen2.backends.sampling.gpu import kernels
from ragen2.backends.sampling.gpu.cache import GPUCache

PROMPT_BLOCK = 64
"""New tokens of one sequence that one program of the prompt's attention has."""
KEY_BLOCK = 64
"""Keys that a program of attention looks at in one turn of its loop."""


@dataclass(frozen=True, slots=True)
class PackedPrompts:
    """New tokens of several sequences, one after the other, and where each goes in the cache."""

    token_N: torch.Tensor
    row_N: torch.Tensor
    position_N: torch.Tensor
    block_4M: torch.Tensor
    """Per block of attention: first token, row of the cache, first position, count."""


class GPUForward:
    """Runs tokens through the model against a cache; scratch memory is kept, so graphs can hold on to it."""

    def __init__(self, weights: DecoderWeights, cache: GPUCache, dtype: torch.dtype) -> None:
        decoder = weights.decoder
        self.weights, self.cache, self.dtype = weights, cache, dtype
        self.hidden, self.inner = decoder.hidden, decoder.inner
        self.nq, self.nkv, self.dim = decoder.num_heads, decoder.num_kv_heads, decoder.head_dim
        self.eps, self.scale = decoder.eps, decoder.scale
        self.device = decoder.device
        self._cos = self._sin = torch.empty(0, device=self.device)
        self._scratch: dict[str, torch.Tensor] = {}

    def reserve_positions(self, length: int) -> None:
        """Rotations for positions up to ``length``."""
        if len(self._cos) < length:
            self._cos, self._sin = (
                table.contiguous() for table in self.weights.decoder.rotary(length)
            )

    def reserve_lanes(self, lanes: int) -> bool:
        """Scratch for decoding so many lanes at once; True when it has moved."""
        if lanes <= len(self._scratch.get("residual", ())):
            return False
        self._scratch = self._buffers(lanes)
        return True

    def drop_lanes(self) -> None:
        """Hold no scratch for decoding."""
        self._scratch = {}

    @property
    def bytes_per_token(self) -> int:
        """Scratch for prefilling one token."""
        return sum(self._widths.values()) * self.dtype.itemsize + self.hidden * 4

    def decode(
        self, token_B: torch.Tensor, row_B: torch.Tensor, position_B: torch.Tensor
    ) -> torch.Tensor:
        """Logits after one more token in each lane; the token enters the cache at its position."""
        lanes = len(token_B)
        buffers = {name: buffer[:lanes] for name, buffer in self._scratch.items()}
        self._embed(token_B, buffers)
        for number in range(len(self.weights.layers)):
            layer = self.weights.opened(number)
            self._project(buffers["normed"], layer, buffers["qkv"])
            kernels.decode_attention[(lanes, self.nkv)](
                buffers["qkv"],
                buffers["attended"],
                self.cache.keys[number],
                self.cache.values[number],
                row_B,
                position_B,
                self._cos,
                self._sin,
                layer.q_norm,
                layer.k_norm,
                self.eps,
                self.scale,
                *self._strides(),
                NQ=self.nq,
                NKV=self.nkv,
                D=self.dim,
                BLOCK_N=KEY_BLOCK,
                HAS_NORM=layer.q_norm is not None,
                num_warps=4,
            )
            self._finish_layer(number, layer, buffers)
        return self._logits(buffers["normed"], buffers["logits"])

    def prefill(self, packed: PackedPrompts, last_R: torch.Tensor) -> torch.Tensor:
        """Put new tokens into the cache; the normed hidden states of the tokens at ``last_R``."""
        count = len(packed.token_N)
        buffers = self._buffers(count, with_logits=False)
        self._embed(packed.token_N, buffers)
        for number in range(len(self.weights.layers)):
            layer = self.weights.opened(number)
            self._project(buffers["normed"], layer, buffers["qkv"])
            keys, values = self.cache.keys[number], self.cache.values[number]
            kernels.rotate_and_store[(count,)](
                buffers["qkv"],
                keys,
                values,
                packed.row_N,
                packed.position_N,
                self._cos,
                self._sin,
                layer.q_norm,
                layer.k_norm,
                self.eps,
                *self._strides(),
                NQ=self.nq,
                NKV=self.nkv,
                NQ_2=triton.next_power_of_2(self.nq),
                NKV_2=triton.next_power_of_2(self.nkv),
                D=self.dim,
                HAS_NORM=layer.q_norm is not None,
                num_warps=2,
            )
            kernels.prompt_attention[(packed.block_4M.shape[1], self.nq)](
                buffers["qkv"],
                buffers["attended"],
                keys,
                values,
                *packed.block_4M,
                self.scale,
                *self._strides(),
                NQ=self.nq,
                NKV=self.nkv,
                D=self.dim,
                BLOCK_M=PROMPT_BLOCK,
                BLOCK_N=KEY_BLOCK,
                num_warps=4,
            )
            self._finish_layer(number, layer, buffers)
        return buffers["normed"][last_R]

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """Logits of normed hidden states, in the memory that decoding uses."""
        return self._logits(normed, self._scratch["logits"][: len(normed)])

    def _logits(self, normed: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """In float32 whatever the inputs are: rounding a logit of 20 to bfloat16 moves it by up to 0.06."""
        head = self.weights.head.t()
        if normed.dtype is torch.float32:
            return torch.mm(normed, head, out=out)
        return torch.mm(normed, head, out_dtype=torch.float32, out=out)

    def _embed(self, token_N: torch.Tensor, buffers: dict[str, torch.Tensor]) -> None:
        kernels.embed_norm[(len(token_N),)](
            token_N,
            self.weights.embed,
            self.weights.layers[0].norm,
            buffers["residual"],
            buffers["normed"],
            self.eps,
            HIDDEN=self.hidden,
            BLOCK=triton.next_power_of_2(self.hidden),
        )

    def _project(self, normed: torch.Tensor, layer: LayerWeights, out: torch.Tensor) -> None:
        if layer.qkv_bias is None:
            torch.mm(normed, layer.qkv.t(), out=out)
        else:
            torch.addmm(layer.qkv_bias, normed, layer.qkv.t(), out=out)
        adapt(out, normed, layer.adapters.qkv)

    def _finish_layer(
        self, number: int, layer: LayerWeights, buffers: dict[str, torch.Tensor]
    ) -> None:
        """From attention's output to the normed input of the next layer."""
        delta, count = buffers["delta"], len(buffers["delta"])
        torch.mm(buffers["attended"], layer.o.t(), out=delta)
        adapt(delta, buffers["attended"], layer.adapters.o)
        self._add_norm(layer.mlp_norm, buffers)
        (gate_up,) = layer.gate_up
        torch.mm(buffers["normed"], gate_up.t(), out=buffers["both"])
        adapt(buffers["both"], buffers["normed"], layer.adapters.gate_up)
        gate[(count, triton.cdiv(self.inner, GATE_BLOCK))](
            buffers["both"], buffers["gated"], INNER=self.inner, BLOCK=GATE_BLOCK
        )
        torch.mm(buffers["gated"], layer.down.t(), out=delta)
        adapt(delta, buffers["gated"], layer.adapters.down)
        is_last = number + 1 == len(self.weights.layers)
        self._add_norm(
            self.weights.norm if is_last else self.weights.layers[number + 1].norm, buffers
        )

    def _add_norm(self, weight: torch.Tensor, buffers: dict[str, torch.Tensor]) -> None:
        add_norm[(len(buffers["delta"]),)](
            buffers["residual"],
            buffers["delta"],
            weight,
            buffers["residual"],
            buffers["normed"],
            self.eps,
            HIDDEN=self.hidden,
            BLOCK=triton.next_power_of_2(self.hidden),
        )

    def _strides(self) -> tuple[int, int]:
        return self.cache.keys.stride(1), self.cache.keys.stride(2)

    @property
    def _widths(self) -> dict[str, int]:
        """Scratch of a token, by name, in the type of products."""
        return {
            "normed": self.hidden,
            "qkv": (self.nq + 2 * self.nkv) * self.dim,
            "attended": self.nq * self.dim,
            "delta": self.hidden,
            "both": 2 * self.inner,
            "gated": self.inner,
        }

    def _buffers(self, count: int, *, with_logits: bool = True) -> dict[str, torch.Tensor]:
        wide = {"residual": self.hidden}
        if with_logits:
            wide["logits"] = len(self.weights.head)
        return {
            name: torch.empty((count, width), dtype=dtype, device=self.device)
            for group, dtype in ((self._widths, self.dtype), (wide, torch.float32))
            for name, width in group.items()
        }
