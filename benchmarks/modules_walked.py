"""Which modules of ragen2 a small training run walks through, from the command to the written record.

    python benchmarks/modules_walked.py             # the numbers
    python benchmarks/modules_walked.py --list      # also every module, with the functions that ran in it

A module is *executed* when one of its functions is called while no module is being imported; class bodies,
decorators and tables built at import do not count. A module is *imported* when it is in ``sys.modules``
at the end. The run is two steps of the embedded default on a CPU, with evaluation, checkpoint and report;
what the report page alone executes is counted apart, because it comes after the last record.
"""

from __future__ import annotations

import argparse
import collections
import inspect
import os
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import ragen2
from ragen2.cli.app import app

PACKAGE = Path(ragen2.__file__).parent
SMALL = (
    "steps=2",
    "rollout.prompts=2",
    "rollout.group_size=4",
    "evaluation.tasks=4",
    "evaluation.probe_prompts=2",
    "evaluation.probe_traces=2",
)

REPORT = "write_report"
"""The function that the run calls once its last record is written."""


def main() -> None:
    """Train, then print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="also name modules and functions")
    given = parser.parse_args()
    to_record, by_report = executed_functions()
    imported = {name for name in sys.modules if name.partition(".")[0] == "ragen2"}
    if given.list:
        for module, functions in sorted(to_record.items()):
            print(f"{module} ({len(functions)}): {', '.join(sorted(functions))}")
        print(f"only by the report: {', '.join(sorted(by_report.keys() - to_record.keys()))}")
    print(
        f"modules executed up to the last record: {len(to_record)}, with the report: "
        f"{len(to_record.keys() | by_report.keys())}, imported: {len(imported)}"
    )


def executed_functions() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """The functions of each module that the run called: up to its last record, and from the report on."""
    to_record: dict[str, set[str]] = collections.defaultdict(set)
    by_report: dict[str, set[str]] = collections.defaultdict(set)
    found = to_record
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in seen or not is_function(code) or is_import(frame):
            return
        seen.add(code)
        nonlocal found
        if code.co_qualname == REPORT:
            found = by_report
        found[module_name(code)].add(code.co_qualname)

    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "--out", str(Path(folder) / "run")]
        for setting in SMALL:
            words += ["--set", setting]
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            app(words, standalone_mode=False)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]  # its stub knows no None
    return to_record, by_report


def is_function(code: CodeType) -> bool:
    """Whether it is a function of ours; a module's and a class's own body have no fast locals."""
    return code.co_filename.startswith(str(PACKAGE)) and bool(code.co_flags & inspect.CO_OPTIMIZED)


def is_import(frame: FrameType | None) -> bool:
    """Whether a module of ours is being imported further up the stack."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(str(PACKAGE)):
            return True
        frame = frame.f_back
    return False


def module_name(code: CodeType) -> str:
    """``ragen2.trainer.loop`` for a function of that file."""
    parts = Path(code.co_filename).relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


if __name__ == "__main__":
    main()
