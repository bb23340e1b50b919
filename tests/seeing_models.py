"""A tiny vision-language model with random weights, as a folder that any program could open."""

from __future__ import annotations

from pathlib import Path

TEXTS = ["I am at (1,2), goal (3,0), 2 down and 2 left. so down left"] * 4
IMAGES = ("env.observation=image", "env.max_turns=2", "rollout.max_tokens=12")
"""Settings of runs that such a model is quick with."""


def tiny_seeing_model(folder: Path, *, context: int = 1024) -> Path:
    """Of Qwen2.5-VL's kind: one token for 28 x 28 pixels."""
    from ragen2.backends.agent import make_agent
    from ragen2.backends.settings import LearnerSettings, NewModel, NewVision

    shape = NewModel(
        hidden=32,
        layers=2,
        heads=4,
        intermediate=64,
        vocabulary=320,
        context=context,
        vision=NewVision(hidden=32, layers=2, heads=2, intermediate=48),
    )
    folder.mkdir()
    agent = make_agent(shape, TEXTS, LearnerSettings(), device="cpu", seed=3)
    agent.learner.save_model(folder)
    return folder
