"""A disk that fills up while weights are saved: one line, and the older checkpoint stays."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ragen2.algorithms import GRPO
from ragen2.backends.learner.learner import TorchLearner
from ragen2.backends.settings import LearnerSettings, ModelSettings
from ragen2.errors import RunError
from ragen2.runs.checkpoints import (
    checkpoint_folder,
    find_damage,
    list_checkpoints,
    save_checkpoint,
)
from ragen2.runs.files import fill_folder


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """Writes beyond this size fail in the operating system, as they do on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def learner(small: Any, random_samples: Any) -> TorchLearner:
    made = TorchLearner(*small, ModelSettings(), LearnerSettings(), seed=0)
    made.update(random_samples([20, 30]), GRPO(), scale=1.0)
    return made


def test_a_disk_that_fills_up_leaves_the_older_checkpoint_and_says_so(learner, tmp_path):
    save_checkpoint(tmp_path, 1, learner.save, keep=2)
    folder = checkpoint_folder(tmp_path, 1)
    weights, optimiser = (
        (folder / n).stat().st_size for n in ("model.safetensors", "optimizer.pt")
    )
    assert weights < optimiser
    for limit in (weights // 2, (weights + optimiser) // 2):
        with files_of_at_most(limit), pytest.raises(RunError) as caught:
            save_checkpoint(tmp_path, 2, learner.save, keep=2)
        assert "checkpoint of step 2 could not be saved: " in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
        assert list_checkpoints(tmp_path) == [folder]
        assert find_damage(folder) == ""


def test_a_model_folder_on_a_full_disk_does_not_appear(learner, tmp_path):
    with files_of_at_most(1000), pytest.raises(RunError, match="model cannot be written: "):
        fill_folder(tmp_path / "model", learner.save_model, {})
    assert list(tmp_path.iterdir()) == []
