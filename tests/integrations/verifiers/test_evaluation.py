"""verifiers plays our environments: the rewards, messages and tasks are those of our own loop."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_model import serving, written
from typer.testing import CliRunner

import ragen2
from ragen2.cli.app import app
from ragen2.envs import FrozenLake, Sokoban
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.integrations.datasets import prompt_rows
from ragen2.integrations.verifiers import RagenTaskset, RagenTasksetConfig
from ragen2.policy import ChatRequest, SamplingParams
from ragen2.rollout import Rollout, Task, play
from ragen2.rollout.prompts import PromptSettings
from ragen2.types import Completion, Finish

BIN = Path(sys.executable).parent
TURNS = 3
PROMPT = PromptSettings(examples=0)


def vf_eval(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "vf-eval"), *words],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(ragen2.__file__).parents[1]),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "KEY": "none",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def evaluate(folder: Path, *more: str) -> list[dict[str, Any]]:
    """``vf-eval`` as a user types it; its traces."""
    with serving() as url:
        client = ["--client.base-url", url, "--client.api-key-var", "KEY"]
        words = ["ragen2-verifiers", "-m", "rule", "-o", str(folder), "--no-push", *more]
        done = vf_eval(*words, *client)
    (file,) = folder.glob("*/traces.jsonl")
    episodes = [json.loads(line) for line in file.read_text().splitlines()]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert all(episode["ok"] for episode in episodes), [one["errors"] for one in episodes]
    return [trace for episode in episodes for trace in episode["traces"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("verifiers")


@pytest.fixture(scope="module")
def traces(folder: Path) -> list[dict[str, Any]]:
    settings = json.dumps({"max_turns": TURNS})
    return evaluate(folder, "-r", "2", "--select.limit", "3", "--env.taskset.settings", settings)


class Rule:
    """The same model at hand."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def reply(self, requests: Sequence[ChatRequest], params: SamplingParams) -> list[Completion]:
        (request,) = requests
        self.said = [message.content for message in request.messages]
        text = written(self.said)
        self.said.append(text)
        return [Completion(np.zeros(0, dtype=np.int64), np.zeros(0), text, Finish.EOS)]


def test_an_episode_is_that_of_our_own_loop(traces: list[dict[str, Any]]) -> None:
    assert len(traces) == 6
    rewards = set()
    for trace in traces:
        seed, luck = trace["task"]["data"]["seed"], trace["info"]["luck"]
        rule = Rule()
        (group,) = play(
            FrozenLake(max_turns=TURNS),
            rule,
            [[Task(seed, luck)]],
            Rollout(),
            prompt=PROMPT,
            key=(0,),
        )
        (own,) = group.trajectories
        said = [node["message"]["content"] for node in trace["nodes"]]
        assert said == rule.said
        assert trace["rewards"]["env_return"]["score"] == pytest.approx(own.reward)
        assert trace["metrics"]["solved"] == float(own.solved)
        validity = np.mean([turn.reply.valid for turn in own.turns])
        assert trace["metrics"]["format_validity"] == pytest.approx(validity)
        assert trace["info"]["stop"] == own.stop.value
        rewards.add(trace["rewards"]["env_return"]["score"])
    assert len(rewards) > 1, "some episodes were penalised and some were not"


def test_members_of_a_group_share_the_task_and_not_the_luck(traces: list[dict[str, Any]]) -> None:
    tasks = sorted(trace["task"]["key"] for trace in traces)
    assert tasks == [f"FrozenLake#{seed}" for seed in (0, 0, 1, 1, 2, 2)]
    assert len({trace["info"]["luck"] for trace in traces}) == 6


def test_our_audit_reads_what_verifiers_saved(
    traces: list[dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    words = ["audit", str(folder), "--out", str(tmp_path / "audit")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert f"{len(traces)} of {len(traces)} rows used (verifiers)" in done.output


def test_turns_past_a_limit_of_verifiers_do_not_count(tmp_path: Path) -> None:
    (trace,) = evaluate(tmp_path, "--select.include.idx", "3", "--env.player.max-turns", "1")
    rule, luck = Rule(), trace["info"]["luck"]
    seed = trace["task"]["data"]["seed"]
    lake, tasks = FrozenLake(max_turns=1), [[Task(seed, luck)]]
    (group,) = play(lake, rule, tasks, Rollout(), prompt=PROMPT, key=(0,))
    (own,) = group.trajectories
    assert trace["rewards"]["env_return"]["score"] == pytest.approx(own.reward)
    assert trace["info"]["stop"] == "cut"
    assert trace["metrics"]["solved"] == 0.0


def loaded(**settings: Any) -> Iterator[Any]:
    return iter(RagenTaskset(RagenTasksetConfig(id="ragen2-verifiers", **settings)))


def test_tasks_have_the_prompts_that_are_played() -> None:
    tasks = list(itertools.islice(loaded(kind="Sokoban", settings={"size": 5}), 4))
    rows = prompt_rows(Sokoban(size=5), range(4), prompt=PROMPT)
    for task, row in zip(tasks, rows, strict=True):
        system, user = (message["content"] for message in row["prompt"])
        assert (task.data.system_prompt, task.data.prompt) == (system, user)
        assert task.data.seed == row["seed"] < HELD_OUT_SEEDS


def test_training_tasks_are_never_held_out_and_never_end() -> None:
    config = RagenTasksetConfig(id="ragen2-verifiers", split="train")
    assert not RagenTaskset(config).bounded
    first = next(iter(RagenTaskset(config)))
    assert first.data.seed == HELD_OUT_SEEDS
    assert RagenTaskset(RagenTasksetConfig(id="ragen2-verifiers")).bounded


def test_replies_without_thinking_are_asked_for_so() -> None:
    (task,) = itertools.islice(loaded(thinking=False, actions_per_turn=1), 1)
    assert "<answer>" in task.data.system_prompt
    assert "<think>" not in task.data.system_prompt


def test_the_command_of_the_page_is_taken(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs/integrations/exports.md"
    (command,) = re.findall(r"^\$ vf-eval (.*)$", page.read_text(), re.MULTILINE)
    done = vf_eval(*shlex.split(command), "--dry-run", "True", "-o", str(tmp_path), "--no-push")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    config = json.loads(next(tmp_path.rglob("eval.json")).read_text())
    assert config["env"]["taskset"]["kind"] == "Sokoban"
    assert config["env"]["taskset"]["settings"] == {"size": 5}
