"""Where numbers come from: the commit, the versions and the machine that made them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from ragen2.runs.sessions import installed_versions

SECONDS = 10.0
COMMIT = "RAGEN2_COMMIT"
"""Environment variable with the commit, for machines that have the code without its history."""


def provenance() -> dict[str, object]:
    """Commit, versions and hardware; what cannot be told is left out."""
    found: dict[str, object] = {
        "versions": installed_versions(),
        "hardware": {"processor": _processor(), "cores": os.cpu_count(), "gpus": _gpus()},
    }
    commit = _told(["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"])
    given = os.environ.get(COMMIT)
    if given:
        found["commit"] = given
    elif commit:
        found["commit"] = commit[0]
        changed = _told(["git", "-C", str(Path(__file__).parent), "status", "--porcelain", "."])
        found["commit_is_clean"] = not changed
    return found


def _processor() -> str:
    """The model of the processor, or its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _gpus() -> list[str]:
    return _told(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])


def _told(words: list[str]) -> list[str]:
    """Lines that a program prints; none where it is missing or fails."""
    if shutil.which(words[0]) is None:
        return []
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            words, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
