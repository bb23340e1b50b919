"""What is disturbed: each program, how it is gone on with, and what must be the same at its end."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from programs import RAGEN2

from command_line import settings

OTHER = str(Path(__file__).with_name("other_programs.py"))
PARTIAL = ".partial-"
SMALL = (
    *("steps=4", "seed=3", "model.path=ragen2-tiny-vl", "env.observation=image", "env.max_turns=1"),
    *("rollout.prompts=2", "rollout.group_size=3", "rollout.max_tokens=20"),
    *("evaluation.tasks=1", "evaluation.every=4", "evaluation.probe_prompts=2"),
    *("evaluation.probe_traces=2", "checkpoints.every=1", "checkpoints.keep=2"),
)
"""Images, so that there is every kind of file; this seed has an update at every step."""
RUN = ("run.toml", "steps.jsonl", "rollouts/*", "scores/*", "images/*", "checkpoints/*/*")
"""Of a run directory, all that must be the same however often it was broken off."""
CRASHES = ("kill", "kill_moment", "kill_in_write", "disk_full", "file_limit", "error_once")
DAMAGES = ("cut", "corrupt")


@dataclass(frozen=True, slots=True)
class Subject:
    """A program that is disturbed."""

    name: str
    program: tuple[str, ...]
    kinds: tuple[str, ...]
    same: tuple[str, ...]
    """Files that must be the undisturbed one's in the end."""
    damaged: tuple[str, ...] = ()
    """Files that are damaged, one kind per pattern."""
    again: Callable[[Path], tuple[str, ...]] | None = None
    """What goes on after a fault; None: the same program."""
    reads: tuple[str, str] = ("", "")
    """A subject and the folder of it that it finds a copy of, and must leave as it is."""
    may_refuse: Callable[[Path], bool] = lambda folder: False
    """Whether a broken program cannot be gone on with, and says so."""
    weight: int = 1
    """How often each of its kinds comes."""

    def next_program(self, folder: Path) -> tuple[str, ...]:
        return self.again(folder) if self.again else self.program

    def state(self, folder: Path) -> dict[str, str]:
        """Digests of the files that must be the same, but for times."""
        return digests(folder, *self.same)


def digests(folder: Path, *patterns: str) -> dict[str, str]:
    """Of files by name; half-written ones, and marks and messages of the program itself, are left out."""
    found = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return {
        # An evaluation that was broken off is made anew beside it, in e1, e2 ...
        re.sub(r"^e\d*/", "e/", str(path.relative_to(folder))): digest(path)
        for path in sorted(found)
        if PARTIAL not in str(path) and path.suffix != ".log" and path.name != ".lock"
    }


def digest(path: Path) -> str:
    """Of a file; times are left out, of records and of pages."""
    data = path.read_bytes()
    if path.name == "steps.jsonl":
        with suppress(ValueError, TypeError):  # damaged: as it is
            rows = [json.loads(line) for line in data.splitlines()]
            data = json.dumps([{**row, "seconds": None} for row in rows]).encode()
    if path.suffix == ".html":
        data = re.sub(rb'"generated": ?"[^"]*"', b"", data)
    return hashlib.sha256(data).hexdigest()


