"""An image for a model: the tokens that stand for it in a prompt, and the tensors its vision tower takes.

The processors of transformers are used as they are, less what they have for videos: that part needs
another library, which images do not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
import transformers
from transformers import AutoImageProcessor, ProcessorMixin
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from ragen2.errors import DependencyError, ModelError
from ragen2.types import Image

TEXT_INPUTS = {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"}
"""What a processor returns about the text; the rest is for the vision tower."""
PROCESSOR_FILE = "processor_config.json"

Pixels = dict[str, torch.Tensor]


class ImageInputs:
    """Turns images into image tokens and tensors. Images of one size have the same tokens."""

    def __init__(self, processor: Any, token_id: int) -> None:
        self.processor = processor
        self.token_id = token_id
        """The id that every token of an image has."""
        self._blocks: dict[tuple[int, int], tuple[int, ...]] = {}
        self._num_values: dict[tuple[int, int], int] = {}
        self._numbers: dict[str, int] = {}
        # Weak: a caller holds the images of its rows until their forward pass is done, nobody longer.
        self._images: WeakValueDictionary[int, Image] = WeakValueDictionary()

    def number(self, image: Image) -> int:
        """A number for an image, the same for equal ones; ``image`` finds it by that."""
        number = self._numbers.setdefault(image.digest, len(self._numbers))
        self._images[number] = image
        return number

    def image(self, number: int) -> Image:
        """An image that was numbered and that somebody still holds."""
        return self._images[number]

    def block(self, image: Image) -> tuple[int, ...]:
        """The ids that stand for an image, with the marks that some models put around its rows."""
        if image.size not in self._blocks:
            found = self._call([image])
            self._blocks[image.size] = tuple(int(token) for token in found["input_ids"][0])
        return self._blocks[image.size]

    def expand(self, ids: Sequence[int], images: Sequence[Image]) -> list[int]:
        """Put each image's block where the chat template left one token for it."""
        if ids.count(self.token_id) != len(images):
            raise ModelError(
                f"the chat template of this model has {ids.count(self.token_id)} places for "
                f"{len(images)} images; use a model whose template knows content of type image"
            )
        rest = iter(images)
        return [
            token
            for one in ids
            for token in (self.block(next(rest)) if one == self.token_id else (one,))
        ]

    def num_tokens(self, image: Image) -> int:
        """Image tokens of an image, without the marks around them."""
        return self.block(image).count(self.token_id)

    def num_values(self, image: Image) -> int:
        """Input values of the vision tower for an image, the same for all images of its size."""
        if image.size not in self._num_values:
            tensors = self.pixels([image]).values()
            self._num_values[image.size] = sum(value.numel() for value in tensors)
        return self._num_values[image.size]

    def pixels(self, images: Sequence[Image]) -> Pixels:
        """Input of the vision tower, for images of one size on top of each other.

        A processor checks its settings at each call, which takes longer than a small image does.
        """
        found = self._call(images, return_tensors="pt")
        return {name: value for name, value in found.items() if name not in TEXT_INPUTS}

    def save(self, folder: Path) -> None:
        """Files beside a model's, so that it can be opened with its images again."""
        self.processor.image_processor.save_pretrained(folder)
        more = self.processor.to_dict()
        for part in self.processor.get_attributes():
            more.pop(part, None)
        (folder / PROCESSOR_FILE).write_text(json.dumps(more, indent=2) + "\n", encoding="utf-8")

    def _call(self, images: Sequence[Image], **more: Any) -> Any:
        return self.processor(
            text=[self.processor.image_token] * len(images),
            images=[image.pixels for image in images],
            add_special_tokens=False,
            **more,
        )


def open_inputs(source: str, options: dict[str, Any], config: Any, tokenizer: Any) -> ImageInputs:
    """The image side of a model's folder; a ModelError says why there is none."""
    need_pillow()
    token_id = getattr(config, "image_token_id", None)
    if token_id is None:
        raise ModelError("its config.json names no image_token_id")
    try:
        image_processor = AutoImageProcessor.from_pretrained(source, backend="pil", **options)
        named, _ = ProcessorMixin.get_processor_dict(source, **options)
    except (OSError, ValueError, ImportError) as error:
        reason = " ".join(str(error).split()).partition(". ")[0][:200]
        raise ModelError(f"its image processor cannot be opened: {reason}") from error
    maker = _without_videos(_class_of(named, config))
    parts = [_part(name, image_processor, tokenizer) for name in maker.get_attributes()]
    processor = maker.from_args_and_dict(parts, named)
    if processor.chat_template:
        tokenizer.chat_template = processor.chat_template
    return ImageInputs(processor, int(token_id))


def make_inputs(kind: type, image_processor: Any, tokenizer: Any, token_id: int) -> ImageInputs:
    """The image side of a model that is made here: a processor of class ``kind``."""
    maker = _without_videos(kind)
    parts = [_part(name, image_processor, tokenizer) for name in maker.get_attributes()]
    return ImageInputs(maker(*parts), token_id)


def need_pillow() -> None:
    """Raise where images cannot be read; text needs no pillow, so nothing imports it before this."""
    try:
        import PIL  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise DependencyError("images need pillow; pip install 'ragen2[vision]'") from error


def _class_of(named: dict[str, Any], config: Any) -> Any:
    """The processor's class: as its files say, else as the model's type has it."""
    found = getattr(transformers, str(named.get("processor_class")), None)
    if found is None and type(config) in PROCESSOR_MAPPING:
        found = PROCESSOR_MAPPING[type(config)]
    if found is None or not hasattr(found, "replace_image_token"):
        raise ModelError(
            f"transformers has no processor for images of model type {config.model_type}"
        )
    return found


def _without_videos(kind: Any) -> Any:
    """The class, content with None for the parts that are not there."""

    def check(self: Any, name: str, argument: Any) -> Any:
        return (
            None if argument is None else kind.check_argument_for_proper_class(self, name, argument)
        )

    return type(kind.__name__, (kind,), {"check_argument_for_proper_class": check})


def _part(name: str, image_processor: Any, tokenizer: Any) -> Any:
    return {"image_processor": image_processor, "tokenizer": tokenizer}.get(name)
