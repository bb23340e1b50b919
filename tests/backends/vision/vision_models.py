"""Tiny vision-language models with random weights, as folders that any program could open."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import (
    CLIPVisionConfig,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from ragen2.backends.agent import make_agent
from ragen2.backends.new_model import train_tokenizer
from ragen2.backends.settings import LearnerSettings, NewModel, NewVision

TEXTS = ["I am at (1,2), goal (3,0), 2 down and 2 left. so down left"] * 4
SHAPE = NewModel(
    hidden=32,
    layers=2,
    heads=4,
    intermediate=64,
    vocabulary=320,
    context=1024,
    vision=NewVision(hidden=32, layers=2, heads=2, intermediate=48),
)
SIDE = 56
"""Pixels of the images that LLaVA and Idefics3 see, whatever they are shown."""
PARTS_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] + '\n' }}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def qwen_folder(folder: Path) -> Path:
    """A Qwen2.5-VL: one token for 28 x 28 pixels, positions on three axes."""
    agent = make_agent(SHAPE, TEXTS, LearnerSettings(), device="cpu", seed=3)
    _enlarge(agent.learner.network)
    folder.mkdir()
    agent.learner.save_model(folder)
    return folder


def llava_folder(folder: Path) -> Path:
    """A LLaVA: every image is cut to one size, a CLIP tower, a Llama."""
    tokenizer = _tokenizer(["<image>"])
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**_tower(), num_channels=3),
        text_config=_llama(tokenizer),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        tie_word_embeddings=False,
    )
    pictures = CLIPImageProcessorPil(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}
    )
    more = {
        "processor_class": "LlavaProcessor",
        "patch_size": 14,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
    }
    network = _made(LlavaForConditionalGeneration, config)
    return _saved(folder, network, tokenizer, pictures, more)


def idefics_folder(folder: Path) -> Path:
    """An Idefics3: large images are cut into tiles with marks between them."""
    rows = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    marks = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *rows]
    tokenizer = _tokenizer(marks)
    config = Idefics3Config(
        vision_config=_tower(),
        text_config=_llama(tokenizer).to_dict(),
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    pictures = Idefics3ImageProcessorPil(
        size={"longest_edge": 2 * SIDE}, max_image_size={"longest_edge": SIDE}
    )
    more = {"processor_class": "Idefics3Processor", "image_seq_len": (SIDE // 14) ** 2 // 4}
    network = _made(Idefics3ForConditionalGeneration, config)
    return _saved(folder, network, tokenizer, pictures, more)


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "qwen2_5_vl": qwen_folder,
    "llava": llava_folder,
    "idefics3": idefics_folder,
}


def _tower() -> dict[str, int]:
    return {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": SIDE,
        "patch_size": 14,
    }


def _llama(tokenizer: Any) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _tokenizer(marks: list[str]) -> Any:
    tokenizer = train_tokenizer(TEXTS, 320)
    added = [AddedToken(mark, normalized=False, special=True) for mark in marks]
    tokenizer.add_special_tokens({"additional_special_tokens": added})
    tokenizer.chat_template = PARTS_TEMPLATE
    return tokenizer


def _made(kind: Any, config: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        network = kind(config)
    _enlarge(network)
    return network


@torch.no_grad()
def _enlarge(network: Any) -> None:
    """Weights as small as a fresh model's give nearly uniform choices; larger ones tell more apart."""
    for weight in network.parameters():
        if weight.ndim > 1:
            weight.mul_(4.0)


def _saved(folder: Path, network: Any, tokenizer: Any, pictures: Any, more: dict[str, Any]) -> Path:
    folder.mkdir()
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    pictures.save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps(more))
    return folder
