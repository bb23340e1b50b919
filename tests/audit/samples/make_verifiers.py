"""How verifiers/traces.jsonl.gz was written: verifiers 0.4.0, its own types and writer, then gzip.

    pip install verifiers==0.4.0
    python tests/audit/samples/make_verifiers.py

No model is called: the replies below stand for what one answered. Reasoning is kept apart from the
answer, as servers with a reasoning parser return it.
"""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.episode import EnvInfo, Episode, GroupInfo, TrainRunInfo, TrainWorkInfo
from verifiers.v1.graph import MessageNode
from verifiers.v1.task import TaskData, task_key
from verifiers.v1.trace import AgentInfo, Trace, TraceTask
from verifiers.v1.types import AssistantMessage, SystemMessage, UserMessage
from verifiers.v1.utils.trace_store import write_episode

HERE = Path(__file__).parent
TASKS = {"red": "apple", "yellow": "lemon", "green": "lime", "brown": "date"}
WAYS = (
    "it is {colour}, so {fruit} fits best",
    "{colour} things: {fruit} comes to mind",
    "i would say {fruit}, being {colour}",
    "only {fruit} is really {colour}",
)


def episode(step: int, colour: str, fruit: str, way: int) -> Episode:
    data = TaskData(prompt=f"Name a {colour} fruit.", system_prompt="One word.")
    task = TraceTask(type="Fruit", data=data, key=task_key(data.model_dump()))
    reasoning = WAYS[way].format(colour=colour, fruit=fruit)
    again = f"still {colour}: {fruit}"
    dialogue = [
        (SystemMessage(content="One word."), False),
        (UserMessage(content=f"Name a {colour} fruit."), False),
        (AssistantMessage(content=fruit, reasoning_content=reasoning), True),
        (UserMessage(content="Are you sure?"), False),
        (AssistantMessage(content=fruit, reasoning_content=again), True),
    ]
    nodes = [
        MessageNode(
            parent=index - 1 if index else None, message=message, sampled=is_sampled, timestamp=0.0
        )
        for index, (message, is_sampled) in enumerate(dialogue)
    ]
    trace = Trace(task=task, agent=AgentInfo(config=AgentConfig()), nodes=nodes, ok=True)
    trace.record_reward("right", float(way != 2))
    trace.record_reward("brief", 1.0 / len(reasoning), weight=0.5)
    run = TrainRunInfo(id="sample", work=TrainWorkInfo(step=step))
    group = GroupInfo(id=f"{step}-{colour}")
    return Episode(
        env=EnvInfo(id="fruit"), task=task, group=group, run=run, ok=True, traces=[trace]
    )


def main() -> None:
    target = HERE / "verifiers"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for step in (1, 2):
        for colour, fruit in TASKS.items():
            for member in range(8):
                write_episode(target, episode(step, colour, fruit, member % len(WAYS)))
    plain = target / "traces.jsonl"
    (target / "traces.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    plain.unlink()


if __name__ == "__main__":
    main()
