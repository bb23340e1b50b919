"""What a vision-language model reads: tokens and images as one row of embeddings, each with its position.

Inside the backend every token of every image has an id of its own, above all vocabularies. Such a row of
ids says all that is read, so whatever compares rows, shares their beginnings or caches them need not know
about images. These ids never leave the backend: what is played, trained on and recorded are the model's.

A axes of position, B rows, T tokens of a row, W slots asked for, D hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch

from ragen2.backends.vision.encodings import Encodings
from ragen2.backends.vision.inputs import ImageInputs
from ragen2.types import Image, IntArray

FIRST = 2**40
"""Ids from here on belong to images."""
STRIDE = 2**20
"""Tokens of one image at most."""


class Places(Protocol):
    """Positions of the tokens of some rows."""

    def __call__(self, slots_BW: torch.Tensor, rows: Sequence[int] | None = None) -> torch.Tensor:
        """Positions of tokens by their index in their row; slots behind its end go on from there.

        ``rows`` names the rows that ``slots_BW`` are about, by default all in order.
        """
        ...


def plain_places(slots_BW: torch.Tensor, rows: Sequence[int] | None = None) -> torch.Tensor:
    """Text, and images that are read like text: a token's position is its index."""
    del rows
    return slots_BW


class ImageEmbedder:
    """Puts images into the rows that ``network`` reads.

    Args:
        network: the whole model; what comes before its language model encodes images.
        inputs: its image tokens and tensors.
        is_trained: whether gradients flow into what encodes images.
    """

    def __init__(self, network: Any, inputs: ImageInputs, *, is_trained: bool = False) -> None:
        self.inputs = inputs
        self.encodings = Encodings(network, inputs, is_trained=is_trained)
        self._embed = network.get_input_embeddings()
        self.has_grid = hasattr(getattr(network, "model", network), "get_rope_index")
        """Whether an image's tokens have rows and columns as positions, rather than one index each."""
        self._merge = int(getattr(network.config.vision_config, "spatial_merge_size", 1))
        self._grids: dict[tuple[int, int], tuple[int, int]] = {}

    def with_image_ids(self, ids_T: IntArray, images: Sequence[Image]) -> IntArray:
        """The row with each image token under its own id."""
        if not images:
            return ids_T
        at = np.flatnonzero(ids_T == self.inputs.token_id)
        own = np.concatenate([self._ids(image) for image in images])
        if len(at) != len(own):
            raise ValueError(f"{len(images)} images have {len(own)} tokens, the row has {len(at)}")
        placed_T = ids_T.copy()
        placed_T[at] = own
        return placed_T

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Embeddings of placed rows: words from the model's table, images from its vision tower."""
        is_image = ids >= FIRST
        embeds: torch.Tensor = self._embed(ids.masked_fill(is_image, self.inputs.token_id))
        wanted = ids[is_image] - FIRST
        if not len(wanted):
            return embeds
        numbers, which = torch.unique(wanted // STRIDE, return_inverse=True)
        parts = self.encodings([self.inputs.image(number) for number in numbers.tolist()])
        starts = torch.tensor(np.cumsum([0, *map(len, parts[:-1])]), device=ids.device)
        rows = torch.cat(list(parts))[starts[which] + wanted % STRIDE]
        return embeds.masked_scatter(is_image[..., None], rows.to(embeds.dtype))

    def places(self, rows: Sequence[IntArray], device: torch.device) -> Places:
        """Positions in these placed rows."""
        if not self.has_grid:
            return plain_places
        return _GridPlaces([self.positions(ids_T) for ids_T in rows], device)

    def positions(self, ids_T: IntArray) -> IntArray:
        """Positions A x T of a placed row.

        A word has one number on all three axes. The tokens of an image share the first and have row and
        column on the others; what follows goes on after the longer side (Qwen2-VL's M-RoPE).
        """
        if not self.has_grid:
            return np.arange(len(ids_T))[None]
        number_T = np.where(ids_T >= FIRST, (ids_T - FIRST) // STRIDE, -1)
        bounds = [0, *(np.flatnonzero(np.diff(number_T)) + 1).tolist(), len(ids_T)]
        found = np.empty((3, len(ids_T)), dtype=np.int64)
        at = 0
        for start, end in pairwise(bounds):
            if start == end or number_T[start] < 0:
                found[:, start:end] = at + np.arange(end - start)
                at += end - start
                continue
            rows, columns = self._grid(self.inputs.image(int(number_T[start])))
            found[0, start:end] = at
            found[1:, start:end] = at + np.indices((rows, columns)).reshape(2, -1)
            at += max(rows, columns)
        return found

    def _ids(self, image: Image) -> IntArray:
        first = FIRST + self.inputs.number(image) * STRIDE
        return first + np.arange(self.inputs.num_tokens(image))

    def _grid(self, image: Image) -> tuple[int, int]:
        """Rows and columns of an image's tokens; the same for all images of its size."""
        if image.size not in self._grids:
            _, rows, columns = self.inputs.pixels([image])["image_grid_thw"][0].tolist()
            self._grids[image.size] = (rows // self._merge, columns // self._merge)
        return self._grids[image.size]


class _GridPlaces:
    """Positions on three axes, read off tables of whole rows."""

    def __init__(self, rows: Sequence[IntArray], device: torch.device) -> None:
        longest = max(row.shape[1] for row in rows)
        table_ABT = np.zeros((3, len(rows), longest), dtype=np.int64)
        for number, row in enumerate(rows):
            table_ABT[:, number, : row.shape[1]] = row
        length_B = np.array([row.shape[1] for row in rows])
        shift_B = np.array([row.max(initial=-1) + 1 for row in rows]) - length_B
        self._table_ABT = torch.as_tensor(table_ABT).to(device)
        self._length_B = torch.as_tensor(length_B).to(device)
        self._shift_B = torch.as_tensor(shift_B).to(device)

    def __call__(self, slots_BW: torch.Tensor, rows: Sequence[int] | None = None) -> torch.Tensor:
        """Positions A x B x W."""
        count = len(self._length_B)
        at = torch.tensor(range(count) if rows is None else rows, device=slots_BW.device)
        length, shift = self._length_B[at, None], self._shift_B[at, None]
        table = self._table_ABT[:, at]
        inside = slots_BW.clamp(max=table.shape[2] - 1).expand(3, -1, -1)
        return torch.where(slots_BW < length, table.gather(2, inside), slots_BW + shift)
