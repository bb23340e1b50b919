"""The tests of tests/integrations/trl, run where they can be: in the venv that has TRL.

`make test` runs the quick ones if `make peers` has made the venv; `make test-peers` runs all but learning.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-trl" / "bin" / "python"
FOLDER = "tests/integrations/trl"


def run_there(marked: str) -> None:
    if not (ROOT / ".venv-trl" / ".ready").exists():
        pytest.skip("needs TRL in .venv-trl (make peers)")
    pytest_there = [str(PYTHON), "-m", "pytest", "-p", "no:cacheprovider", "--confcutdir", FOLDER]
    done = subprocess.run(
        [*pytest_there, "-m", marked, FOLDER],
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
    run_there("not slow and not learning")


@pytest.mark.peers
def test_all_but_learning():
    run_there("not learning")


@pytest.mark.learning
def test_learning():
    run_there("learning")
