"""What a run will need, computed and not measured: GPU memory and time, from the shape of its model.

Memory: float32 weights, gradients and AdamW's two moments (16 bytes per parameter); the sampler's bfloat16
copy (2); the starting model for KL (4); a critic (16); keys and values of all episodes; and what an
update keeps of a micro-batch: one float32 row per layer, one layer's inside in bfloat16, and the inside of
as many layers as fit 5 GiB, or of none or all where the run file says so (of none in models that read
images). On the update whose memory was measured (SmolLM2-135M's shape, 32,768 tokens, one H200) this gives
4.7 GiB where all layers compute again (4.8 measured) and 9.7 where 5 GiB are kept (11.2 measured).

Time: arithmetic at a share of what the device can do, and at each written token one pass over weights and
cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragen2.backends.settings import EMBEDDED_MODELS, NewModel
from ragen2.config import RunConfig
from ragen2.errors import ModelError
from ragen2.reading import read_json

GIB = 2**30
TURNS_SHARE = 0.75
"""Of the turns that an episode may have."""
REPLY_SHARE = 0.5
"""Of the tokens that a reply may have."""
FIRST_PROMPT_TOKENS = 200
"""System message and first observation."""
TURN_TOKENS = 60
"""A later observation with its frame."""
GPU_MICRO_TOKENS = 32_768
LONGEST_CONTEXT = 8192
MOST_KEPT = 5 * GIB
"""Of the inside of layers, for the backward pass."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What of a model's architecture memory and time depend on."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    is_tied: bool = True
    tower: int = 0
    """Weights of the part that reads images."""

    @property
    def parameters(self) -> int:
        """All weights, biases left out."""
        attention = 2 * self.hidden * self.head_size * (self.heads + self.kv_heads)
        block = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        tables = self.vocabulary * self.hidden * (1 if self.is_tied else 2)
        return tables + self.layers * block + self.hidden + self.tower


@dataclass(frozen=True, slots=True)
class Device:
    """What a machine can do."""

    name: str
    flops: float
    """Per second, in the type that matrices are multiplied in."""
    use: float
    """Share of it that training reaches."""
    bytes_a_second: float
    seconds_a_token_step: float
    """Least time of writing one token for a whole batch: what starting kernels takes."""
    gib: float = math.inf
    """Memory of one; a CPU's is not looked at."""


H200 = Device(
    "one H200", flops=790e12, use=0.35, bytes_a_second=2.4e12, seconds_a_token_step=1e-3, gib=139.0
)
CORE = Device("one CPU core", flops=1.2e11, use=0.8, bytes_a_second=1e10, seconds_a_token_step=5e-3)

KNOWN: dict[str, ModelShape] = {
    "smollm2-135m": ModelShape(576, 30, 9, 3, 64, 1536, 49_152),
    "qwen2.5-0.5b": ModelShape(896, 24, 14, 2, 64, 4864, 151_936),
    "qwen2.5-1.5b": ModelShape(1536, 28, 12, 2, 128, 8960, 151_936),
    "qwen2.5-3b": ModelShape(2048, 36, 16, 2, 128, 11_008, 151_936),
    "qwen2.5-vl-3b": ModelShape(2048, 36, 16, 2, 128, 11_008, 151_936, tower=668_700_000),
    "qwen2.5-7b": ModelShape(3584, 28, 28, 4, 128, 18_944, 152_064, is_tied=False),
    "llama-3.2-3b": ModelShape(3072, 28, 24, 8, 128, 8192, 128_256),
}
"""As their configuration files have it."""


@dataclass(frozen=True, slots=True)
class RunCost:
    """What one run will need."""

    parameters: int
    gpu_gib: float
    minutes: float
    device: str


def shape_of(path: str, new: NewModel | None = None) -> ModelShape | None:
    """The shape of a model: one to be made, a folder, or one that is known by name; None if unknown."""
    if new is not None:
        return ModelShape(
            new.hidden, new.layers, new.heads, new.heads, new.hidden // new.heads, new.intermediate,
            new.vocabulary, tower=_new_tower(new),
        )  # fmt: skip
    is_ours = path in EMBEDDED_MODELS
    folder = Path(__file__).parents[1] / "models" / path if is_ours else Path(path)
    if (folder / "config.json").is_file():
        return _read_shape(folder / "config.json")
    lowered = path.lower()
    return next((shape for name, shape in KNOWN.items() if name in lowered), None)


