"""``ragen2 watch``: a run is seen as it goes, through a kill and a resume, by many at once."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from command_line import Done, Process, assert_refused, records, settings, wait_for
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory

Program = Callable[..., Done]
Start = Callable[..., Process]

CLIENTS = 20
SMALL = (
    "steps=12",
    "rollout.prompts=2",
    "rollout.group_size=2",
    "evaluation.tasks=2",
    "evaluation.probe_prompts=0",
    "checkpoints.every=2",
)


def address(process: Process) -> tuple[str, int, str]:
    """Where the program says that it listens, and its token: lines before it are notes on its runs."""
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"http://([\d.]+):(\d+)/\?token=([\w-]{32,}) ", line)
        if found:
            return found[1], int(found[2]), found[3]
    raise AssertionError(process.communicate())


class Reader:
    """What the page does: ask, show, ask again for what is newer."""

    def __init__(self, where: tuple[str, int, str]) -> None:
        host, port, token = where
        self.connection = http.client.HTTPConnection(host, port, timeout=60)
        self.headers = {"Accept-Encoding": "gzip", "Authorization": f"Bearer {token}"}
        self.since = ""
        self.data: dict[str, Any] = {}

    def get(self, path: str) -> tuple[int, bytes]:
        self.connection.request("GET", path, headers=self.headers)
        answer = self.connection.getresponse()
        body = answer.read()
        is_packed = answer.headers["Content-Encoding"] == "gzip"
        return answer.status, gzip.decompress(body) if is_packed else body

    def ask(self) -> bool:
        """Whether there was something new."""
        status, body = self.get(f"/data.json?since={self.since}")
        if status == 204:
            return False
        assert status == 200, (status, body)
        self.data = json.loads(body)
        self.since = self.data["live"]["since"]
        return True

    def steps(self, run: int = 0) -> list[int]:
        return self.data["runs"][run]["steps"]

    def until(self, condition: Callable[[], bool], seconds: float = 120.0) -> float:
        """Ask as often as the page does until what came fits; when that was."""
        deadline = time.monotonic() + seconds
        while not (self.ask() and condition()):
            assert time.monotonic() < deadline, "it never showed"
            time.sleep(self.data["live"]["every_s"])
        return time.monotonic()


@pytest.fixture
def finished(short_run: tuple[Path, Done]) -> Path:
    return short_run[0]


def test_a_finished_run_is_served_and_ctrl_c_is_a_normal_end(start: Start, finished: Path) -> None:
    process = start("watch", finished)
    reader = Reader(address(process))
    status, page = reader.get("/")
    assert status == 200
    assert page.startswith(b"<!doctype html>")
    assert reader.ask()
    assert reader.steps() == [0, 1, 2, 3, 4]
    assert reader.data["runs"][0]["state"] == "finished"
    block = reader.data["runs"][0]["replays"][0]["block"]
    status, body = reader.get(f"/block.json?name={block}")
    assert status == 200
    assert json.loads(body)["episodes"][0]["turns"]
    assert not reader.ask()
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert out.splitlines()[-1] == "no longer watching"


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])  # noqa: S104 - the case in question
def test_the_printed_address_has_the_token(start: Start, finished: Path, host: str) -> None:
    found, port, token = address(start("watch", finished, "--host", host))
    assert found == host
    reader = Reader(("127.0.0.1", port, "wrong"))
    for path in ("/", "/data.json", "/data.json?token=wrong"):
        assert reader.get(path)[0] == 403
    assert reader.get(f"/?token={token}")[0] == 200
    assert reader.get(f"/data.json?token={token}")[0] == 200


def test_a_host_of_every_address_must_be_written_out(program: Program, tmp_path: Path) -> None:
    assert_refused(
        program("watch", "run", "--host", ""),
        tmp_path,
        "--host '' would listen on every address; give 127.0.0.1, or 0.0.0.0 or :: to be reached "
        "from other machines",
    )


def test_several_runs_are_one_page(start: Start, finished: Path, tmp_path: Path) -> None:
    other = RunDirectory.create(tmp_path / "other", "steps = 3")
    process = start("watch", finished, "other", "later")
    assert process.stdout is not None
    assert process.stdout.readline() == "later is not there yet; it shows as soon as it is\n"
    reader = Reader(address(process))
    assert reader.ask()
    assert [run["name"] for run in reader.data["runs"]] == ["run", "other", "later"]
    assert [run["state"] for run in reader.data["runs"]] == ["finished", "empty", "empty"]
    other.append(StepRecord(step=0, metrics={"eval/success": 0.5}))
    reader.until(lambda: reader.steps(1) == [0])
    RunDirectory.create(tmp_path / "later", "steps = 3").append(StepRecord(step=0, metrics={}))
    reader.until(lambda: reader.steps(2) == [0])


def test_what_is_no_run_is_refused(program: Program, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    done = program("watch", ".")
    assert done.returncode == 2
    assert done.stderr.startswith("ragen2: . is neither a run directory")
    assert len(done.stderr.splitlines()) == 1


def test_a_port_that_cannot_be_had_is_told_in_one_line(program: Program, tmp_path: Path) -> None:
    done = program("watch", "run", "--host", "no.such.host.invalid")
    assert done.returncode == 2
    assert done.stderr.startswith("ragen2: cannot listen on no.such.host.invalid port 0: ")
    done = program("watch", "run", "--port", "70000")
    assert_refused(
        done,
        tmp_path,
        "--port must be less than or equal to 65535, got '70000'; see ragen2 watch --help",
    )


@pytest.mark.slow
def test_a_run_is_followed_from_before_its_start_through_a_kill_and_a_resume(
    start: Start, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    reader = Reader(address(start("watch", "run")))
    assert reader.ask()
    assert reader.data["runs"][0]["state"] == "empty"
    trainer = start("train", *settings(*SMALL), "--out", "run")
    wait_for((run / "steps.jsonl").exists, trainer)
    reader.until(lambda: len(reader.steps()) >= 4)
    trainer.kill()
    trainer.communicate()
    with (run / "steps.jsonl").open("ab") as file:
        file.write(b'{"schema_version":1,"step":99,"metr')  # what a kill in the middle leaves
    time.sleep(reader.data["live"]["every_s"])
    reader.ask()
    before = [record["step"] for record in whole_records(run)]
    assert reader.steps() == before
    assert reader.data["runs"][0]["state"] == "unfinished"
    resumed = start("train", "--resume", "run")
    reader.until(lambda: reader.data["runs"][0]["state"] == "finished")
    assert reader.steps() == list(range(13))
    assert resumed.wait() == 0
    assert [record["step"] for record in records(run)] == list(range(13))


def whole_records(run: Path) -> list[dict[str, Any]]:
    lines = (run / "steps.jsonl").read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def test_twenty_readers_see_a_step_within_two_seconds_of_its_record(
    start: Start, finished: Path, tmp_path: Path
) -> None:
    """The one place where a wait is the requirement: `watch` shows a new step within 2 s."""
    run = RunDirectory.create(tmp_path / "run", (finished / "run.toml").read_text())
    for record in RunDirectory(finished).records():
        run.append(record)
    where = address(start("watch", "run"))
    readers = [Reader(where) for _ in range(CLIENTS)]
    for reader in readers:
        assert reader.ask()
    newest = run.records()[-1]
    with ThreadPoolExecutor(CLIENTS) as pool:
        for step in (5, 6, 7):
            waiting = [
                pool.submit(one.until, lambda one=one, step=step: step in one.steps())
                for one in readers
            ]
            time.sleep(0.3)
            run.append(newest.model_copy(update={"step": step}))
            written = time.monotonic()
            delays = [one.result() - written for one in waiting]
            assert max(delays) < 2.0, delays
