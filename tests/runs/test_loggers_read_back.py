"""Every logger writes what can be read back: right names, steps and numbers, also after a kill."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import log_records
import ragen2
from log_records import AT_2, MI, NOTES

PROGRAM = Path(log_records.__file__)
FIRST = {step: step / 8 for step in range(5)}
RESUMED = {0: 0.0, 1: 0.125, 2: 0.25, 3: 3.375, 4: 3.5, 5: 3.625, 6: 3.75}
"""MI of the first try up to step 2, of the second from step 3 on."""


@dataclass
class Found:
    """What a log holds of one run; of a step that was logged twice, what came last."""

    values: dict[str, dict[int, float]] = field(default_factory=dict)
    texts: dict[str, dict[int, str]] = field(default_factory=dict)
    mass: str = ""

    def add(self, name: str, step: int, value: float) -> None:
        self.values.setdefault(name, {})[step] = value

    def say(self, name: str, step: int, text: str) -> None:
        self.texts.setdefault(name, {})[step] = text


def log(name: str, folder: Path, *words: str | int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), name, str(folder / "run"), *map(str, words)],
        cwd=folder,
        env=os.environ
        | {
            "PYTHONPATH": str(Path(ragen2.__file__).parents[1]),
            "HF_HUB_OFFLINE": "1",
            "TRACKIO_DIR": str(folder / "trackio"),
            "WANDB_MODE": "offline",
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )


def read_tensorboard(folder: Path) -> Found:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(folder / "run" / "logs" / "tensorboard"))
    log.Reload()
    found = Found()
    for tag in log.Tags()["scalars"]:
        events = log.Scalars(tag)
        assert len({event.step for event in events}) == len(events), (
            "what was undone is still there"
        )
        for event in events:
            found.add(tag, event.step, event.value)
    for tag in ("note", "regime"):
        for event in log.Tensors(tag):
            found.say(tag, event.step, event.tensor_proto.string_val[0].decode())
    (settings,) = log.Tensors("settings")
    rows = settings.tensor_proto.string_val[0].decode().splitlines()
    (found.mass,) = (row.split("|")[2].strip() for row in rows if "filter.mass" in row)
    return found


def read_trackio(folder: Path) -> Found:
    database = sqlite3.connect(folder / "trackio" / "some-project.db")
    found = Found()
    for step, metrics in database.execute("SELECT step, metrics FROM metrics ORDER BY id"):
        for name, value in json.loads(metrics).items():
            found.add(name, step, value)
    for title, step, text in database.execute("SELECT title, step, text FROM alerts ORDER BY id"):
        found.say(title, step, text)
    assert len(database.execute("SELECT DISTINCT run_id FROM metrics").fetchall()) == 1
    (config,) = database.execute("SELECT config FROM configs").fetchone()
    found.mass = str(json.loads(config)["filter"]["mass"])
    return found


def wandb_records(file: Path) -> Iterator[object]:
    """The records of an offline run: LevelDB's log format behind a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, whole = file.read_bytes(), 7, b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield Record.FromString(whole)
            whole = b""


def read_wandb(folder: Path) -> Found:
    found = Found()
    files = sorted((folder / "run" / "logs" / "wandb").glob("offline-run-*/*.wandb"))
    assert len({file.name for file in files}) == 1, "a continuation has the id of its run"
    for record in (record for file in files for record in wandb_records(file)):
        for item in record.run.config.update:
            if item.key == "filter":
                found.mass = str(json.loads(item.value_json)["mass"])
        row = {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}
        for name, value in row.items():
            step, read = int(row["step"]), json.loads(value)
            found.say(name, step, read) if isinstance(read, str) else found.add(name, step, read)
    return found


def read_mlflow(folder: Path) -> Found:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("some-project")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    found = Found(mass=run.data.params["filter.mass"])
    for name in run.data.metrics:
        for one in sorted(
            client.get_metric_history(run.info.run_id, name), key=lambda one: one.timestamp
        ):
            found.add(name.replace("_at_", "@"), one.step, one.value)
    for tag, text in run.data.tags.items():
        name, _, step = tag.partition(".step_")
        if step:
            found.say(name, int(step), text)
    return found


READERS: dict[str, Callable[[Path], Found]] = {
    "tensorboard": read_tensorboard,
    "trackio": read_trackio,
    "wandb": read_wandb,
    "mlflow": read_mlflow,
}
INSTALLED = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            importlib.util.find_spec(name) is None,
            reason=f"{name} is not installed: pip install 'ragen2[{name}]'",
        ),
    )
    for name in READERS
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path


@pytest.mark.parametrize("name", INSTALLED)
def test_a_finished_log_holds_every_number_under_its_name_and_step(name, folder):
    done = log(name, folder, 0, 4, "finished")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = READERS[name](folder)
    assert found.values[MI] == FIRST
    assert found.values[AT_2] == {step: 1 / 2**step for step in range(5)}
    assert found.values["seconds/rollout"] == {step: 0.25 * step for step in range(5)}
    assert found.texts["note"] == NOTES
    assert found.texts["regime"] == {1: "diverse grounded", 3: "template collapse"}
    assert found.mass == "0.9"


@pytest.mark.parametrize("name", INSTALLED)
def test_a_killed_and_resumed_run_goes_on_in_the_same_log(name, folder):
    assert log(name, folder, 0, 4, "killed").returncode == -signal.SIGKILL
    done = log(name, folder, 3, 6, "finished")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = READERS[name](folder).values[MI]
    if name == "wandb":  # offline it holds records back: what was held at a kill is lost
        assert len(list((folder / "run" / "logs" / "wandb").glob("offline-run-*"))) == 2
        assert found == {step: RESUMED[step] for step in found}
        assert set(found) >= {3, 4, 5, 6}
    else:
        assert found == RESUMED


@pytest.mark.parametrize("name", INSTALLED)
def test_an_interrupt_loses_nothing(name, folder):
    done = log(name, folder, 0, 4, "interrupted")
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    if name == "mlflow":
        with pytest.raises(AssertionError, match="FAILED"):
            READERS[name](folder)
        assert (
            log(name, folder, 5, 4, "finished").returncode == 0
        )  # a resume that has nothing to do
    assert READERS[name](folder).values[MI] == FIRST
