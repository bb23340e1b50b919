"""The tests of our adapters for verifiers, OpenEnv and datasets, run in the venvs that have them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = "tests/integrations"
OWN_LAUNCHER = {"trl", "verl", "vllm"}


@pytest.mark.peers
@pytest.mark.parametrize(
    ("venv", "tests"),
    [
        (".venv-verifiers", f"{HERE}/verifiers"),
        (".venv-openenv", f"{HERE}/openenv"),
        (".venv-trl", f"{HERE}/test_datasets_rows.py"),  # TRL brings datasets
    ],
)
def test_an_adapter_with_its_package(venv: str, tests: str) -> None:
    if not (ROOT / venv / ".ready").exists():
        pytest.skip(f"needs {venv} (make peers)")
    python = str(ROOT / venv / "bin" / "python")
    done = subprocess.run(
        [python, "-m", "pytest", "-p", "no:cacheprovider", "--confcutdir", HERE, tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert re.search(r"[1-9]\d* passed", done.stdout), done.stdout[-2000:]
    assert "skipped" not in done.stdout


def test_every_test_of_a_peer_is_run_by_somebody() -> None:
    """A folder is run whole, or the launcher names each of its files."""
    own = Path(__file__).read_text()
    folders = {file.parent for file in (ROOT / HERE).glob("*/test_*.py")}
    assert {folder.name for folder in folders} >= OWN_LAUNCHER
    for folder in folders:
        if folder.name not in OWN_LAUNCHER:
            assert f"{{HERE}}/{folder.name}" in own, folder
            continue
        launcher = (ROOT / HERE / f"test_{folder.name}_peer.py").read_text()
        is_whole = re.search(r"^ +\[\*pytest_there, .*, FOLDER\],$", launcher, re.MULTILINE)
        for file in folder.glob("test_*.py"):
            assert is_whole or f'"{file.name}"' in launcher, file


def test_every_peer_is_made_by_make() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (made,) = re.findall(r"^PEERS := (.*)$", makefile, re.MULTILINE)
    used = {
        name
        for file in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"\.venv-([a-z-]+[a-z])", file.read_text())
    }
    assert used == set(made.split())
