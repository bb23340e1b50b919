"""GGUF files: read in a second, not a minute, and the two copies of a tied model's embedding joined.

The minute was the vocabulary: the gguf package looks each token up through numpy's view of the file, and
transformers lets it do so four times.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType

logger = logging.getLogger(__name__)

FLOAT_BITS = {
    GGMLQuantizationType.F64: 53.0,
    GGMLQuantizationType.F32: 24.0,
    GGMLQuantizationType.F16: 11.0,
    GGMLQuantizationType.BF16: 8.0,
}
"""Digits of the types that have an exponent of their own."""
ROUNDING = 4.0
"""Times 2^-b: how far copies of b bits may be apart. Rounding normal weights changes them by 1.3 x 2^-b."""
LARGEST_CHANGE = 0.5
"""At the fewest bits. Weights that have nothing to do with each other differ by 1 or more."""

Unpacked = Callable[[int], None]
"""Called with the bytes of a tensor that has been unpacked."""


class Reader(GGUFReader):  # type: ignore[misc]
    """Fields and tensors of a file; values of an array are cut out of its bytes, not looked up one by one."""

    @property
    def data(self) -> Any:
        """All bytes of the file."""
        return self._data

    @data.setter
    def data(self, mapped: Any) -> None:
        self._data = mapped.view(np.ndarray)  # a memmap makes a new memmap of each slice

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type != GGUFValueType.ARRAY or self.byte_order == "S":
            return super()._get_field_parts(orig_offs, raw_type)
        kind, count = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
        start, number = orig_offs + 12, int(count[0])
        if kind[0] == GGUFValueType.STRING:
            end, values = _strings(self.data, start, number)
        elif kind[0] in self.gguf_scalar_to_np:
            found = self._get(start, self.gguf_scalar_to_np[kind[0]], number)
            if len(found) < number:
                raise ValueError(f"an array of {number} values goes on after the end of the file")
            end, values = start + found.nbytes, list(found.reshape(-1, 1))
        else:
            return super()._get_field_parts(orig_offs, raw_type)
        types = [GGUFValueType.ARRAY, *[GGUFValueType(kind[0])] * bool(number)]
        return end - orig_offs, [kind, count, *values], list(range(2, 2 + number)), types


def _strings(data: Any, at: int, number: int) -> tuple[int, list[memoryview]]:
    """Where ``number`` strings end that begin at ``at``, and their bytes."""
    whole, found = memoryview(data), []
    for _ in range(number):
        (length,) = struct.unpack_from("<Q", whole, at)
        at += 8 + length
        found.append(whole[at - length : at])
    return at, found


@contextmanager
def quick_reading(unpacked: Unpacked) -> Iterator[Callable[[str], Reader]]:
    """Let transformers read GGUF files with ``Reader``; it has no argument for that.

    Yields what opens a file, once however often it is asked.
    """
    theirs = gguf.GGUFReader, gguf.dequantize, gguf.get_tensor_name_map
    read = cache(Reader)

    def counted(data: Any, kind: GGMLQuantizationType) -> Any:
        weights = theirs[1](data, kind)
        unpacked(data.nbytes)
        return weights

    try:
        gguf.GGUFReader, gguf.dequantize = read, counted
        # Asked for again by each of hundreds of modules.
        gguf.get_tensor_name_map = cache(theirs[2])
        yield read
    finally:
        gguf.GGUFReader, gguf.dequantize, gguf.get_tensor_name_map = theirs


def tie_copied_head(model: str, network: Any, tensors: Sequence[Any]) -> None:
    """Share one matrix where a file holds that of a tied model twice, each rounded in its own way.

    The one with more bits is kept.
    """
    bits = {tensor.name: _bits(tensor.tensor_type) for tensor in tensors}
    embedding, head = network.get_input_embeddings(), network.get_output_embeddings()
    coarsest = min(bits.get(name, 0.0) for name in ("token_embd.weight", "output.weight"))
    can_tie = bool(coarsest and getattr(network, "_tied_weights_keys", None)) and head is not None
    if not can_tie or head.weight.shape != embedding.weight.shape:
        return
    kept, copy = embedding.weight.detach(), head.weight.detach()
    change = float(torch.dist(kept, copy) / kept.norm())
    if not change <= min(LARGEST_CHANGE, ROUNDING * 2.0**-coarsest):
        return
    if bits["output.weight"] > bits["token_embd.weight"]:
        embedding.weight = head.weight
    network.config.tie_word_embeddings = True
    network.tie_weights()
    logger.warning(
        "%s holds its embedding twice, %.2g apart, as rounding leaves them; opened with one, as a tied model",
        model,
        change,
    )


def _bits(kind: GGMLQuantizationType) -> float:
    """Binary digits of a weight that is stored so."""
    block, size = GGML_QUANT_SIZES[kind]
    return FLOAT_BITS.get(kind, 8.0 * float(size) / float(block))
