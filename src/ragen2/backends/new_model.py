"""Make a small model and its tokenizer from nothing: an ordinary Hugging Face folder's contents.

A model that reads images is a Qwen2.5-VL: an image of 28 x 28 pixels is one token.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)

from ragen2.backends.settings import NewModel, NewVision
from ragen2.backends.vision.inputs import ImageInputs, make_inputs, need_pillow
from ragen2.seeding import stream_key

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
WORDS = r" ?\(\d+,\d+\)| ?[A-Za-z]+| ?\d| ?[^\sA-Za-z\d]+|\s+"
"""One piece is a cell like (2,3), a word, a digit, a run of signs, or white space."""
IMAGE, IMAGE_START, IMAGE_END = "<|image_pad|>", "<|vision_start|>", "<|vision_end|>"
VIDEO = "<|video_pad|>"
"""Never used, but the architecture asks for it."""
ROPE_THETA = 10.0
"""Base of the rotations of a model that reads images. Its columns have the slowest ones: at the usual
10,000 a head of 32 would turn by at most 0.003 from one column of a board to the next."""
SPREAD = 1.2
"""Standard deviation of new weights times the root of the width, for a model that reads images. From
transformers' 0.02 one of width 96 named cells by chance after 240 steps, fluent as it was by then."""
PATCH = 14
"""Pixels of a patch's side; two by two of them are one image token."""
LARGEST_IMAGE = 28 * 28 * 1024
"""Pixels; larger images are shrunk to that."""
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


IMAGE_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocabulary: int, *, reads_images: bool = False) -> Any:
    """A byte-level BPE tokenizer: frequent words are one token, any other text still has tokens.

    With ``reads_images`` it also has the tokens that stand for images.
    """
    marks = [IMAGE_START, IMAGE_END, IMAGE, VIDEO] if reads_images else []
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(TAGS),
        special_tokens=[PAD, START, END, *marks],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        chat_template=IMAGE_CHAT_TEMPLATE if reads_images else CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def new_model(shape: NewModel, tokenizer: Any, seed: int) -> Any:
    """A Llama, or with ``vision`` a Qwen2.5-VL, with random weights; the same seed gives the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(stream_key(seed, "weights") % 2**63)
        if shape.vision is None:
            return LlamaForCausalLM(_llama(shape, tokenizer))
        return Qwen2_5_VLForConditionalGeneration(_qwen(shape, shape.vision, tokenizer))


def new_inputs(network: Any, tokenizer: Any) -> ImageInputs:
    """The image side of a new model."""
    need_pillow()
    from transformers import Qwen2_5_VLProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    pictures = Qwen2VLImageProcessorPil(
        size={"shortest_edge": 4 * PATCH * PATCH, "longest_edge": LARGEST_IMAGE}
    )
    return make_inputs(Qwen2_5_VLProcessor, pictures, tokenizer, network.config.image_token_id)


def _llama(shape: NewModel, tokenizer: Any) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _qwen(shape: NewModel, vision: NewVision, tokenizer: Any) -> Qwen2_5_VLConfig:
    half = shape.hidden // shape.heads // 2
    side = half * 3 // 8
    spread = SPREAD / shape.hidden**0.5
    text = {
        "initializer_range": spread,
        "vocab_size": len(tokenizer),
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "max_position_embeddings": shape.context,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": ROPE_THETA,
            # Shares of time, row and column, as in Qwen2.5-VL: 1/4, 3/8, 3/8.
            "mrope_section": [half - 2 * side, side, side],
        },
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
    }
    tower = {
        "initializer_range": spread,
        "depth": vision.layers,
        "hidden_size": vision.hidden,
        "intermediate_size": vision.intermediate,
        "num_heads": vision.heads,
        "out_hidden_size": shape.hidden,
        "patch_size": PATCH,
        "fullatt_block_indexes": list(range(vision.layers)),
    }
    return Qwen2_5_VLConfig(
        initializer_range=spread,
        text_config=text,
        vision_config=tower,
        tie_word_embeddings=True,
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        vision_start_token_id=tokenizer.convert_tokens_to_ids(IMAGE_START),
        vision_end_token_id=tokenizer.convert_tokens_to_ids(IMAGE_END),
        video_token_id=tokenizer.convert_tokens_to_ids(VIDEO),
    )
