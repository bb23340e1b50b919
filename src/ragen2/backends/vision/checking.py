"""Whether our image embeddings give the logits of a model's own code: tried once when it is opened."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ragen2.backends.vision.embedding import ImageEmbedder
from ragen2.errors import ModelError
from ragen2.seeding import stream
from ragen2.types import Image, Message

if TYPE_CHECKING:
    from ragen2.backends.tokenizer import TemplateTokenizer

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
