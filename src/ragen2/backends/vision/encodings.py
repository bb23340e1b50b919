"""What the vision tower makes of images: computed once for each, as long as its weights stay as they are."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from ragen2.backends.vision.inputs import ImageInputs, Pixels
from ragen2.types import Image

KEPT_BYTES = 2**29
"""Encodings that are kept; the ones not asked for longest go first."""
AT_ONCE = 2**24
"""Numbers of input that the tower takes at once: 64 MiB in float32."""


class Encodings:
    """Encodes images with what comes before the language model of ``network``."""

    def __init__(self, network: Any, inputs: ImageInputs, *, is_trained: bool) -> None:
        self.is_trained = is_trained
        self.tower = tower_of(network)
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
        """Rows x width of each image. With gradients on, a trained tower reads all of them anew."""
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
        for places in self._by_size(images):
            chosen = [images[place] for place in places]
            found |= dict(zip(places, self._features(self._inputs.pixels(chosen)), strict=True))
        self.num_encoded += len(images)
        return [found[place] for place in range(len(images))]

    def _by_size(self, images: Sequence[Image]) -> Iterator[list[int]]:
        """Places of images of one size, as many as stay inside ``AT_ONCE``; a larger one goes alone."""
        alike: dict[tuple[int, int], list[int]] = {}
        for place, image in enumerate(images):
            alike.setdefault(image.size, []).append(place)
        for places in alike.values():
            count = max(1, AT_ONCE // self._inputs.num_numbers(images[places[0]]))
            for start in range(0, len(places), count):
                yield places[start : start + count]

    def _features(self, pixels: Pixels) -> list[torch.Tensor]:
        given = {n: value.to(self.device) for n, value in pixels.items() if n in self._takes}
        out = self._network.get_image_features(**given, return_dict=True)
        return [rows.reshape(-1, rows.shape[-1]) for rows in out.pooler_output]


def tower_of(network: Any) -> list[torch.nn.Parameter]:
    """The weights that only images go through: all but the language model's and its head's."""
    words = {id(weight) for weight in network.get_decoder().parameters()}
    head = network.get_output_embeddings()
    words |= {id(weight) for weight in head.parameters()} if head is not None else set()
    return [weight for weight in network.parameters() if id(weight) not in words]
