"""TRL's GRPOTrainer does the job of `bench step --against trl` as it is described."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from parity_batches import ROOT

pytestmark = pytest.mark.peers


@pytest.mark.parametrize("way", ["generate", "static", "bfloat16"])
def test_trl_writes_and_trains_on_what_it_is_asked_for(way):
    python = ROOT / ".venv-trl" / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"{python} is missing; make it with: make peers")
    done = subprocess.run(
        [str(python), str(Path(__file__).parent / "trl_race_side.py"), way],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    groups = [[0] * 4 + [1] * 4, [2] * 4 + [3] * 4, [4] * 4 + [5] * 4]
    assert told["seeds"] == groups  # whole groups, in order, one batch a step
    assert told["theirs"] == [2 * 4 * 6] * 3  # every completion has its full length
    assert (told["steps"], told["ours"]) == ([1, 2, 3], [5, 5, 5])
    assert min(told["seconds"]) > 0
    assert told["is_untouched"]  # TRL trains a copy
