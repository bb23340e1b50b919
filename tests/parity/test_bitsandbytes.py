"""Frozen weights in 4 bits, with bitsandbytes from a folder of its own, are the unpacked model's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.peers
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-bitsandbytes"


def test_four_bits():
    if not (FOLDER / "bitsandbytes").is_dir():
        pytest.skip("needs bitsandbytes (make peers)")
    paths = [str(FOLDER), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    file = "tests/backends/learner/test_four_bits.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", file],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert re.search(r"[1-9]\d* passed", done.stdout), done.stdout[-2000:]
    assert "skipped" not in done.stdout
