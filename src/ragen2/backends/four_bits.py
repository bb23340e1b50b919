"""Frozen linear layers in 4 bits, by bitsandbytes: NF4 of QLoRA, a number for 16 levels and one scale per 64.

A matrix is unpacked whenever it is multiplied by and dropped again, so a pass holds one layer unpacked. Rows
are whole blocks of 64: matrices below each other have their packed forms below each other, and those that
are one product are unpacked as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ragen2.backends.frozen import in_one_piece
from ragen2.backends.settings import ModelSettings
from ragen2.errors import ConfigError, DependencyError

BLOCK = 64
"""Weights that share a scale."""


def need_bitsandbytes() -> Any:
    """The functions of bitsandbytes; without it, an error of one line."""
    try:
        from bitsandbytes import functional
    except (ImportError, OSError, RuntimeError) as error:  # its library may not load here
        reason = " ".join(str(error).split())[:100]
        raise DependencyError(
            f'model.frozen is "nf4", which needs bitsandbytes ({reason}); pip install '
            '"ragen2[nf4]", or leave it out'
        ) from error
    return functional


@dataclass(frozen=True, slots=True)
class FourBitMatrix:
    """A matrix of ``rows`` x ``2 * packed.shape[1]`` in 4 bits."""

    packed: torch.Tensor
    scales: torch.Tensor
    dtype: torch.dtype
    """What it is unpacked to."""

    @classmethod
    def below_each_other(cls, layers: Sequence[FourBitLinear]) -> FourBitMatrix:
        """The matrices of layers as one, in the layers' own memory."""
        packed = in_one_piece([layer.weight for layer in layers])
        scales = in_one_piece([layer.scales for layer in layers])
        return cls(packed, scales, layers[0].dtype)

    def unpack(self) -> torch.Tensor:
        """The whole matrix, in new memory."""
        functional = need_bitsandbytes()
        rows, half = self.packed.shape
        state = functional.QuantState(
            absmax=self.scales.flatten(),
            shape=torch.Size((rows, 2 * half)),
            dtype=self.dtype,
            blocksize=BLOCK,
            quant_type="nf4",
        )
        whole: torch.Tensor = functional.dequantize_4bit(self.packed.view(-1, 1), state)
        return whole


class FourBitLinear(torch.nn.Linear):
    """A frozen linear layer in 4 bits, made on ``device`` from a plain one; its bias stays what it is."""

    scales: torch.Tensor

    def __init__(self, plain: torch.nn.Linear, dtype: torch.dtype, device: torch.device) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.dtype, self.bias = dtype, plain.bias
        matrix = plain.weight.detach().to(device, dtype)
        packed, state = need_bitsandbytes().quantize_4bit(matrix, blocksize=BLOCK, quant_type="nf4")
        self.weight = torch.nn.Parameter(packed.view(len(matrix), -1), requires_grad=False)
        self.register_buffer("scales", state.absmax.view(len(matrix), -1))

    @property
    def matrix(self) -> FourBitMatrix:
        """Its matrix."""
        return FourBitMatrix(self.weight.detach(), self.scales, self.dtype)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """As a plain layer has it, with the matrix unpacked."""
        return torch.nn.functional.linear(rows, self.matrix.unpack(), self.bias)


def refuse_four_bits_without_lora(model: ModelSettings) -> None:
    """Weights in 4 bits cannot be trained themselves."""
    if not model.lora_rank:
        raise ConfigError(
            'model.frozen is "nf4", which trains adapters only; set model.lora_rank, or leave it out'
        )


def pack_linear_layers(network: Any, dtype: torch.dtype, device: torch.device) -> None:
    """Put the linear layers of a language model into 4 bits, one after another; not its head.

    A layer whose rows are not whole blocks stays as it is.
    """
    for parent in list(network.get_decoder().modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is torch.nn.Linear and layer.in_features % BLOCK == 0:
                setattr(parent, name, FourBitLinear(layer, dtype, device))
