"""Fuzz every reader of foreign bytes: a result or one line for the user, never a traceback, never a hang.

    cd benchmarks
    python -m fuzzing --seconds 3600                  # every reader, in turn
    python -m fuzzing --seconds 60 --only "log: verl" --seed 7

Each reader runs in a process of its own, so that a crash or a hang inside a library ends only that one. The
counts are added to those of earlier pieces in results/fuzzing.json; every piece draws other inputs. Inputs
that failed are kept in the folder that is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fuzzing.data import DATA
from fuzzing.logs import LOGS
from fuzzing.models import MODELS
from fuzzing.reader import Make
from fuzzing.runs import RUNS
from fuzzing.wire import WIRE

READERS: dict[str, Make] = {**RUNS, **LOGS, **DATA, **MODELS, **WIRE}
RESULTS = Path(__file__).parents[2] / "results" / "fuzzing.json"
SLOWEST = 20
"""Seconds after which one input counts as a hang."""
LARGEST = 2**20
"""Kilobytes that one input may add to the memory of the process."""
GRACE = 60
"""Seconds that a process may take to start and to end."""
COUNTS = ("inputs", "read", "refused", "tracebacks", "hangs", "seconds")


class Hang(BaseException):
    """One input takes too long; a ``BaseException``, so that no reader can swallow it."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise ``Hang`` in the middle of whatever runs too long."""

    def ring(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def try_input(read: Any, data: bytes) -> str:
    """What became of one input: ``read``, ``refused``, or a fault by its kind and place."""
    from ragen2.errors import RagenError

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with limited(SLOWEST):
            read(data)
        outcome = "read"
    except RagenError as error:
        outcome = "refused" if str(error).strip() else "traceback: an error without a word"
    except Hang as error:
        outcome = f"hang: {place_of(error)}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        outcome = f"traceback: {type(error).__name__} {place_of(error)}"
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before > LARGEST:
        return f"hang: {LARGEST // 1024} MB more memory"
    return outcome


def place_of(error: BaseException) -> str:
    """The innermost line of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if "/ragen2/" in one.filename] or list(frames)
    return f"{ours[-1].filename.rpartition('/ragen2/')[2]}:{ours[-1].lineno}"


def fuzz(name: str, seed: int, *, seconds: float, inputs: int | None, kept: Path) -> dict[str, Any]:
    """Try variants of one reader's inputs; the counts, and each fault once with its input."""
    rng = random.Random(f"{name} {seed}")  # noqa: S311 - reproducible, not secret
    found: Counter[str] = Counter()
    faults: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        reader = READERS[name](Path(folder))
        begun = time.monotonic()
        while time.monotonic() - begun < seconds and found["inputs"] != inputs:
            data = reader.variant(rng)
            (kept / "current").write_bytes(data)  # what is left when the process dies
            outcome = try_input(reader.read, data)
            kind = outcome.partition(":")[0]
            found["inputs"] += 1
            found[{"traceback": "tracebacks", "hang": "hangs"}.get(kind, kind)] += 1
            if kind in {"traceback", "hang"} and outcome not in faults:
                faults[outcome] = hashlib.sha256(data).hexdigest()[:16]
                (kept / faults[outcome]).write_bytes(data)
        found["seconds"] = round(time.monotonic() - begun)
    (kept / "current").unlink(missing_ok=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {**{one: found[one] for one in COUNTS}, "peak_mb": peak, "faults": faults}


def fuzz_apart(name: str, seed: int, seconds: float, kept: Path) -> dict[str, Any]:
    """The same in a process of its own; its death is a fault."""
    kept.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "fuzzing", f"--child={name}", "--seed", str(seed)]
    command += ["--seconds", str(seconds), "--kept", str(kept)]
    try:
        done = subprocess.run(  # noqa: S603 - this file
            command,
            cwd=Path(__file__).parents[1],
            env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=seconds + GRACE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {**dict.fromkeys(COUNTS, 0), "hangs": 1, "faults": {"hang: in a library": "current"}}
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        fault = f"traceback: the process ended with {done.returncode}: {last[:200]}"
        return {**dict.fromkeys(COUNTS, 0), "tracebacks": 1, "faults": {fault: "current"}}


def add(results: Path, piece: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Write the counts of a piece to those before it; faults are of the newest piece of each reader."""
    old = json.loads(results.read_text()) if results.exists() else {"pieces": 0, "readers": {}}
    readers = old["readers"]
    for name, found in piece.items():
        before = readers.get(name, {})
        readers[name] = {one: before.get(one, 0) + found[one] for one in COUNTS}
        readers[name]["peak_mb"] = max(before.get("peak_mb", 0), found.get("peak_mb", 0))
    total = {one: sum(found[one] for found in readers.values()) for one in COUNTS}
    new = {"pieces": old["pieces"] + 1, "total": total, "readers": dict(sorted(readers.items()))}
    results.write_text(json.dumps(new, indent=1) + "\n")
    return new


def main() -> int:
    """Fuzz, print a table, add up; exit code 1 when anything but results and refusals was found."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    options.add_argument("--seconds", type=float, default=600.0, help="for all readers together")
    options.add_argument(
        "--only", nargs="*", default=list(READERS), choices=list(READERS), metavar="READER"
    )
    options.add_argument("--seed", type=int, help="left out: the number of pieces so far")
    options.add_argument("--kept", type=Path, help="folder for inputs that failed")
    options.add_argument("--results", type=Path, default=RESULTS)
    options.add_argument("--child", help=argparse.SUPPRESS)
    given = options.parse_args()
    kept = given.kept or Path(tempfile.mkdtemp(prefix="fuzzing-"))
    if given.child:
        found = fuzz(given.child, given.seed, seconds=given.seconds, inputs=None, kept=kept)
        print(json.dumps(found))
        return 0
    seed = given.seed
    if seed is None:
        seed = json.loads(given.results.read_text())["pieces"] if given.results.exists() else 0
    piece = {}
    for number, name in enumerate(given.only):
        found = fuzz_apart(name, seed, given.seconds / len(given.only), kept / str(number))
        piece[name] = found
        counts = "  ".join(f"{one} {found[one]}" for one in COUNTS)
        print(f"{name:32}{counts}  peak {found.get('peak_mb', 0)} MB", flush=True)
        for fault, file in found["faults"].items():
            print(f"    {fault}\n      {kept / str(number) / file}", flush=True)
    total = add(given.results, piece)["total"]
    print(f"all pieces: {total}; inputs that failed are in {kept}")
    return 1 if any(found["tracebacks"] or found["hangs"] for found in piece.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