def run_cost(config: RunConfig, shape: ModelShape, device: Device) -> RunCost:
    """Memory and time of a whole run."""
    episodes = config.rollout.prompts * config.rollout.group_size
    turns = max(1.0, TURNS_SHARE * config.env.max_turns)
    reply = REPLY_SHARE * config.rollout.reply_tokens(config.env)
    length = min(FIRST_PROMPT_TOKENS + turns * (reply + TURN_TOKENS), LONGEST_CONTEXT)
    seconds = _write_seconds(shape, device, episodes, turns, reply, length) + _update_seconds(
        config, shape, device, episodes * length
    )
    evaluations = 2 + config.steps // config.evaluation.every
    evaluations *= 2 if config.evaluation.second_temperature else 1
    tasks = config.evaluation.tasks
    held_out = evaluations * _write_seconds(shape, device, tasks, turns, reply, length)
    return RunCost(
        parameters=shape.parameters,
        gpu_gib=_memory(config, shape, episodes, length) / GIB,
        minutes=(config.steps * seconds + held_out) / 60.0,
        device=device.name,
    )


def _memory(config: RunConfig, shape: ModelShape, episodes: float, length: float) -> float:
    """Bytes at the peak, in the update; the sampler keeps its cache from step to step."""
    count = shape.parameters
    held = 18.0 * count
    if config.algorithm.kl_coefficient > 0.0:
        held += 4.0 * count
    if config.algorithm.critic is not None:
        held += 16.0 * count
    cache = 4.0 * shape.layers * shape.kv_heads * shape.head_size * episodes * length
    micro = min(config.learner.micro_tokens or GPU_MICRO_TOKENS, episodes * length)
    inside = 2.0 * (3 * shape.intermediate + 8 * shape.hidden)
    kept = micro * (4.0 * shape.hidden * shape.layers + inside)
    rows = 2 * (shape.heads + shape.kv_heads) * shape.head_size + 2 * shape.intermediate
    insides = micro * shape.layers * (4.0 * shape.hidden + 2.0 * rows)
    computes_again = config.learner.gradient_checkpointing
    if computes_again is False:
        kept += insides
    elif computes_again == "auto" and not shape.tower:
        kept += min(MOST_KEPT, insides)
    return held + cache + kept


def _write_seconds(
    shape: ModelShape, device: Device, episodes: float, turns: float, reply: float, length: float
) -> float:
    """Reading prompts is arithmetic; each written token reads the weights and the cache once."""
    read = 2.0 * shape.parameters * episodes * length / (device.flops * device.use)
    cache = 4.0 * shape.layers * shape.kv_heads * shape.head_size * episodes * length / 2.0
    a_token = (2.0 * shape.parameters + cache) / device.bytes_a_second
    written = 2.0 * shape.parameters * episodes / (device.flops * device.use)
    return read + turns * reply * (device.seconds_a_token_step + max(a_token, written))


def _update_seconds(config: RunConfig, shape: ModelShape, device: Device, tokens: float) -> float:
    """Forward, backward and the recomputed forward of checkpointing: 8 operations per weight and token."""
    passes = 8.0 * config.learner.epochs
    if config.algorithm.kl_coefficient > 0.0:
        passes += 2.0
    if config.algorithm.critic is not None:
        passes += 8.0 * config.learner.epochs + 2.0
    return passes * shape.parameters * tokens / (device.flops * device.use)


def _tower(width: int, layers: int, intermediate: int, hidden: int) -> int:
    """Two frames of 14 x 14 pixels in three colours; blocks; four patches joined and laid to ``hidden``."""
    block = 4 * width**2 + 3 * width * intermediate
    merged = 4 * width
    return 2 * 14 * 14 * 3 * width + layers * block + merged * (merged + hidden)


def _new_tower(new: NewModel) -> int:
    if new.vision is None:
        return 0
    return _tower(new.vision.hidden, new.vision.layers, new.vision.intermediate, new.hidden)


def _read_shape(file: Path) -> ModelShape | None:
    """As a model's configuration tells it; None where that uses other names for its sizes."""
    try:
        data = read_json(file)
        # A model that reads images has its sizes inside.
        text = {**data, **data.get("text_config", {})}
        heads = int(text["num_attention_heads"])
        hidden = int(text["hidden_size"])
        return ModelShape(
            hidden=hidden,
            layers=int(text["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(text.get("num_key_value_heads") or heads),
            head_size=int(text.get("head_dim") or hidden // heads),
            intermediate=int(text["intermediate_size"]),
            vocabulary=int(text["vocab_size"]),
            is_tied=bool(text.get("tie_word_embeddings", True)),
            tower=_read_tower(data["vision_config"], hidden) if "vision_config" in data else 0,
        )
    except KeyError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise ModelError(f"{file} does not describe a model: {error}; get it again") from error


def _read_tower(vision: Mapping[str, Any], hidden: int) -> int:
    """As if it were Qwen2.5-VL's, from the sizes that the file has."""
    layers = vision["depth"] if "depth" in vision else vision["num_hidden_layers"]
    width, intermediate = vision["hidden_size"], vision["intermediate_size"]
    return _tower(int(width), int(layers), int(intermediate), hidden)
