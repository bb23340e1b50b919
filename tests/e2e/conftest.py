"""One whole run that several tests compare with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch

from command_line import run_program, settings
from ragen2.envs import FrozenLake, Step
from ragen2.envs.base import normalise
from ragen2.envs.frozen_lake import LakeEpisode

SETTINGS = (
    "steps=8",
    "rollout.prompts=2",
    "rollout.group_size=4",
    "evaluation.tasks=8",
    "checkpoints.every=2",
)


@pytest.fixture(scope="session")
def run_settings() -> list[str]:
    """What the whole run is started with."""
    return settings(*SETTINGS)


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory, run_settings: list[str]) -> Path:
    """A run of eight steps that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    done = run_program(folder, "train", *run_settings, "--out", "run")
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As many threads as the runs in subprocesses have, so that sums are rounded alike."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def only_down(own_kinds: None) -> str:
    """The kind of an environment that looks like a lake, where the one thing that pays is Down."""

    class DownEpisode(LakeEpisode):
        def step(self, action: str) -> Step:
            is_down = normalise(action) == "down"
            return Step(reward=float(is_down), done=True, solved=is_down)

    class OnlyDown(FrozenLake):
        kind: Literal["OnlyDown"] = "OnlyDown"

        def start(self, seed: int, luck: int) -> DownEpisode:
            episode = super().start(seed, luck)
            return DownEpisode(self, episode.lake, episode._slips)

    return OnlyDown().kind