def under(folder: str, *patterns: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{pattern}" for pattern in patterns)


def _resumed(folder: Path) -> tuple[str, ...]:
    """``--resume`` where there is a run, the same command where there is none yet."""
    has_begun = (folder / "run" / "run.toml").is_file()
    return (*RAGEN2, "train", "--resume", "run") if has_begun else TRAIN


def _elsewhere(folder: Path) -> tuple[str, ...]:
    """An evaluation of a model at hand is not gone on with: it is made anew, beside."""
    number = len(list(folder.glob("e*")))
    return (*EVAL[:-1], f"e{number}") if number else EVAL


CHECKPOINT = (
    *("README.md", "config.json", "manifest.json", "model.safetensors", "optimizer.pt"),
    *("tokenizer.json", "trainer_state.json", "processor_config.json", "settings.toml"),
)
OF_A_CHECKPOINT = under("checkpoints/*", *CHECKPOINT)
LOGGED = under("run", "run.toml", "steps.jsonl", "rollouts/*", "scores/*")
OF_A_RUN = (*LOGGED, *under("run", "images/*", "sessions.jsonl", "report.html", *OF_A_CHECKPOINT))
TRAIN = (*RAGEN2, "train", *settings(*SMALL), "--out", "run")
EVAL = (*RAGEN2, "eval", "run", "--tasks", "2", "--out", "e")
WARM = settings("steps=1", "batch=2", "model.path=ragen2-tiny-vl", "env.observation=image")
FEW = settings(
    "env.max_turns=1",
    "rollout.max_tokens=20",
    "evaluation.probe_prompts=2",
    "evaluation.probe_traces=2",
)
GRID = """
run = "small.toml"
settings = { steps = 2 }
[[block]]
seeds = [3]
[block.grid]
"filter.mass" = [0.5, 0.9]
"""

TRL = Subject(
    "trl_trainer",
    (OTHER, "trl_trainer"),
    ("kill", "kill_moment"),
    under("out/ragen2", *RUN),
    may_refuse=lambda folder: not any(folder.glob("out/checkpoint-*/trainer_state.json")),
)
"""With TRL itself, in a venv that has it."""
SUBJECTS = (
    Subject(
        "train",
        TRAIN,
        (*CRASHES, "signal", "clock", "no_reader", "two_writers", *DAMAGES),
        under("run", *RUN),
        OF_A_RUN,
        _resumed,
        weight=3,
    ),
    Subject(
        "eval",
        EVAL,
        (*CRASHES, "no_reader", *DAMAGES),
        under("e*", "steps.jsonl", "rollouts/*", "evaluation.jsonl", "images/*"),
        under("run", "run.toml", *OF_A_CHECKPOINT),
        _elsewhere,
        reads=("train", "run"),
    ),
    Subject(
        "audit",
        (*RAGEN2, "audit", "run", "--out", "a", "--json", "a.json"),
        (*CRASHES, "no_reader", *DAMAGES),
        ("a/audit.json", "a/scores/*", "a.json"),
        LOGGED,
        reads=("train", "run"),
    ),
    Subject(
        "report",
        (*RAGEN2, "report", "run", "--out", "r.html"),
        (*CRASHES, "no_reader", *DAMAGES),
        ("r.html",),
        (*LOGGED, "run/images/*", "run/sessions.jsonl"),
        reads=("train", "run"),
    ),
    Subject(
        "watch",
        (OTHER, "watch"),
        DAMAGES,
        ("run/run.toml",),
        OF_A_RUN,
        reads=("train", "run"),
        weight=2,
    ),
    Subject(
        "warmstart",
        (*RAGEN2, "warmstart", "warm.toml", *WARM, "--out", "m"),
        (*CRASHES, "no_reader"),
        ("m/*",),
        may_refuse=lambda folder: (folder / "m").is_dir(),
    ),
    Subject(
        "model",
        (*RAGEN2, "eval", "m", *WARM[-2:], *FEW, "--tasks", "1", "--json", "m.json"),
        DAMAGES,
        ("m.json",),
        ("m/*",),
        reads=("warmstart", "m"),
        weight=2,
    ),
    Subject(
        "served",
        (OTHER, "served", "--tasks", "2", *settings("server.api=chat"), *FEW, "--out", "e"),
        (*CRASHES, "no_reader", "two_writers", *DAMAGES),
        under("e", "run.toml", "steps.jsonl", "rollouts/*", "evaluation.jsonl"),
        under("e", "run.toml", "completions.jsonl"),
        may_refuse=lambda folder: not (folder / "e" / "completions.jsonl").exists(),
    ),
    Subject(
        "trl",
        (OTHER, "trl"),
        (*CRASHES, "clock", "two_writers", *DAMAGES),
        (*under("run", *RUN), "checkpoint-*/*"),
        (*LOGGED, "checkpoint-4/ragen2_state.json"),
        may_refuse=lambda folder: not any(folder.glob("checkpoint-*/trainer_state.json")),
    ),
    Subject(
        "verl",
        (OTHER, "verl"),
        (*CRASHES, "clock", "two_writers", *DAMAGES),
        under("run", *RUN),
        (*LOGGED, *under("run/checkpoints/*", *CHECKPOINT[:4], "settings.toml")),
    ),
    Subject(
        "experiment",
        (OTHER, "experiment", "grid.toml", "--jobs", "1", "--out", "x"),
        (*CRASHES, "signal", "two_writers", *DAMAGES),
        ("x/*/table.csv", *under("x/runs/*", *RUN)),
        (
            *(
                "x/started.jsonl",
                "x/runs/logs/*.toml",
                "x/grid/table.json",
                "x/grid/records.jsonl.gz",
            ),
            *under("x/runs/*-seed3", "run.toml", "steps.jsonl", *OF_A_CHECKPOINT),
        ),
    ),
)
