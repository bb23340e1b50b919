"""``logging.to``: what a real run hands on is what its records say."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from command_line import Done, assert_refused, records, run_python, settings

Program = Callable[..., Done]

needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None,
    reason="tensorboard is not installed: pip install 'ragen2[tensorboard]'",
)
SMALL = (
    "steps=4",
    "rollout.prompts=2",
    "rollout.group_size=2",
    "evaluation.tasks=2",
    "evaluation.probe_prompts=2",
    "evaluation.probe_traces=2",
    "checkpoints.every=2",
    'logging.to=["tensorboard"]',
)


def logged(run: Path) -> dict[str, dict[int, float]]:
    """Every scalar that TensorBoard shows of a run, by name and step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(run / "logs" / "tensorboard"))
    log.Reload()
    return {
        tag: {event.step: event.value for event in log.Scalars(tag)}
        for tag in log.Tags()["scalars"]
    }


def recorded(run: Path) -> dict[str, dict[int, float]]:
    """The metrics of steps.jsonl, as the 32-bit floats that TensorBoard keeps."""
    found: dict[str, dict[int, float]] = {}
    for record in records(run):
        for name, value in record["metrics"].items():
            found.setdefault(name, {})[record["step"]] = float(np.float32(value))
    return found


@needs_tensorboard
def test_tensorboard_shows_exactly_the_records_also_after_a_resume(
    program: Program, tmp_path: Path
) -> None:
    done = program("train", *settings(*SMALL), "--out", "run")
    assert (done.returncode, done.stderr) == (0, "")
    run = tmp_path / "run"
    shown = logged(run)
    assert {name: steps for name, steps in shown.items() if "seconds/" not in name} == recorded(run)
    assert set(shown["seconds/step"]) == {1, 2, 3, 4}
    shutil.rmtree(run / "checkpoints" / "step_000004")  # as if it had been killed after step 4
    done = program("train", "--resume", "run")
    assert (done.returncode, done.stderr) == (0, "")
    again = logged(run)
    assert {name: steps for name, steps in again.items() if "seconds/" not in name} == recorded(run)
    assert len(list((run / "logs" / "tensorboard").iterdir())) == 2


def test_a_package_that_is_missing_is_told_before_anything_is_made(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['mlflow'] = None\n"
        "sys.argv = ['ragen2', 'train', '--set', 'logging.to=[\"mlflow\"]']\n"
        "from ragen2.cli.app import main; main()"
    )
    assert_refused(
        run_python(tmp_path, "-c", code),
        tmp_path,
        "logging.to asks for mlflow, but mlflow is not installed; "
        "pip install 'ragen2[mlflow]' or take mlflow out of logging.to",
    )


def test_a_run_without_loggers_has_no_folder_for_them(short_run: tuple[Path, Done]) -> None:
    assert not (short_run[0] / "logs").exists()
