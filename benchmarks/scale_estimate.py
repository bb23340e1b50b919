"""What a step should need, from the shape of a model and the data sheet of a GPU: computed, not measured.

python benchmarks/scale_estimate.py prints the table of docs/scale.md.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
STATE_BYTES = 16
"""Of each weight while training: itself, its gradient and AdamW's two averages, all float32."""
SERVED_BYTES = 2
"""Of each weight inside vLLM: bfloat16."""
UPDATE_FLOPS = 8
"""Of each weight and token: forward 2, backward 4, and forward once more for checkpointing."""
READ_FLOPS = 2
"""Of each weight and token that is only scored."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A dense transformer."""

    name: str
    weights: float
    layers: int
    hidden: int
    kv_width: int
    """Key-value heads times their width."""
    vocabulary: int


@dataclass(frozen=True, slots=True)
class GPU:
    """A data sheet, and the shares of it that jobs reach."""

    memory: float = 80 * GIB
    flops: float = 989e12
    bandwidth: float = 3.35e12
    flops_share: float = 0.35
    bandwidth_share: float = 0.6


@dataclass(frozen=True, slots=True)
class Work:
    """One step: episodes, their whole length in tokens, and how much of it the model writes."""

    episodes: int = 128
    tokens: int = 1500
    written: int = 600
    kept: float = 0.5
    """Share of episodes that the filter keeps."""
    micro_tokens: int = 32_768


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of one GPU in GiB, of one step in seconds."""

    state: float
    """Weights, gradients and optimiser, split over all GPUs."""
    activations: float
    served: float
    """vLLM's copy of the weights."""
    cache: float
    """Keys and values of all episodes that this GPU plays."""
    rollout: float
    update: float
    scored: float
    """Old log-probs of what was kept."""


SHAPES = (
    Shape("0.5B", 0.49e9, 24, 896, 128, 151_936),
    Shape("1.5B", 1.54e9, 28, 1536, 256, 151_936),
    Shape("3B", 3.09e9, 36, 2048, 256, 151_936),
    Shape("7B", 7.62e9, 28, 3584, 512, 152_064),
    Shape("14B", 14.8e9, 48, 5120, 1024, 152_064),
)
"""The Qwen2.5 family, from the configurations of its models."""


def estimate(shape: Shape, gpus: int, work: Work | None = None, gpu: GPU | None = None) -> Estimate:
    """Memory of each GPU and seconds of a step on ``gpus`` of them."""
    work, gpu = work or Work(), gpu or GPU()
    tokens = work.episodes * work.tokens
    kept = tokens * work.kept
    speed = gpus * gpu.flops * gpu.flops_share
    # One layer is gathered whole at a time, in bfloat16; logits are float32 and kept with their gradient.
    rows = min(work.micro_tokens, int(kept / gpus))
    activations = (
        2 * shape.weights / shape.layers
        + 2 * rows * shape.layers * shape.hidden
        + 2 * 4 * rows * shape.vocabulary
    )
    cache = 2 * 2 * shape.layers * shape.kv_width * work.tokens * work.episodes / gpus
    served = SERVED_BYTES * shape.weights
    # Each written token reads all weights once for the whole batch, and its own cache.
    per_token = (served + cache / 2) / (gpu.bandwidth * gpu.bandwidth_share)
    return Estimate(
        state=STATE_BYTES * shape.weights / gpus / GIB,
        activations=activations / GIB,
        served=served / GIB,
        cache=cache / GIB,
        rollout=work.written * per_token,
        update=UPDATE_FLOPS * shape.weights * kept / speed,
        scored=READ_FLOPS * shape.weights * kept / speed,
    )


def table(gpus: tuple[int, ...] = (1, 8, 32)) -> list[str]:
    """Rows of the table of docs/scale.md."""
    titles = ["model", "GPUs", "training state", "activations", "vLLM weights", "vLLM cache"]
    titles += ["rollout", "update", "fits 80 GB"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for shape in SHAPES:
        for count in gpus:
            one = estimate(shape, count)
            used = one.state + one.activations + one.served + one.cache
            fits = "yes" if used < 0.9 * GPU().memory / GIB else "no"
            lines.append(
                f"| {shape.name} | {count} | {one.state:.1f} GiB | {one.activations:.1f} GiB | "
                f"{one.served:.1f} GiB | {one.cache:.1f} GiB | {one.rollout:.1f} s | "
                f"{one.update + one.scored:.1f} s | {fits} |"
            )
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
