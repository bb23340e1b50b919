"""The real server and the real page: a step shows in the browser soon after its record."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Opened, open_address

from ragen2.reports.watch import WatchServer, open_watch
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", "steps = 3\n")


@pytest.fixture(params=["127.0.0.1", "0.0.0.0"])  # noqa: S104 - the second asks for a token
def server(request: pytest.FixtureRequest, run: RunDirectory) -> Iterator[WatchServer]:
    with open_watch([run.path], request.param) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield served
        served.shutdown()


@pytest.fixture
def opened(browser: Any, server: WatchServer) -> Iterator[Opened]:
    one = open_address(browser, server.url.replace("0.0.0.0", "127.0.0.1"))  # noqa: S104 - as above
    yield one
    one.close()


def record(step: int) -> StepRecord:
    return StepRecord(step=step, metrics={"reward/mean": step / 4})


def test_steps_show_as_they_are_recorded_and_go_when_they_are_undone(
    opened: Opened, run: RunDirectory
) -> None:
    for step in range(4):
        run.append(record(step))
        opened.shows("#verdict", f"{step} of 3")
    assert "token" not in opened.page.url
    opened.page.reload()
    opened.shows("#verdict", "3 of 3")
    run.rewind(1)
    opened.shows("#verdict", "1 of 3")
    assert opened.errors == []
