"""verifiers' saved rollouts: episodes in ``traces.jsonl``, and the older ``results.jsonl``."""

from __future__ import annotations

from typing import Any

from ragen2.audit.readers.base import Reader, Row, has
from ragen2.audit.rollouts import (
    LoggedRollout,
    LoggedTurn,
    Unusable,
    chat_of,
    number,
    prompt_of,
    reply_turns,
    whole,
)


def _matches(row: Row) -> bool:
    is_episode = has(row, "traces", "task") and isinstance(row["traces"], list)
    is_result = has(row, "prompt", "completion", "reward") and (
        "example_id" in row or has(row, "task", "answer")
    )
    return is_episode or is_result


def _read(row: Row) -> list[LoggedRollout]:
    if "traces" in row:
        return _episode(row)
    turns = reply_turns(prompt_of(row["prompt"]), row["completion"])
    label = row.get("example_id")
    return [
        LoggedRollout(
            turns,
            reward=number(row["reward"]),
            step=whole(row.get("step")),
            group=None if label is None else str(label),
        )
    ]


def _episode(row: Row) -> list[LoggedRollout]:
    """One rollout for each agent's trace that a model wrote something in."""
    found = []
    for trace in row["traces"]:
        turns = _turns(trace)
        if turns:
            found.append(
                LoggedRollout(turns, reward=_reward(trace), step=_step(row), group=_group(row))
            )
    if not found:
        raise Unusable("no completion")
    return found


def _turns(trace: Any) -> tuple[LoggedTurn, ...]:
    """Every sampled message, with the path of messages that leads to it."""
    nodes = trace.get("nodes") if isinstance(trace, dict) else None
    if not isinstance(nodes, list):
        return ()
    turns = []
    for index, node in enumerate(nodes):
        if isinstance(node, dict) and node.get("sampled") is True:
            path = _path(nodes, index)
            if len(path) > 1:
                pairs = chat_of([one["message"] for one in path])
                turns.append(LoggedTurn(pairs[:-1], pairs[-1][1]))
    return tuple(turns)


def _path(nodes: list[Any], index: int) -> list[Row]:
    """Nodes from the root to ``index``; links that run in a circle or nowhere make the row unusable."""
    path: list[Row] = []
    at: Any = index
    while at is not None:
        is_node = isinstance(at, int) and 0 <= at < len(nodes) and len(path) <= len(nodes)
        if not is_node or not isinstance(nodes[at].get("message"), dict):
            raise Unusable("broken message graph")
        path.append(nodes[at])
        at = nodes[at].get("parent")
    return path[::-1]


def _reward(trace: Row) -> float | None:
    """The weighted sum of what was scored; a reward that did not run is no reward."""
    scored = [one for one in trace.get("rewards", {}).values() if isinstance(one, dict)]
    values = [(number(one.get("score")), number(one.get("weight", 1.0))) for one in scored]
    known = [score * weight for score, weight in values if score is not None and weight is not None]
    return sum(known) if known else None


def _step(row: Row) -> int | None:
    run = row.get("run")
    work = run.get("work") if isinstance(run, dict) else None
    return whole(work.get("step")) if isinstance(work, dict) else None


def _group(row: Row) -> str | None:
    for place, name in (("group", "id"), ("task", "key"), ("task", "hash")):
        holder = row.get(place)
        if isinstance(holder, dict) and isinstance(holder.get(name), str):
            return str(holder[name])
    return None


READER = Reader("verifiers", _matches, _read)
