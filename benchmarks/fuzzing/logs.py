"""Readers of logs that ``ragen2 audit`` takes."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fuzzing.mutations import BYTES, JSON, JSON_LINES, PARQUET, Form, packed
from fuzzing.reader import Make, Reader, written

SAMPLES = Path(__file__).parents[2] / "tests" / "audit" / "samples"
ROWS = 8
"""Of a log that variants are made of."""


def audit_of(files: Sequence[Path], columns: dict[str, str] | None = None) -> Any:
    """What ``ragen2 audit`` finds in some files, without a model."""
    from ragen2.audit import (
        ReadSettings,
        ReasoningRule,
        SampleLimits,
        WordLikelihood,
        analyse,
        log_files,
        read_log,
    )

    settings = ReadSettings(None, columns, ReasoningRule(), SampleLimits(8, 4, 4, 2, 0))
    log = read_log(log_files(files), settings, lambda size: None)
    return analyse(log, settings, WordLikelihood(), sources=["log"], done=lambda: None)


def log_reader(name: str, form: Form, *seeds: Callable[[], bytes]) -> Make:
    """A log file of some framework."""

    def make(folder: Path) -> Reader:
        file = folder / name
        return Reader(form, [seed() for seed in seeds], written(file, lambda: audit_of([file])))

    return make


def head(path: Path, rows: int = ROWS) -> bytes:
    """The first lines of a sample."""
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()[:rows]
    return b"".join(line + b"\n" for line in lines)


def openai_log() -> bytes:
    """Chats as OpenAI-compatible tools log them."""
    rows = [
        {
            "step": 1,
            "prompt": [{"role": "user", "content": [{"type": "text", "text": f"task {n // 2}"}]}],
            "completion": [
                {
                    "role": "assistant",
                    "content": f"<think>think {n}</think>do {n}",
                    "tool_calls": [{"function": {"name": "go", "arguments": '{"to": 1}'}}],
                }
            ],
            "reward": n % 2,
        }
        for n in range(ROWS)
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def table_log() -> bytes:
    """The same as a table."""
    rows = [f'{n // 2},"task {n // 2}","<think>so, {n}</think>go",{n % 2}' for n in range(ROWS)]
    return "\n".join(["step,prompt,completion,reward", *rows]).encode()


def own_rollouts() -> bytes:
    """Rollouts of a run directory."""
    from fuzzing.runs import make_run

    with tempfile.TemporaryDirectory() as folder:
        return (make_run(Path(folder, "run")) / "rollouts" / "step_000001.jsonl").read_bytes()


LOGS: dict[str, Make] = {
    "log: own": log_reader("log.jsonl", JSON_LINES, own_rollouts),
    "log: RAGEN": log_reader(
        "log.jsonl", JSON_LINES, lambda: head(SAMPLES / "ragen" / "rollouts.jsonl")
    ),
    "log: verl": log_reader("9.jsonl", JSON_LINES, lambda: head(SAMPLES / "verl" / "9.jsonl")),
    "log: verifiers": log_reader(
        "traces.jsonl.gz",
        packed(JSON_LINES),
        lambda: gzip.compress(head(SAMPLES / "verifiers" / "traces.jsonl.gz")),
    ),
    "log: TRL parquet": log_reader(
        "completions_00001.parquet",
        PARQUET,
        (SAMPLES / "trl" / "completions" / "completions_00001.parquet").read_bytes,
    ),
    "log: OpenAI chats": log_reader("log.jsonl", JSON_LINES, openai_log),
    "log: JSON": log_reader(
        "log.json",
        JSON,
        lambda: json.dumps([json.loads(one) for one in openai_log().splitlines()]).encode(),
    ),
    "log: CSV": log_reader("log.csv", BYTES, table_log),
}
"""By name."""
