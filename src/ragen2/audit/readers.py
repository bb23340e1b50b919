"""The log formats that are read, most particular first: which rows are of a format, and what is in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ragen2.audit import trl_rewards
from ragen2.audit.rollouts import (
    LoggedRollout,
    LoggedTurn,
    SampledTokens,
    Unusable,
    chat_of,
    dialogue_turns,
    image_mark,
    is_messages,
    number,
    prompt_of,
    reply_turns,
    unstrip,
    whole,
)
from ragen2.errors import ConfigError

Row = dict[str, Any]


COLUMN_FIELDS = ("prompt", "completion", "reward", "step", "group")
"""What a column of any table may hold."""
USUAL_NAMES = {
    "prompt": ("prompt", "input", "question", "messages"),
    "completion": ("completion", "response", "output"),
    "reward": ("reward", "score"),
    "step": ("step", "global_step"),
    "group": ("group", "group_id", "uid"),
}


@dataclass(frozen=True, slots=True)
class LogReader:
    """One log format. ``read`` raises ``Unusable`` with the reason a row is counted under."""

    name: str
    matches: Callable[[Row], bool]
    read: Callable[[Row], list[LoggedRollout]]


def _has(row: Row, *names: str) -> bool:
    """Whether all these columns are there."""
    return all(name in row for name in names)


def _label(value: Any) -> str | None:
    return None if value is None else str(value)


def _is_own(row: Row) -> bool:
    """Rollouts of our own run directories: ``rollouts/*.jsonl``."""
    return _has(row, "env", "seed", "luck", "turns", "messages")


def _read_own(row: Row) -> list[LoggedRollout]:
    turns = row["turns"]
    if not isinstance(turns, list) or not turns:
        raise Unusable("no completion")
    seen = list(chat_of(row["messages"]))
    if not seen:
        raise Unusable("no prompt")
    logged = []
    for turn in turns:
        text, is_open = str(turn.get("text", "")), _is_open(turn)
        known = turn.get("reasoning")
        tokens = SampledTokens.of(
            turn.get("prompt_ids"), turn.get("ids"), turn.get("reasoning_span")
        )
        reasoning = known.strip() if isinstance(known, str) else None
        logged.append(LoggedTurn(tuple(seen), text, is_open, reasoning, tokens))
        written = f"<think>{text}" if is_open else text
        seen += [("assistant", written), ("user", _shown(turn))]
    return [
        LoggedRollout(
            tuple(logged),
            reward=number(row.get("reward")),
            step=whole(row.get("step")),
            group=f"{row['env']}/{row['seed']}",
            solved=row.get("solved") if isinstance(row.get("solved"), bool) else None,
        )
    ]


def _shown(turn: Row) -> str:
    """The observation, after a mark of its image if it has one."""
    image = turn.get("shown_image")
    return (image_mark(image) if image else "") + str(turn.get("observation", ""))


def _is_open(turn: Row) -> bool:
    """Whether the reply was opened for the model: its reasoning ends without having begun, or was cut off."""
    before, closing, _ = str(turn.get("text", "")).partition("</think>")
    is_cut = bool(turn.get("reasoning")) and bool(turn.get("problem"))
    return "<think>" not in before and (bool(closing) or is_cut)


def _is_verifiers(row: Row) -> bool:
    """Verifiers' saved rollouts: episodes in ``traces.jsonl``, and the older ``results.jsonl``."""
    is_episode = _has(row, "traces", "task") and isinstance(row["traces"], list)
    is_result = _has(row, "prompt", "completion", "reward") and (
        "example_id" in row or _has(row, "task", "answer")
    )
    return is_episode or is_result


def _read_verifiers(row: Row) -> list[LoggedRollout]:
    if "traces" in row:
        return _verifiers_episode(row)
    turns = reply_turns(prompt_of(row["prompt"]), row["completion"])
    return [
        LoggedRollout(
            turns,
            reward=number(row["reward"]),
            step=whole(row.get("step")),
            group=_label(row.get("example_id")),
        )
    ]


def _verifiers_episode(row: Row) -> list[LoggedRollout]:
    """One rollout for each agent's trace that a model wrote something in."""
    found = []
    for trace in row["traces"]:
        turns = _verifiers_turns(trace)
        if turns:
            found.append(
                LoggedRollout(
                    turns,
                    reward=_verifiers_reward(trace),
                    step=_verifiers_step(row),
                    group=_verifiers_group(row),
                )
            )
    if not found:
        raise Unusable("no completion")
    return found


def _verifiers_turns(trace: Any) -> tuple[LoggedTurn, ...]:
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
                turns.append(LoggedTurn(pairs[:-1], pairs[-1][1], tokens=_verifiers_tokens(path)))
    return tuple(turns)


def _verifiers_tokens(path: list[Row]) -> SampledTokens | None:
    """What the path has before its last message's first sampled token, and from there; often nothing."""
    *before, last = (one.get("token_ids") or [] for one in path)
    mask = path[-1].get("mask") or []
    if len(mask) != len(last) or not any(mask):
        return None
    first = mask.index(True)
    return SampledTokens.of([*chain(*before), *last[:first]], last[first:])


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


def _verifiers_reward(trace: Row) -> float | None:
    """The weighted sum of what was scored; a reward that did not run is no reward."""
    scored = [one for one in trace.get("rewards", {}).values() if isinstance(one, dict)]
    values = [(number(one.get("score")), number(one.get("weight", 1.0))) for one in scored]
    known = [score * weight for score, weight in values if score is not None and weight is not None]
    return sum(known) if known else None


def _verifiers_step(row: Row) -> int | None:
    run = row.get("run")
    work = run.get("work") if isinstance(run, dict) else None
    return whole(work.get("step")) if isinstance(work, dict) else None


def _verifiers_group(row: Row) -> str | None:
    for place, name in (("group", "id"), ("task", "key"), ("task", "hash")):
        holder = row.get(place)
        if isinstance(holder, dict) and isinstance(holder.get(name), str):
            return str(holder[name])
    return None


def _is_ragen(row: Row) -> bool:
    """RAGEN's rollout export: one conversation per line with its metadata."""
    return _has(row, "messages", "metadata") and isinstance(row["metadata"], dict)


def _read_ragen(row: Row) -> list[LoggedRollout]:
    if not is_messages(row["messages"]):
        raise Unusable("no prompt")
    turns = dialogue_turns((), row["messages"])
    if not turns:
        raise Unusable("no completion")
    metadata = row["metadata"]
    successes = [
        value
        for name, value in metadata.items()
        if name.endswith("/success") and isinstance(value, int | float)
    ]
    return [
        LoggedRollout(
            turns,
            reward=number(metadata.get("total_reward")),
            step=whole(metadata.get("step", row.get("step"))),
            group=_label(metadata.get("group_id")),
            solved=bool(successes[0]) if successes else None,
        )
    ]


def _is_trl(row: Row) -> bool:
    """TRL's tables of ``log_completions=True``: ``completions/completions_NNNNN.parquet``."""
    return _has(row, *trl_rewards.COLUMNS)


def trl_reader(rewards: Sequence[str]) -> LogReader:
    """A reader for TRL's tables with these reward columns."""
    return LogReader("trl", _is_trl, lambda row: _read_trl(row, rewards))


def _read_trl(row: Row, rewards: Sequence[str]) -> list[LoggedRollout]:
    """The reward is the plain sum of its columns, because the weights are not in the table."""
    turns = reply_turns(prompt_of(row["prompt"]), row["completion"])
    known = [value for name in rewards if (value := number(row.get(name))) is not None]
    return [LoggedRollout(turns, reward=sum(known) if known else None, step=whole(row["step"]))]


def _is_verl(row: Row) -> bool:
    """Verl's rollout dumps: ``{step}.jsonl`` under ``trainer.rollout_data_dir``."""
    return _has(row, "input", "output", "score")


def _read_verl(row: Row) -> list[LoggedRollout]:
    """The prompt was decoded without its special tokens; where it was ChatML, its roles come back."""
    prompt, text = row["input"], row["output"]
    if not isinstance(prompt, str) or not prompt.strip():
        raise Unusable("no prompt")
    if not isinstance(text, str) or not text:
        raise Unusable("no completion")
    return [
        LoggedRollout(
            (LoggedTurn(unstrip(prompt), text),),
            reward=number(row["score"]),
            step=whole(row.get("step")),
            group=_label(row.get("uid")),
        )
    ]


def parse_columns(text: str) -> dict[str, str]:
    """``prompt=question,completion=reply`` -> a map; a reward may be a sum: ``reward=a+b``."""
    found: dict[str, str] = {}
    for piece in text.split(","):
        field, equals, column = (part.strip() for part in piece.partition("="))
        if not equals or not column or field not in COLUMN_FIELDS:
            raise ConfigError(
                f"--columns takes FIELD=COLUMN pairs with fields {', '.join(COLUMN_FIELDS)}, got {piece!r}"
            )
        found[field] = column
    return found


def columns_reader(columns: Mapping[str, str]) -> LogReader:
    """A reader for this map; what it does not name is found by its usual name."""

    def mapped(row: Row) -> dict[str, str]:
        return {**_usual_columns(row), **columns}

    return LogReader(
        "columns",
        lambda row: all(mapped(row).get(name) in row for name in ("prompt", "completion")),
        lambda row: _read_columns(row, mapped(row)),
    )


def _usual_columns(row: Row) -> dict[str, str]:
    return {
        field: next(name for name in names if name in row)
        for field, names in USUAL_NAMES.items()
        if any(name in row for name in names)
    }


def _read_columns(row: Row, columns: Mapping[str, str]) -> list[LoggedRollout]:
    prompt = prompt_of(row.get(columns["prompt"]))
    turns = reply_turns(prompt, row.get(columns["completion"]))
    return [_with_columns(turns, row, columns)]


def _with_columns(
    turns: tuple[LoggedTurn, ...], row: Row, columns: Mapping[str, str]
) -> LoggedRollout:
    return LoggedRollout(
        turns,
        reward=_column_reward(row, columns.get("reward")),
        step=whole(row.get(columns["step"])) if "step" in columns else None,
        group=_label(row.get(columns["group"])) if "group" in columns else None,
    )


def _column_reward(row: Row, column: str | None) -> float | None:
    if column is None:
        return None
    values = [number(row.get(name.strip())) for name in column.split("+")]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _is_chat(row: Row) -> bool:
    """Whole conversations, such as tools for OpenAI-compatible servers write: replies are in ``messages``."""
    messages = row.get("messages") or []
    return is_messages(messages) and any(one.get("role") == "assistant" for one in messages[1:])


def _read_chat(row: Row) -> list[LoggedRollout]:
    columns = _usual_columns(row)
    turns = dialogue_turns((), row["messages"])
    if not any(turn.text for turn in turns):
        raise Unusable("no completion")
    return [_with_columns(turns, row, columns)]


READERS = {
    one.name: one
    for one in (
        LogReader("ragen2", _is_own, _read_own),
        LogReader("verifiers", _is_verifiers, _read_verifiers),
        LogReader("ragen", _is_ragen, _read_ragen),
        trl_reader(()),
        LogReader("verl", _is_verl, _read_verl),
        columns_reader({}),
        LogReader("chats", _is_chat, _read_chat),
    )
}
"""By name. A row is of the first format that it matches, so the most particular ones come first."""


def detect(row: Row) -> LogReader | None:
    """The first format that this row is of."""
    return next((reader for reader in READERS.values() if reader.matches(row)), None)
