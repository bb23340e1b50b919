"""Stands in for ``ragen2`` in the tests of jobs: behaves like a run, but starts at once and learns nothing.

    python trainee.py train RUN.toml --out DIR | train --resume DIR

The seed says how it goes: 0 well, 1 a crash, 2 a mistake of the user, 3 killed, 4 deaf, 5 as 0, but it waits
after step 2 for the file ``go`` beside its folder. ``MEET`` in the environment: it waits until so many have
started.
"""

# ruff: noqa: T201 - a program that prints
import json
import os
import shutil
import signal
import sys
import time
import tomllib
from pathlib import Path

asked = []


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    words = sys.argv[2:]
    folder = Path(words[words.index("--out" if "--out" in words else "--resume") + 1])
    if "--out" in words:
        folder.mkdir(parents=True)
        shutil.copy(words[0], folder / "run.toml")
    config = tomllib.loads((folder / "run.toml").read_text())
    note(folder, "start")
    meet(folder, int(os.environ.get("MEET", "1")))
    misbehave(config["seed"])
    for step in range(done(folder) + 1, config["steps"] + 1):
        append(folder, step)
        while config["seed"] == 5 and step == 2 and not (folder.parent / "go").exists():
            if asked:
                break
            time.sleep(0.01)
        if asked:
            save(folder, step)
            print(f"stopped after step {step}")
            note(folder, "end")
            sys.exit(130)
    save(folder, config["steps"])
    print("finished with", os.environ["OMP_NUM_THREADS"], "threads")
    note(folder, "end")


def misbehave(seed: int) -> None:
    if seed == 1:
        print("Traceback\nRuntimeError: it broke\n\n")
        sys.exit(1)
    if seed == 2:
        print("ragen2: a mistake", file=sys.stderr)
        sys.exit(2)
    if seed == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if seed == 4:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)


def note(folder: Path, what: str) -> None:
    with (folder.parent / "noted").open("a") as file:
        file.write(f"{what} {folder.name} {os.getpid()}\n")


def meet(folder: Path, number: int) -> None:
    while (folder.parent / "noted").read_text().count("start") < number:
        time.sleep(0.01)


def done(folder: Path) -> int:
    saved = sorted((folder / "checkpoints").glob("step_*"))
    return json.loads((saved[-1] / "trainer_state.json").read_text())["step"] if saved else 0


def append(folder: Path, step: int) -> None:
    record = {"step": step, "metrics": {"rollout/success": step / 10}, "seconds": {"step": 2.0}}
    with (folder / "steps.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")


def save(folder: Path, step: int) -> None:
    checkpoint = folder / "checkpoints" / f"step_{step:06d}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"step": step}))


main()
