"""The tests of tests/integrations/verl, run where they can be: in the venvs that have verl.

Whole jobs take minutes, so `make test` leaves them to `make test-peers`.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = "tests/integrations/verl"


def run_there(venv: str, *files: str, marked: str = "slow or not slow") -> None:
    if not (ROOT / venv / ".ready").exists():
        pytest.skip(f"needs verl in {venv} (make peers)")
    python = str(ROOT / venv / "bin" / "python")
    pytest_there = [python, "-m", "pytest", "-p", "no:cacheprovider", "--confcutdir", FOLDER]
    done = subprocess.run(
        [*pytest_there, "-m", marked, *(f"{FOLDER}/{file}" for file in files)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert re.search(r"[1-9]\d* passed", done.stdout), done.stdout[-2000:]
    assert "skipped" not in done.stdout


@pytest.mark.slow
def test_the_quick_ones():
    run_there(".venv-verl", "test_agent_loop.py", "test_rows.py")


@pytest.mark.peers
def test_a_whole_job_with_the_hugging_face_rollout():
    run_there(".venv-verl", "test_hf_job.py")


@pytest.mark.peers
def test_a_whole_job_of_ppo_that_stops_and_goes_on():
    run_there(".venv-verl", "test_ppo_job.py")


@pytest.mark.peers
def test_a_whole_job_with_vllm():
    run_there(".venv-verl-vllm", "test_vllm_job.py")
