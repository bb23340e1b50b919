"""Small Llamas as GGUF files, their weights stored as any type there is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
Stored = tuple[np.ndarray, GGMLQuantizationType]


def rounded(values: Any, kind: GGMLQuantizationType) -> Stored:
    """Weights stored as a type that the gguf package can write."""
    return gguf.quantize(np.asarray(values, dtype=np.float32), kind), kind


def random_blocks(rows: int, columns: int, kind: GGMLQuantizationType) -> Stored:
    """Weights of any type: bytes below 60 are finite numbers in every place."""
    block, size = GGML_QUANT_SIZES[kind]
    drawn = np.random.default_rng(0).integers(0, 60, (rows, columns // block * size))
    return drawn.astype(np.uint8), kind


def write_embedded_gguf(file: Path) -> None:
    """The embedded model."""
    from ragen2.backends.agent import open_model

    network, tokenizer = open_model("ragen2-tiny", device="cpu")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_gguf(file, network, tokenizer.hf)


def write_gguf(
    file: Path, network: Any, tokenizer: Any, stored: Mapping[str, Stored] | None = None
) -> None:
    """A Llama as a GGUF file: its metadata, its vocabulary and its weights in float32, but for ``stored``."""
    config, weights = network.config, network.state_dict()
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.convert_tokens_to_ids)
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_scores([0.5] * len(tokens))
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_chat_template(tokenizer.chat_template)
    plain = {
        "token_embd.weight": weights["model.embed_tokens.weight"].numpy(),
        "output_norm.weight": weights["model.norm.weight"].numpy(),
    }
    for layer in range(config.num_hidden_layers):
        for ours, theirs in NAMES.items():
            values = weights[f"model.layers.{layer}.{ours}.weight"].numpy()
            if theirs in ("attn_q", "attn_k"):  # rotary pairs lie side by side in this format
                halves = values.reshape(config.num_attention_heads, 2, -1, values.shape[1])
                values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
            plain[f"blk.{layer}.{theirs}.weight"] = values
    for name in {**plain, **(stored or {})}:
        values, kind = (stored or {}).get(name, (plain.get(name), None))
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
