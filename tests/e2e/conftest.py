"""One whole run that several tests compare with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import down_lake
import pytest
import torch

from command_line import settings, start_python

SETTINGS = (
    "steps=8",
    "rollout.prompts=2",
    "rollout.group_size=4",
    "evaluation.tasks=8",
    "evaluation.probe_traces=2",
    "checkpoints.every=2",
)


@pytest.fixture(scope="session")
def run_settings() -> list[str]:
    """What the whole run is started with."""
    return settings(*SETTINGS)


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory, run_settings: list[str]) -> Path:
    """A run of eight steps that nobody disturbed, in an interpreter of its own as a user's is."""
    folder = tmp_path_factory.mktemp("whole")
    done = start_python(folder, "-m", "ragen2", "train", *run_settings, "--out", "run")
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
    return down_lake.define()
