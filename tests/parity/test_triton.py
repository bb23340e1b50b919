"""The GPU engine's kernels, run by Triton's interpreter on the CPU, write what the plain path writes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.peers
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-triton"


@pytest.mark.parametrize(
    "file",
    [
        "tests/backends/sampling/gpu/test_gpu_engine.py",
        "tests/backends/learner/test_learner_kernels.py",
    ],
)
def test_kernels_under_the_interpreter(file):
    if not (FOLDER / "triton").is_dir():
        pytest.skip("needs Triton (make peers)")
    paths = [str(FOLDER), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            file,
        ],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert re.search(r"[1-9]\d* passed", done.stdout), done.stdout[-2000:]
    assert "skipped" not in done.stdout
