"""Where numbers come from: the machine and the commit that made them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from pydantic import BaseModel, ConfigDict

SECONDS = 10.0
COMMIT = "RAGEN2_COMMIT"
"""Environment variable with the commit, for machines that have the code without its history."""
DRIVER = Path("/proc/driver/nvidia/gpus")
PROCESSOR = Path("/proc/cpuinfo")


class Machine(BaseModel):
    """What a number may depend on besides the code."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    processor: str
    cores: int
    gpus: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join([*self.gpus, f"{self.cores} cores of {self.processor}"])


def this_machine() -> Machine:
    """Processor, cores and GPUs of this machine."""
    return Machine(processor=_processor(), cores=os.cpu_count() or 1, gpus=tuple(_gpus()))


def code_commit() -> tuple[str, bool | None]:
    """The commit of the code that runs, and whether that is changed; empty and None where nothing tells."""
    given = os.environ.get(COMMIT)
    if given:
        return given, None
    here = str(Path(__file__).parents[1])
    commit = _told(["git", "-C", here, "rev-parse", "HEAD"])
    if not commit:
        return "", None
    return commit[0], bool(_told(["git", "-C", here, "status", "--porcelain", "."]))


def _processor() -> str:
    """The model of the processor, or its architecture."""
    return _named(PROCESSOR, "model name") or platform.machine()


def _gpus() -> list[str]:
    """From the driver's files, which are read at once; its program is asked where they are missing."""
    names = [_named(file, "Model") for file in sorted(DRIVER.glob("*/information"))]
    found = [name for name in names if name]
    return found or _told(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])


def _named(file: Path, name: str) -> str:
    """What stands behind the first ``name :`` of a file; nothing where there is none."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    found = (line.partition(":")[2].strip() for line in lines if line.startswith(name))
    return next(found, "")


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
