"""What the tests of the program share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from command_line import Done, Process, run_program, settings, start_program

SHORT_RUN = (
    "steps=4",
    "rollout.prompts=2",
    "rollout.group_size=2",
    "evaluation.tasks=4",
    "evaluation.probe_prompts=2",
    "evaluation.probe_traces=2",
    "checkpoints.every=2",
)


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Done]:
    """Run ``ragen2 ARGS`` in ``tmp_path`` to its end."""
    return partial(run_program, tmp_path)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start ``ragen2 ARGS`` in ``tmp_path`` and go on; what still runs after the test is ended."""
    started: list[Process] = []

    def launch(*args: str | Path) -> Process:
        started.append(start_program(tmp_path, *args))
        return started[-1]

    yield launch
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """A finished run of four steps, saved after 2 and 4, and what it said; copy it to change it."""
    folder = tmp_path_factory.mktemp("short")
    done = run_program(folder, "train", *settings(*SHORT_RUN), "--out", "run")
    assert done.returncode == 0, done.stderr
    return folder / "run", done
