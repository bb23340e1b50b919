"""A GPU whose memory is too small for a run, told in one line."""

from __future__ import annotations


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch says so; asked by its words, because torch may not be there."""
    words = str(error).lower()
    return "cuda" in words and "out of memory" in words


def out_of_memory_line(error: RuntimeError) -> str:
    """What happened, and what needs less."""
    told = str(error).splitlines()[0].split(". GPU ")[0].rstrip(".")
    return (
        f"{told}; smaller settings: fewer --jobs, rollout.prompts or group_size, learner.micro_tokens, "
        "learner.gradient_checkpointing = true"
    )
