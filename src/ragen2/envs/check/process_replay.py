"""Replay an environment in another process: the parts of the check that must not share one.

A second interpreter with another hash seed builds the same environment, plays it, and is fed odd
actions under a watchdog; what would hang or end a process does so there. It writes one JSON line
for each thing it begins and each result, so the reader knows what it was doing when it died.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ragen2.component import load_plugin
from ragen2.envs.base import Env
from ragen2.envs.check.transcript import expert_play, legal_action, odd_actions, random_play, take
from ragen2.errors import EnvError, MissingMethod
from ragen2.seeding import stream

START_SECONDS = 600.0
"""An environment may build its data when it first starts."""
PLAY_SECONDS = 120.0
EXIT_SECONDS = 10.0

Record = dict[str, object]


@dataclass(frozen=True, slots=True)
class ProcessReplay:
    """What another process saw of an environment."""

    records: dict[int, Record]
    """What ``record`` gives there, by seed."""
    records_problem: str
    """Why it ended before all were played; empty when it did not."""
    odd_action_problem: str
    """The first odd action that raised, hung or ended the process; empty when there is none."""


def replay_there(env: Env, seeds: Sequence[int], step_seconds: float) -> ProcessReplay:
    """Play ``seeds`` in another process, then give them every odd action there."""
    lines, died_of = _run(env, {"seeds": list(seeds), "step_seconds": step_seconds})
    records = {line["seed"]: line["record"] for line in lines if "record" in line}
    problems = [line["problem"] for line in lines if "problem" in line]
    has_played = any("played" in line for line in lines)
    return ProcessReplay(
        records, "" if has_played else died_of, died_of or next(iter(problems), "")
    )


def record(env: Env, seed: int) -> Record:
    """All that must be the same in another process, as plain values."""
    episode = env.start(seed, 0)
    values: dict[str, Callable[[], Any]] = {
        "the instruction": lambda: env.instruction,
        "the reasoning": lambda: episode.explain(
            episode.expert()[:2], stream("check", "explain", seed)
        ),
        "the random play": lambda: random_play(env, seed, 3).rows(),
        "the expert's play": lambda: expert_play(env, seed, 0).rows(),
    }
    found: Record = {}
    for name, value in values.items():
        with suppress(MissingMethod):
            found[name] = value()
    return found


def main() -> None:
    """Run the job given as JSON on the command line; called in the other process."""
    job = json.loads(sys.argv[1])
    with _Deadline("building the environment", START_SECONDS):
        env = _load_class(job)(**job["settings"])
    for seed in job["seeds"]:
        with _Deadline(f"start of seed {seed}", START_SECONDS):
            env.start(seed, 0)
        with _Deadline(f"play of seed {seed}", PLAY_SECONDS):
            _say(seed=seed, record=record(env, seed))
    _say(played=True)
    for seed in job["seeds"]:
        _provoke(env, seed, job["step_seconds"])
    _say(end=True)
    # What an environment left running must not keep this process, and so the check, alive.
    faulthandler.dump_traceback_later(EXIT_SECONDS, exit=True)


def _provoke(env: Env, seed: int, step_seconds: float) -> None:
    """Give every odd action to a fresh episode."""
    for action in odd_actions(legal_action(env, seed)):
        episode = env.start(seed, 0)
        with _Deadline(f"action {_short(action)} of seed {seed}", step_seconds) as doing:
            try:
                line = take(episode, action)
            except (Exception, SystemExit) as error:  # noqa: BLE001  # any exception is the finding
                _say(problem=f"{doing} raised {type(error).__name__}: {_short(str(error))}")
                continue
        if not isinstance(line.observation, str):
            _say(problem=f"after {doing} the observation is {type(line.observation).__name__}")


class _Deadline:
    """Say what begins, and end this process if it takes too long, even inside C code."""

    def __init__(self, doing: str, seconds: float) -> None:
        self._doing = doing
        self._seconds = seconds

    def __enter__(self) -> str:
        _say(doing=self._doing, seconds=self._seconds)
        faulthandler.dump_traceback_later(self._seconds, exit=True)
        return self._doing

    def __exit__(self, *_: object) -> None:
        faulthandler.cancel_dump_traceback_later()


def _say(**line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _short(text: str) -> str:
    shown = ascii(text)
    return shown if len(shown) <= 40 else f"{shown[:30]}... ({len(text)} characters)"


def _run(env: Env, job: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """What the other process wrote, and why it ended early; empty when it did not."""
    where = _address(type(env))
    job = {**job, **where, "settings": env.model_dump(mode="json", exclude={"kind"})}
    call = "from ragen2.envs.check.process_replay import main; main()"
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        with out.open("wb") as stdout, err.open("wb") as stderr:
            code = subprocess.run(  # noqa: S603  # our own interpreter and our own call
                [sys.executable, "-c", call, json.dumps(job)],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**os.environ, **_other_environment()},
                check=False,
            ).returncode
        lines = [_parsed(line) for line in out.read_text("utf-8", "replace").splitlines()]
        errors = err.read_text("utf-8", "replace").strip().splitlines()
    if lines and "end" in lines[-1]:
        return lines, ""
    return lines, _cause_of_death(lines, errors, code)


def _cause_of_death(lines: list[dict[str, Any]], errors: list[str], code: int) -> str:
    begun = [line for line in lines if "doing" in line]
    doing = begun[-1]["doing"] if begun else "starting Python"
    if any(line.startswith("Timeout (") for line in errors):
        return f"{doing} took more than {begun[-1]['seconds']:g} seconds"
    return f"{doing} ended the process with code {code}: {errors[-1] if errors else 'no message'}"


def _parsed(line: str) -> dict[str, Any]:
    """A line of ours, or nothing where an environment printed something."""
    try:
        parsed = json.loads(line)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _other_environment() -> dict[str, str]:
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    return {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _address(kind: type[Env]) -> dict[str, str]:
    """Where another process finds a class."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if file is None or "<locals>" in kind.__qualname__:
        raise EnvError(
            f"{kind.__qualname__} cannot be built in another process; define it at the top level "
            "of a .py file"
        )
    return {
        "module": kind.__module__,
        "file": str(Path(file).resolve()),
        "qualname": kind.__qualname__,
    }


def _load_class(job: dict[str, Any]) -> type[Env]:
    """The class at an address: by module name where that leads to its file, else from the file."""
    found: Any = _import(job["module"])
    if found is None or Path(found.__file__ or "").resolve() != Path(job["file"]):
        load_plugin(job["file"])
        found = sys.modules[f"ragen2_plugin_{Path(job['file']).stem}"]
    for name in job["qualname"].split("."):
        found = getattr(found, name)
    return found  # type: ignore[no-any-return]  # the address was taken from an Env


def _import(module: str) -> ModuleType | None:
    if module == "__main__":
        return None
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        return None
