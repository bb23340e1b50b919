"""Our environments as tools that a model calls."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import jobs
import pytest
import trl

from ragen2.envs import make
from ragen2.errors import ConfigError
from ragen2.integrations.trl import (
    SNRGRPOTrainer,
    SNRSettings,
    ToolEnvironment,
    env_tools,
    tool_dataset,
)
from ragen2.integrations.trl.env_tools import OVER
from ragen2.runs.store import RunDirectory

SEEDS = range(400_000, 400_002)
MOVES = ["down", "right", "left", "up"]
TEMPLATES = Path(trl.__file__).parent / "chat_templates"


def lake() -> ToolEnvironment:
    return ToolEnvironment(make("FrozenLake", slip=0.0), 0)


def test_acting_as_the_expert_does_earns_the_reward():
    env = make("FrozenLake", slip=0.0)
    tools = lake()
    shown = tools.reset(seed=400_000, prompt="ignored")
    assert shown.startswith(env.start(400_000, 0).observation)
    said = [tools.act(action) for action in env.start(400_000, 0).expert()]
    assert tools.get_reward() == 1.0
    assert said[-1].endswith(OVER)
    assert tools.act("left") == OVER
    assert tools.get_reward() == 1.0


def test_actions_are_counted_and_unknown_ones_named():
    tools = lake()
    tools.reset(seed=400_000)
    said = tools.act("fly")
    assert said.startswith("Unknown action 'fly'.")
    assert said.endswith("You may take 10 more actions."), "what does not exist spends nothing"
    assert tools.act("right").endswith("You may take 9 more actions.")


def test_reset_begins_anew_and_luck_differs_between_instances():
    tools = lake()
    first = tools.reset(seed=400_000)
    tools.act("right")
    assert tools.reset(seed=400_000) == first
    factory = env_tools(make("FrozenLake"))
    lucks = {next(factory()._lucks) for _ in range(4)}
    assert len(lucks) == 4


def test_a_row_must_name_its_task():
    with pytest.raises(ConfigError, match="no column seed, so members of a group"):
        lake().reset(prompt=[])


class Calling(SNRGRPOTrainer):
    """Writes one call and then a last word in place of sampling; all else is TRL's own tool loop."""

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        written = []
        for place, ids in enumerate(prompt_ids):
            has_answer = "<tool_response>" in self._tokenizer.decode(ids)
            move = json.dumps({"name": "act", "arguments": {"action": MOVES[place % 4]}})
            text = "done" if has_answer else f"<tool_call>\n{move}\n</tool_call>"
            written.append([*self._tokenizer.encode(text), self._tokenizer.eos_token_id])
        return written, None


def test_trl_plays_our_environment_through_tool_calls(tmp_path):
    """Calls are executed, turns are found in TRL's mask, and groups share their task."""
    words = jobs.tokenizer()
    words.chat_template = (TEMPLATES / "qwen2_5.jinja").read_text()
    env = make("FrozenLake", slip=0.0)
    trainer = Calling(
        model=str(jobs.EMBEDDED),
        args=jobs.arguments(
            tmp_path, beta=0.0, per_device_train_batch_size=8, max_completion_length=256
        ),
        train_dataset=tool_dataset(env, SEEDS),
        processing_class=words,
        environment_factory=env_tools(env),
        snr=SNRSettings(reasoning="all"),
    )
    trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["tools/call_frequency"] == 1.0
    assert logged["tools/failure_frequency"] == 0.0
    (record,) = RunDirectory.open(tmp_path / "out" / "ragen2").records()
    assert record.metrics["rollout/turns"] == 2.0
    assert len(set(record.seeds)) == 2
    assert record.metrics["collapse/first_turn/num_prompts"] == 2.0
    lines = (tmp_path / "out/ragen2/rollouts/step_000001.jsonl").read_text().splitlines()
    first, second = json.loads(lines[1])["turns"]
    assert '"action": "right"' in first["text"]
    assert "You may take 9 more actions." in first["observation"]
    assert second["text"] == "done"
    assert second["prompt_ids"][: len(first["prompt_ids"])] == first["prompt_ids"]


def test_an_environment_that_chooses_its_own_task_is_refused(tmp_path):
    """Without a dataset TRL gives every member of a group a task of its own."""

    class Wandering(ToolEnvironment):
        def reset(self, seed: int | None = None, **row: Any) -> str:
            return super().reset(seed=next(tasks))

    tasks, env = count(400_000), make("FrozenLake", slip=0.0)
    words = jobs.tokenizer()
    words.chat_template = (TEMPLATES / "qwen2_5.jinja").read_text()
    trainer = Calling(
        model=str(jobs.EMBEDDED),
        args=jobs.arguments(tmp_path, beta=0.0, per_device_train_batch_size=8),
        processing_class=words,
        environment_factory=lambda: Wandering(env, 0),
    )
    with pytest.raises(ConfigError, match=r"different prompts in 4 rows.*let reset"):
        trainer.train()
