"""How ragen/ and verl/ were written: by hand after each project's exporter, field for field.

RAGEN (llm_agent/agent_proxy.py, 2026-04): custom_id, messages (states as user, replies as assistant),
metadata with env_id, group_id, num_turns, total_reward, success and tagged metrics. Its total_reward is
always 0.0 and its success always false; the tagged success is right.
verl 0.9.1 (trainer.rollout_data_dir): input, output, gts, score, step, uid; texts are decoded without
special tokens, so a ChatML prompt keeps its role names alone.

    python tests/audit/samples/make_ragen_and_verl.py
"""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent
LAKES = {"P_\n_G": "down", "PO\n_G": "left", "P_O\n__G": "right", "PO_\n__G": "up"}
WAYS = ("the goal is {way}", "{way} is free, so {way}", "i go {way}", "hole ahead; {way}")


def reply(way: str, member: int) -> str:
    return f"<think>{WAYS[member % 4].format(way=way)}</think><answer>{way.title()}</answer>"


def ragen_row(number: int, group: int, member: int) -> dict[str, object]:
    state, way = list(LAKES.items())[group]
    messages = [
        {"role": "user", "content": state},
        {"role": "assistant", "content": reply(way, member)},
        {"role": "user", "content": "Turn 2: nothing happened"},
        {"role": "assistant", "content": reply(way, member + 1)},
    ]
    metadata = {
        "env_id": group * 8 + member,
        "group_id": group,
        "num_turns": 2,
        "total_reward": 0.0,
        "success": False,
        "CoordFrozenLake/success": float(member % 2),
    }
    return {"custom_id": f"traj_{number}", "messages": messages, "metadata": metadata}


def verl_row(step: int, group: int, member: int) -> dict[str, object]:
    state, way = list(LAKES.items())[group]
    return {
        "input": f"system\nReach G.\nuser\n{state}\nassistant\n",
        "output": reply(way, member),
        "gts": None,
        "score": float(member % 2),
        "step": step,
        "uid": f"uid-{group}",
    }


def main() -> None:
    members = [(group, member) for group in range(len(LAKES)) for member in range(8)]
    rows = [ragen_row(number, *one) for number, one in enumerate(members)]
    _write(HERE / "ragen" / "rollouts.jsonl", rows)
    for step in (9, 10):
        _write(HERE / "verl" / f"{step}.jsonl", [verl_row(step, *one) for one in members])


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


if __name__ == "__main__":
    main()
