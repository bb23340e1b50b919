"""The tests of tests/integrations/vllm, run where they can be: in the venv that has vLLM for CPUs."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
FOLDER = "tests/integrations/vllm"


@pytest.mark.peers
def test_vllm_in_process_and_over_http():
    if not (ROOT / ".venv-vllm" / ".ready").exists():
        pytest.skip("needs vLLM in .venv-vllm (make peers)")
    pytest_there = [str(PYTHON), "-m", "pytest", "-p", "no:cacheprovider", "--confcutdir", FOLDER]
    done = subprocess.run(
        [*pytest_there, "-m", "not learning", FOLDER],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert re.search(r"[1-9]\d* passed", done.stdout), done.stdout[-2000:]
    assert "skipped" not in done.stdout
