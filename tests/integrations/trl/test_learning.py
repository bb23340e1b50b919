"""The embedded model learns FrozenLake inside TRL, through our environment."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


@pytest.mark.learning
def test_frozen_lake_is_learnt_inside_trl(tmp_path):
    path = Path(__file__).parents[3] / "benchmarks" / "trl_frozen_lake.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    found = script.train(tmp_path, batches=15, tasks=256)
    assert found["gain"] >= script.GAIN, found
