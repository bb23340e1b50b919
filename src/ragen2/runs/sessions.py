"""Where numbers come from: each start of a run, with the code and the machine it ran on (sessions.jsonl)."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from ragen2.errors import RunError

SECONDS = 10.0
COMMIT = "RAGEN2_COMMIT"
"""Environment variable with the commit, for machines that have the code without its history."""
DRIVER = Path("/proc/driver/nvidia/gpus")
PROCESSOR = Path("/proc/cpuinfo")
FILE = "sessions.jsonl"
PACKAGES = ("torch", "transformers", "tokenizers", "peft", "numpy")
"""Whose versions a result may depend on."""


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
    commit = _output_lines(["git", "-C", here, "rev-parse", "HEAD"])
    if not commit:
        return "", None
    return commit[0], bool(_output_lines(["git", "-C", here, "status", "--porcelain", "."]))


class Session(BaseModel):
    """One start of the program on a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    """The last step that was done before; 0 for a new run."""
    started: str
    """Local time with its zone, ISO 8601."""
    versions: dict[str, str]
    commit: str = ""
    """Of the code; empty where nothing tells."""
    machine: Machine | None = None


def record_session(run: Path, step: int) -> None:
    """Add a line for a start after ``step``."""
    session = Session(
        step=step,
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        versions=installed_versions(),
        commit=code_commit()[0],
        machine=this_machine(),
    )
    try:
        with (run / FILE).open("a", encoding="utf-8") as file:
            file.write(session.model_dump_json() + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RunError(f"{run / FILE} cannot be written: {error.strerror}") from error


def read_sessions(run: Path) -> list[Session]:
    """All sessions; none for a run that recorded none. A line that a crash cut short is left out."""
    if not (run / FILE).is_file():
        return []
    found = []
    for line in (run / FILE).read_bytes().splitlines():
        try:
            found.append(Session.model_validate_json(line))
        except ValidationError:
            continue
    return found


def installed_versions() -> dict[str, str]:
    """Of ragen2, Python and the packages that are there, without importing them."""
    from ragen2 import __version__

    found = {
        "ragen2": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    """The model of the processor, or its architecture."""
    return _named(PROCESSOR, "model name") or platform.machine()


def _gpus() -> list[str]:
    """From the driver's files, which are read at once; its program is asked where they are missing."""
    names = [_named(file, "Model") for file in sorted(DRIVER.glob("*/information"))]
    found = [name for name in names if name]
    return found or _output_lines(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])


def _named(file: Path, name: str) -> str:
    """What stands behind the first ``name :`` of a file; nothing where there is none."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    found = (line.partition(":")[2].strip() for line in lines if line.startswith(name))
    return next(found, "")


def _output_lines(command: list[str]) -> list[str]:
    """Lines that a program prints; none where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return []
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            command, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
