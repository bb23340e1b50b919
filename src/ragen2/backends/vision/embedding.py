"""The input of a vision-language model: tokens and images as one row of embeddings, each with its position.

Inside the backend every token of every image has an id of its own, above all vocabularies. Such a row of
ids is the whole input, so whatever compares rows, shares their prefixes or caches them need not know about
images. These ids never leave the backend: what is played, trained on and recorded are the model's.

A axes of position, B rows, T tokens of a row, W slots asked for, D hidden width.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from ragen2.backends.decoder import PositionLookup, text_positions
from ragen2.backends.vision.inputs import ImageInputs, Pixels
from ragen2.errors import ModelError
from ragen2.seeding import stream
from ragen2.types import Image, IntArray, Message

if TYPE_CHECKING:
    from ragen2.backends.tokenizer import TemplateTokenizer

FIRST_IMAGE_ID = 2**40
"""Ids from here on belong to images."""
IDS_PER_IMAGE = 2**20
"""Tokens of one image at most."""
KEPT_BYTES = 2**29
"""Encodings that are kept; the ones not asked for longest go first."""
VALUES_AT_ONCE = 2**24
"""Input values that the vision tower takes at once: 64 MiB in float32."""


class ImageEmbedder:
    """Puts images into the input rows of ``network``.

    Args:
        network: the whole model; what comes before its language model encodes images.
        inputs: its image tokens and tensors.
        is_trained: whether gradients flow into what encodes images.
    """

    def __init__(self, network: Any, inputs: ImageInputs, *, is_trained: bool = False) -> None:
        self.inputs = inputs
        self.encoder = ImageEncoder(network, inputs, is_trained=is_trained)
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
        with_images_T = ids_T.copy()
        with_images_T[at] = own
        return with_images_T

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Embeddings of rows with image ids: text from the model's table, images from its vision tower."""
        is_image = ids >= FIRST_IMAGE_ID
        embeds: torch.Tensor = self._embed(ids.masked_fill(is_image, self.inputs.token_id))
        wanted = ids[is_image] - FIRST_IMAGE_ID
        if not len(wanted):
            return embeds
        numbers, which = torch.unique(wanted // IDS_PER_IMAGE, return_inverse=True)
        parts = self.encoder([self.inputs.image(number) for number in numbers.tolist()])
        starts = torch.tensor(np.cumsum([0, *map(len, parts[:-1])]), device=ids.device)
        rows = torch.cat(list(parts))[starts[which] + wanted % IDS_PER_IMAGE]
        return embeds.masked_scatter(is_image[..., None], rows.to(embeds.dtype))

    def position_lookup(self, rows: Sequence[IntArray], device: torch.device) -> PositionLookup:
        """Positions in these rows, which have image ids."""
        if not self.has_grid:
            return text_positions
        return _GridPositions([self.positions(ids_T) for ids_T in rows], device)

    def positions(self, ids_T: IntArray) -> IntArray:
        """Positions A x T of a row with image ids.

        A text token has one number on all three axes. The tokens of an image share the first and have row and
        column on the others; what follows goes on after the longer side (Qwen2-VL's M-RoPE).
        """
        if not self.has_grid:
            return np.arange(len(ids_T))[None]
        number_T = np.where(ids_T >= FIRST_IMAGE_ID, (ids_T - FIRST_IMAGE_ID) // IDS_PER_IMAGE, -1)
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
        first = FIRST_IMAGE_ID + self.inputs.number(image) * IDS_PER_IMAGE
        return first + np.arange(self.inputs.num_tokens(image))

    def _grid(self, image: Image) -> tuple[int, int]:
        """Rows and columns of an image's tokens; the same for all images of its size."""
        if image.size not in self._grids:
            _, rows, columns = self.inputs.pixels([image])["image_grid_thw"][0].tolist()
            self._grids[image.size] = (rows // self._merge, columns // self._merge)
        return self._grids[image.size]


class _GridPositions:
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


class ImageEncoder:
    """The vision tower of ``network``: encodes each image once while its weights stay the same."""

    def __init__(self, network: Any, inputs: ImageInputs, *, is_trained: bool) -> None:
        self.is_trained = is_trained
        self.tower = tower_weights(network)
        self.num_encoded = 0
        """Images that went through the tower so far."""
        self._network = network
        self._inputs = inputs
        self._kept: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._kept_bytes = 0
        self._state: tuple[int, torch.dtype] | None = None
        self._takes = set(inspect.signature(network.get_image_features).parameters)

    @property
    def device(self) -> torch.device:
        """Where the tower's weights are."""
        return next(iter(self.tower)).device

    def __call__(self, images: Sequence[Image]) -> list[torch.Tensor]:
        """Rows x width of each image. With gradients on, a trained tower encodes all of them anew."""
        if self.is_trained and torch.is_grad_enabled():
            return self._encode(images)
        self._forget_if_stale()
        missing = [image for image in dict.fromkeys(images) if image.digest not in self._kept]
        fresh: dict[str, torch.Tensor] = {}
        if missing:
            with torch.no_grad():
                encoded = self._encode(missing)
            fresh = {image.digest: rows for image, rows in zip(missing, encoded, strict=True)}
        found = [
            fresh[image.digest] if image.digest in fresh else self._kept[image.digest]
            for image in images
        ]
        self._keep(images, fresh)
        return found

    def layers(self) -> list[torch.nn.Module]:
        """The tower's blocks, which can be computed again instead of kept."""
        decoder = set(map(id, self._network.get_decoder().modules()))
        return [
            module
            for module in self._network.modules()
            if isinstance(module, GradientCheckpointingLayer) and id(module) not in decoder
        ]

    def _forget_if_stale(self) -> None:
        """Other weights, or products in another precision, give other rows."""
        kind = self.device.type
        low = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
        state = (sum(weight._version for weight in self.tower), low)
        if state != self._state:
            self._kept.clear()
            self._kept_bytes = 0
            self._state = state

    def _keep(self, images: Sequence[Image], fresh: dict[str, torch.Tensor]) -> None:
        for image in images:
            if image.digest in fresh and image.digest not in self._kept:
                self._kept[image.digest] = fresh[image.digest]
                self._kept_bytes += fresh[image.digest].nbytes
            self._kept.move_to_end(image.digest)
        while self._kept_bytes > KEPT_BYTES:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= dropped.nbytes

    def _encode(self, images: Sequence[Image]) -> list[torch.Tensor]:
        found: dict[int, torch.Tensor] = {}
        for indices in self._by_size(images):
            chosen = [images[index] for index in indices]
            found |= dict(zip(indices, self._features(self._inputs.pixels(chosen)), strict=True))
        self.num_encoded += len(images)
        return [found[index] for index in range(len(images))]

    def _by_size(self, images: Sequence[Image]) -> Iterator[list[int]]:
        """Indices of images of one size, as many as ``VALUES_AT_ONCE`` allows, at least one."""
        alike: dict[tuple[int, int], list[int]] = {}
        for index, image in enumerate(images):
            alike.setdefault(image.size, []).append(index)
        for indices in alike.values():
            count = max(1, VALUES_AT_ONCE // self._inputs.num_values(images[indices[0]]))
            for start in range(0, len(indices), count):
                yield indices[start : start + count]

    def _features(self, pixels: Pixels) -> list[torch.Tensor]:
        given = {n: value.to(self.device) for n, value in pixels.items() if n in self._takes}
        out = self._network.get_image_features(**given, return_dict=True)
        return [rows.reshape(-1, rows.shape[-1]) for rows in out.pooler_output]


def tower_weights(network: Any) -> list[torch.nn.Parameter]:
    """The weights that only images go through: all but the language model's and its head's."""
    text = {id(weight) for weight in network.get_decoder().parameters()}
    head = network.get_output_embeddings()
    text |= {id(weight) for weight in head.parameters()} if head is not None else set()
    return [weight for weight in network.parameters() if id(weight) not in text]


SIZE = (56, 84)
"""Height and width of the images that a model is tried on: no square, so that exchanged sides are noticed."""
ROUNDING = 0.01
"""Largest error, as a share of what exchanging the two images changes."""


@torch.no_grad()
def check_image_logits(model: str, network: Any, tokenizer: TemplateTokenizer) -> None:
    """Raise unless tokens and logits of a small example are those that the model's own code gives."""
    noise = stream("images to try a model on")
    one, other = (Image(noise.integers(0, 256, (*SIZE, 3), dtype=np.uint8)) for _ in range(2))
    try:
        ours, own = (
            _ours(network, tokenizer, (one, other)),
            _own(network, tokenizer, (one, other)),
        )
        effect = (own - _own(network, tokenizer, (other, one))).norm()
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"model {model} reads images in a way that is not known here ({type(error).__name__}: "
            f"{reason}); use one of the Qwen2.5-VL, LLaVA or Idefics3 kind"
        ) from error
    gap = (ours - own).norm()
    if not bool(gap <= ROUNDING * effect):
        raise ModelError(
            f"model {model} reads images in a way that is not known here: its logits differ by "
            f"{float(gap):.3g} from what its own code gives, where other images change them by "
            f"{float(effect):.3g}; use one of the Qwen2.5-VL, LLaVA or Idefics3 kind"
        )


def _dialogue(images: tuple[Image, ...]) -> list[Message]:
    first, second = images
    return [Message("user", "Look.", (first,)), Message("assistant", "Well."),
            Message("user", "And here?", (second,))]  # fmt: skip


def _ours(network: Any, tokenizer: TemplateTokenizer, images: tuple[Image, ...]) -> torch.Tensor:
    assert tokenizer.images is not None  # noqa: S101 - the caller opened them
    embedder = ImageEmbedder(network, tokenizer.images)
    row_T = embedder.with_image_ids(
        np.array(tokenizer.start(_dialogue(images)), dtype=np.int64), images
    )
    device = next(network.parameters()).device
    ids = torch.as_tensor(row_T, device=device)[None]
    slots = torch.arange(len(row_T), device=device)[None]
    out = network(
        inputs_embeds=embedder.embed(ids),
        attention_mask=torch.ones_like(ids),
        position_ids=embedder.position_lookup([row_T], device)(slots),
        use_cache=False,
    )
    logits: torch.Tensor = out.logits[0, -1].float()
    return logits


def _own(network: Any, tokenizer: TemplateTokenizer, images: tuple[Image, ...]) -> torch.Tensor:
    """As transformers does it: the processor's tokens and tensors, the model's own merging."""
    assert tokenizer.images is not None  # noqa: S101 - the caller opened them
    found = tokenizer.images.processor(
        text=[tokenizer.render(_dialogue(images))],
        images=[image.pixels for image in images],
        add_special_tokens=False,
        return_tensors="pt",
    )
    if found["input_ids"][0].tolist() != tokenizer.start(_dialogue(images)):
        raise ValueError("its processor puts other tokens in the place of an image")
    is_image = found["input_ids"] == tokenizer.images.token_id
    given = {**found, "mm_token_type_ids": is_image.long()}
    takes = _arguments(network)
    device = next(network.parameters()).device
    inputs = {name: value.to(device) for name, value in given.items() if name in takes}
    logits: torch.Tensor = network(**inputs, use_cache=False).logits[0, -1].float()
    return logits


def _arguments(network: Any) -> set[str]:
    return set(inspect.signature(network.forward).parameters)
