"""A server that fails in every way: no trajectory is lost, none is counted twice, Ctrl-C can be resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from faulty_server import GOOD, MODEL, Behaviour, serving
from typer.testing import CliRunner

from ragen2.backends.agent import open_server, open_tokenizer
from ragen2.backends.remote.journal import JOURNAL_FILE
from ragen2.backends.remote.policy import ServerPolicy
from ragen2.backends.settings import EMBEDDED, ServerSettings
from ragen2.cli.app import app
from ragen2.cli.evaluate import EVALUATED_FILE
from ragen2.envs import FrozenLake
from ragen2.errors import ModelError
from ragen2.rollout import Rollout, Task, play
from ragen2.runs.trajectories import group_lines
from ragen2.types import Group

SOURCE = Path(__file__).parents[3] / "src"
FAULTS = (
    "busy",
    "broken",
    "gone",
    "garbled",
    "empty",
    "aborted",
    "cut",
    "cut_stream",
    "hung_up",
    "slow",
    "dripping",
)
QUICK = ServerSettings(backoff=0.001, timeout=1.0, retries=4, concurrency=8)
TASKS = [[Task(seed, luck) for luck in range(4)] for seed in range(6)]


@pytest.fixture(scope="module")
def tokenizer():
    return open_tokenizer(EMBEDDED).hf


@pytest.fixture
def behaviour(tokenizer) -> Behaviour:
    return Behaviour(tokenizer)


def open_at(url: str, settings: ServerSettings = QUICK, journal: Path | None = None):
    return open_server(url, MODEL, EMBEDDED, settings=settings, journal=journal)


def played(policy: ServerPolicy) -> list[Group]:
    return play(FrozenLake(max_turns=3), policy, TASKS, Rollout(), key=(0, "faults"))


def lines(groups: list[Group]) -> list[str]:
    return [line for group in groups for line in group_lines(group, 0)]


def each_fault_twice(name: str, attempt: int) -> str:
    """The first two tries of most requests fail, in a way that is the request's own."""
    number = int(name, 16)
    if attempt > 2 or number % 7 == 0:
        return GOOD
    return FAULTS[(number // 7 + attempt) % len(FAULTS)]


def test_play_through_every_fault_is_play_without_one(behaviour, tokenizer):
    with serving(Behaviour(tokenizer)) as url:
        calm = played(open_at(url))
    behaviour.fault = each_fault_twice
    with serving(behaviour) as url:
        policy = open_at(url)
        stormy = played(policy)
    assert set(behaviour.faults) == set(FAULTS), "every fault was met"
    assert lines(stormy) == lines(calm)
    members = [(group.prompt.seed, one.luck) for group in stormy for one in group.trajectories]
    assert sorted(members) == [(task.seed, task.luck) for group in TASKS for task in group]
    turns = [turn for group in stormy for one in group.trajectories for turn in one.turns]
    usage = policy.scorer.usage
    assert usage.requests == len(turns) + 1  # one question about the model's context
    assert usage.failures == sum(behaviour.faults.values())
    assert usage.written_tokens == sum(len(turn.completion.ids_T) for turn in turns)
    assert usage.prompt_tokens == sum(len(turn.prompt_ids_T) for turn in turns)
    assert usage.uncounted == 0


def test_requests_under_way_never_exceed_the_limit(behaviour):
    with serving(behaviour) as url:
        played(open_at(url, ServerSettings(concurrency=3)))
    assert 1 < behaviour.most_inside <= 3


def test_a_request_that_never_succeeds_ends_the_run_in_one_line(behaviour):
    behaviour.fault = lambda name, attempt: "broken" if int(name, 16) % 5 == 0 else GOOD
    with (
        serving(behaviour) as url,
        pytest.raises(ModelError, match=r"answered 500: .*oh no.* \(5 tries\); check the address"),
    ):
        played(open_at(url))


def test_the_context_of_the_served_model_is_known(behaviour):
    with serving(behaviour) as url:
        assert open_at(url).max_context == 2048


def test_what_the_journal_holds_is_not_asked_for_again(behaviour, tmp_path):
    file = tmp_path / JOURNAL_FILE
    with serving(behaviour) as url:
        first = played(open_at(url, journal=file))
        asked = behaviour.tries.total()
        again = played(open_at(url, journal=file))
    assert lines(again) == lines(first)
    assert behaviour.tries.total() == asked
    assert len(file.read_text().splitlines()) == asked + 1


def evaluate(url: str, out: Path) -> list[str]:
    settings = {
        "model.path": EMBEDDED,
        "env.max_turns": 3,
        "rollout.prompts": 4,
        "rollout.group_size": 4,
        "server.concurrency": 4,
        "server.input_price": 2.0,
    }
    sets = [f"--set={name}={value}" for name, value in settings.items()]
    return ["eval", f"{url}#{MODEL}", "--tasks", "20", "--out", str(out), *sets]


def results(out: Path) -> list[bytes]:
    files = ("steps.jsonl", EVALUATED_FILE, "rollouts/step_000000.jsonl")
    return [(out / name).read_bytes() for name in files]


def test_an_interrupted_evaluation_goes_on_where_it_stopped(behaviour, tokenizer, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    with serving(Behaviour(tokenizer)) as url:
        done = CliRunner().invoke(app, evaluate(url, whole), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    behaviour.fault = lambda name, attempt: "held" if behaviour.tries.total() > 25 else GOOD
    with serving(behaviour) as url:
        arguments = evaluate(url, cut)
        code, told = interrupt(arguments, behaviour)
        assert code == 130, told
        assert f"stopped; all answers so far are in {cut}: the same command goes on" in told
        assert "Traceback" not in told
        kept = len((cut / JOURNAL_FILE).read_text().splitlines()) - 1
        assert kept == behaviour.delivered.total() == 25
        assert not (cut / "steps.jsonl").exists()
        behaviour.fault = lambda name, attempt: GOOD
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert results(cut) == results(whole)
    assert set(behaviour.delivered.values()) == {1}, "no answer was bought twice"
    tasks = [json.loads(line)["seed"] for line in results(cut)[1].splitlines()]
    assert tasks == list(range(20))


def test_a_failed_evaluation_goes_on_where_it_stopped_too(behaviour, tmp_path):
    behaviour.fault = lambda name, attempt: "denied" if behaviour.tries.total() > 30 else GOOD
    with serving(behaviour) as url:
        failed = CliRunner().invoke(app, evaluate(url, tmp_path / "run"))
        assert isinstance(failed.exception, ModelError)
        assert "the same command goes on from there" in failed.output
        behaviour.fault = lambda name, attempt: GOOD
        done = CliRunner().invoke(app, evaluate(url, tmp_path / "run"), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert set(behaviour.delivered.values()) == {1}, "no answer was bought twice"


def interrupt(arguments: list[str], behaviour: Behaviour) -> tuple[int, str]:
    """Run ``ragen2`` in a process of its own and press Ctrl-C once four requests are held."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ragen2", *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Whatever started the tests may have switched Ctrl-C off for its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - a C call, no locks
    )
    try:
        for _ in range(4):
            assert behaviour.held.acquire(timeout=60)
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=50)  # held requests would take 60 s
    finally:
        process.kill()
    return process.returncode, told


def test_the_totals_are_told_with_their_cost(behaviour, tmp_path):
    with serving(behaviour) as url:
        done = CliRunner().invoke(app, evaluate(url, tmp_path / "run"), catch_exceptions=False)
    (told,) = [line for line in done.output.splitlines() if line.startswith("server: ")]
    read = int(told.split(" prompt tokens")[0].split()[-1].replace(",", ""))
    assert read > 1000
    assert told.endswith(f"cost {read * 2.0 / 1e6:.4f}")


def test_a_folder_that_is_no_evaluation_is_left_alone(behaviour, tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with serving(behaviour) as url:
        done = CliRunner().invoke(app, evaluate(url, tmp_path))
    assert "exists and is not empty; choose another folder" in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_failure_wakes_the_calls_that_wait_for_their_next_try(behaviour):
    """One request is refused for good while others would wait for 50 s and more."""
    behaviour.fault = lambda name, attempt: "denied" if int(name, 16) % 5 == 0 else "gone"
    before = set(threading.enumerate())
    with serving(behaviour) as url:
        patient = open_at(url, ServerSettings(backoff=100.0, concurrency=24))
        with pytest.raises(ModelError, match="answered 401: wrong key"):
            played(patient)
        assert behaviour.faults["gone"]
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive()


def test_a_server_that_asks_for_too_long_a_wait_is_told_at_once(behaviour):
    behaviour.fault = lambda name, attempt: "later"
    told = r"answered 429: quota; it asks to wait 3600 s, more than server\.longest_wait \(120 s\)"
    with serving(behaviour) as url, pytest.raises(ModelError, match=told):
        played(open_at(url))
