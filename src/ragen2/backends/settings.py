"""Settings of the model, its optimiser and the server that may hold it, readable without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ragen2.component import Settings

Precision = Literal["auto", "float32", "bfloat16"]
EngineChoice = Literal["auto", "plain", "vllm", "server"]

EMBEDDED = "ragen2-tiny"
"""The model inside the package."""
EMBEDDED_MODELS = (EMBEDDED, "ragen2-tiny-vl")
"""All models inside the package; the second reads images."""
GPU_SHARE = "RAGEN2_GPU_SHARE"
"""Environment variable: the share of the GPU's memory that a process keeps to."""
SCORE_TOKENS = 16_384
"""Padded tokens in memory at once while scoring, by default."""


class ModelSettings(Settings):
    """Which model, where, and what of it is trained."""

    path: str = Field(
        EMBEDDED,
        description="folder, hub id, GGUF file, run directory, `ragen2-tiny`, or `ragen2-tiny-vl`, "
        "which reads images",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where the model lives; `auto` takes a GPU when there is one"
    )
    precision: Precision = Field(
        "auto",
        description="type of matrix products; weights that are trained stay float32; `auto`: bfloat16 on a "
        "GPU",
    )
    engine: EngineChoice = Field(
        "auto",
        description="what samples: `auto` is an engine of ours where it can run the model, `vllm` is "
        "vLLM in this process, `server` the vLLM server of `server.url`",
    )
    engine_memory: float = Field(
        4.0, gt=0.0, description="GiB that vLLM in this process takes for its cache"
    )
    score_tokens: int = Field(
        SCORE_TOKENS,
        ge=1,
        description="padded tokens in memory at once while scoring; changes speed, not results",
    )
    vision: Literal["frozen", "trained"] = Field(
        "frozen",
        description="whether what a vision-language model has before its language model is trained "
        "as well; frozen, each image is encoded once",
    )
    lora_rank: int = Field(
        0, ge=0, le=4096, description="rank of LoRA adapters; 0 trains all weights"
    )
    lora_alpha: int = Field(32, ge=1, description="scale of LoRA adapters")
    frozen: Literal["auto", "nf4"] = Field(
        "auto",
        description="how LoRA holds the weights that it leaves as they are: in the type of products, or the "
        "linear layers in 4 bits, by bitsandbytes",
    )


class NewVision(Settings):
    """Shape of the vision tower of a new model, which is then of the Qwen2.5-VL architecture."""

    hidden: int = Field(64, ge=16, le=65_536, description="width of the tower")
    layers: int = Field(2, ge=1, le=1000, description="blocks of the tower")
    heads: int = Field(2, ge=1, le=1024, description="attention heads of the tower")
    intermediate: int = Field(128, ge=16, le=1_000_000, description="width of its MLP")


class NewModel(Settings):
    """Shape of a model made from nothing, with its own tokenizer: a Llama, or with `vision` a Qwen2.5-VL."""

    hidden: int = Field(160, ge=16, le=65_536, description="width of the residual stream")
    layers: int = Field(4, ge=1, le=1000, description="transformer blocks")
    heads: int = Field(4, ge=1, le=1024, description="attention heads")
    intermediate: int = Field(448, ge=16, le=1_000_000, description="width of the MLP")
    vocabulary: int = Field(
        512, ge=300, le=1_000_000, description="tokens of the byte-level tokenizer"
    )
    context: int = Field(2048, ge=64, le=10_000_000, description="longest sequence in tokens")
    vision: NewVision | None = Field(None, description="the tower of a model that reads images")


class LearnerSettings(Settings):
    """How an update is made."""

    lr: float = Field(1e-6, gt=0.0, description="learning rate of AdamW")
    weight_decay: float = Field(0.0, ge=0.0, description="AdamW's weight decay")
    grad_clip: float = Field(
        1.0, gt=0.0, description="largest gradient norm; a longer one is scaled"
    )
    warmup_steps: int = Field(0, ge=0, description="optimiser steps over which lr rises from 0")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="how lr goes on after the warm-up, over the whole run"
    )
    lr_end: float = Field(
        0.0, ge=0.0, le=1.0, description="share of lr that a falling schedule ends at"
    )
    max_bad_updates: int = Field(
        10,
        ge=0,
        description="updates in a row without a finite gradient that end the run; 0 never ends it",
    )
    epochs: int = Field(1, ge=1, le=10_000, description="passes over a batch")
    minibatches: int = Field(
        1, ge=1, le=100_000, description="optimiser steps per pass over a batch"
    )
    micro_tokens: int = Field(
        0,
        ge=0,
        description="tokens in memory at once; 0 takes 2,048 on a CPU, and on a GPU 32,768 or what there is "
        "memory for; changes speed, not results",
    )
    gradient_checkpointing: bool | Literal["auto"] = Field(
        "auto",
        description="keep one row per layer and compute the rest again: less memory, a third slower; "
        "`auto` does on a GPU, for what does not fit into a few GiB",
    )
    parallel: Literal["ddp", "fsdp2"] = Field(
        "ddp",
        description="several processes: each holds all weights, or a part of them; one process "
        "ignores it",
    )
    compile: bool = Field(
        False,
        description="torch.compile the passes of an update; needs a compiler, pays on long runs",
    )


class ServerSettings(Settings):
    """How a served model is asked; but for `api`, nothing here changes what it answers."""

    url: str = Field(
        "",
        description='vLLM server that samples for training with `model.engine = "server"`, as '
        "http://host:8000#NAME",
    )
    api: Literal["tokens", "chat"] = Field(
        "tokens",
        description="how `eval` asks: `tokens` sends token ids and gets them back with log-probs, `chat` "
        "sends and gets text, as any server can, and measures no collapse",
    )
    push_folder: str = Field(
        "", description="folder that it can read, for new weights; left out, one of this machine's"
    )
    concurrency: int = Field(16, ge=1, le=10_000, description="requests under way at the same time")
    batch: int = Field(16, ge=1, description="prompts in one scoring request")
    timeout: float = Field(
        120.0, gt=0.0, description="seconds that an answer may take, then it is asked for again"
    )
    retries: int = Field(6, ge=0, description="tries after the first, for a request that failed")
    backoff: float = Field(
        0.5,
        ge=0.0,
        description="seconds before the first retry; each later one waits twice as long",
    )
    longest_wait: float = Field(
        120.0, gt=0.0, description="seconds to wait before a retry at most, also if the server asks"
    )
    input_price: float = Field(
        0.0, ge=0.0, description="price per million prompt tokens, for the total at the end"
    )
    output_price: float = Field(
        0.0, ge=0.0, description="price per million written tokens, for the total at the end"
    )
    api_key_env: str = Field(
        "OPENAI_API_KEY",
        description="environment variable that holds the key, if there is one; in a file, one that can "
        "hold nothing else",
    )
