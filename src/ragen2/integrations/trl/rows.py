"""TRL's rows -> our groups: the tokens that were sampled, cut into turns, with their reasoning found.

Letters: T tokens, G rows of a group. A row's mask is 1 where the model wrote and 0 where a tool or an
environment did, so its runs of ones are the turns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

import numpy as np

from ragen2.policy import ChatTokenizer
from ragen2.rollout.reply import ReplyFormat, reasoning_span, tokens_around
from ragen2.types import (
    Completion,
    Finish,
    FloatArray,
    Group,
    Message,
    Prompt,
    Reply,
    Role,
    StopReason,
    Trajectory,
    Turn,
)

OPENING, CLOSING = "<think>", "</think>"
ENV = "trl"
"""The environment that rows without one of ours are recorded under."""
_TAIL = 16
"""Tokens of a prompt in which a pre-filled opening tag is looked for."""
_SAME = 1e-6
"""TRL's rewards are float32: a difference below this is rounding."""
_ROLES: Mapping[str, Role] = {"assistant": "assistant", "system": "system", "developer": "system"}


@dataclass(frozen=True, slots=True)
class Row:
    """One completion as TRL holds it."""

    messages: tuple[Message, ...]
    prompt_ids: Sequence[int]
    ids: Sequence[int]
    mask: Sequence[int] | None = None
    """1 at the model's own tokens; None when all are."""
    logprobs: Sequence[float] | None = None
    trajectory: Trajectory | None = None
    """The episode, where one of our environments was played."""


@dataclass(frozen=True, slots=True)
class _Opening:
    """Where the opening tag of a reasoning trace is."""

    lead: tuple[int, ...] = ()
    """Its ids, to be added to the prompt."""
    skipped: int = 0
    """Sampled tokens up to its end."""
    is_there: bool = False


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads rows with the tokenizer of the model that wrote them."""

    tokenizer: ChatTokenizer
    eos_ids: frozenset[int]
    rule: Literal["think", "all"] = "think"
    success_reward: float | None = None

    def groups(self, rows: Sequence[Row], rewards_N: FloatArray, size: int) -> list[Group | None]:
        """One group for each ``size`` rows; rows without a reward are left out, and so may be a group."""
        found: list[Group | None] = []
        for start in range(0, len(rows), size):
            span = range(start, start + size)
            members = [
                self.trajectory(rows[i], float(rewards_N[i]), luck=i - start)
                for i in span
                if np.isfinite(rewards_N[i])
            ]
            found.append(Group(members[0].prompt, tuple(members)) if members else None)
        return found

    def trajectory(self, row: Row, reward: float, *, luck: int) -> Trajectory:
        """The row as an episode whose return is what the reward functions of TRL paid."""
        played = row.trajectory
        if played is not None:
            return _with_return(played, reward)
        turns = tuple(self._turns(row, reward))
        solved = self.success_reward is not None and reward >= self.success_reward
        prompt = Prompt(ENV, prompt_number(row.prompt_ids), row.messages)
        return Trajectory(prompt, luck, turns, StopReason.DONE, solved)

    def _turns(self, row: Row, reward: float) -> Iterator[Turn]:
        """The reward is paid at the last turn: TRL knows no other."""
        mask = row.mask if row.mask is not None and any(row.mask) else [1] * len(row.ids)
        spans = list(_runs(mask))
        for index, (start, end) in enumerate(spans):
            is_last = index + 1 == len(spans)
            shown_until = len(row.ids) if is_last else spans[index + 1][0]
            yield self._turn(row, (start, end), shown_until, reward if is_last else 0.0)

    def _turn(self, row: Row, span: tuple[int, int], shown_until: int, reward: float) -> Turn:
        start, end = span
        before = [*row.prompt_ids, *row.ids[:start]]
        ids = list(row.ids[start:end])
        opening = self._opening(before, ids) if self.rule == "think" else _Opening()
        skipped = opening.skipped
        given = row.logprobs
        logprobs = [np.nan] * len(ids) if given is None else [_number(x) for x in given[start:end]]
        completion = Completion(
            np.array(ids[skipped:], dtype=np.int64),
            np.array(logprobs[skipped:], dtype=np.float64),
            self.tokenizer.decode(ids[skipped:]),
            self._finish(ids, is_last=end == len(row.ids)),
        )
        reply, reasoning = self._reply(completion, is_open=opening.is_there)
        return Turn(
            prompt_ids_T=np.array([*before, *opening.lead], dtype=np.int64),
            completion=completion,
            reply=reply,
            reasoning_span=reasoning,
            observation=self.tokenizer.decode(list(row.ids[end:shown_until])),
            reward=reward,
            penalty=0.0,
            executed=reply.actions,
        )

    def _opening(self, before: Sequence[int], ids: Sequence[int]) -> _Opening:
        """Find the opening tag: at the prompt's end, in what was written, or left out by the log.

        A tag that the model wrote itself counts as given, as in our own records and in ``ragen2 audit``:
        text before it would give every trace a prompt of its own.
        """
        if self.tokenizer.decode(list(before[-_TAIL:])).rstrip().endswith(OPENING):
            return _Opening(is_there=True)
        text = self.tokenizer.decode(list(ids))
        opening, closing = text.find(OPENING), text.find(CLOSING)
        if opening < 0 and closing < 0:
            return _Opening()
        lead = tuple(self.tokenizer.encode(OPENING))
        if opening < 0 or 0 <= closing < opening:
            return _Opening(lead, 0, is_there=True)
        skipped = tokens_around(np.array(ids), opening + len(OPENING), self.tokenizer)
        return _Opening(lead, skipped, is_there=True)

    def _reply(self, completion: Completion, *, is_open: bool) -> tuple[Reply, tuple[int, int]]:
        text = completion.text.strip()
        if self.rule == "all":
            end = len(completion.ids_T) - int(completion.finish is Finish.EOS)
            return Reply(text, (text,) if text else ()), (0, end)
        if not is_open:
            return Reply("", (text,) if text else (), "no reasoning"), (0, 0)
        before, tag, after = completion.text.partition(CLOSING)
        answer = after.strip()
        problem = "" if answer else "nothing after the reasoning" if tag else f"no {CLOSING}"
        span = reasoning_span(completion, ReplyFormat(thinking=True), self.tokenizer)
        return Reply(before.strip(), (answer,) if answer else (), problem), span

    def _finish(self, ids: Sequence[int], *, is_last: bool) -> Finish:
        if ids and ids[-1] in self.eos_ids:
            return Finish.EOS
        return Finish.LENGTH if is_last else Finish.STOP


def prompt_number(prompt_ids: Sequence[int]) -> int:
    """A number that equal prompts share on every process; it fits 63 bits."""
    data = np.asarray(prompt_ids, dtype=np.int64).tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=6).digest(), "big")


def messages_of(prompt: Any) -> tuple[Message, ...]:
    """A prompt column as messages: chat, or text as what a user says."""
    if isinstance(prompt, str):
        return (Message("user", prompt),)
    return tuple(Message(_ROLES.get(one["role"], "user"), _text(one["content"])) for one in prompt)


def written_rewards(rewards_NF: FloatArray, weights_F: FloatArray) -> FloatArray:
    """The weighted sum of each row's rewards; NaN where no function gave one.

    TRL holds float32. Each value is taken as the shortest decimal that it stands for, so that 0.1 + 0.2
    and 0.3 are equal rewards and not a variance.
    """
    plain = np.array(
        [[float(str(np.float32(value))) for value in row] for row in rewards_NF], dtype=np.float64
    ).reshape(rewards_NF.shape)
    total_N = np.nansum(plain * np.array([float(str(np.float32(w))) for w in weights_F]), axis=1)
    return np.where(np.isnan(plain).all(axis=1), np.nan, total_N)


def _with_return(trajectory: Trajectory, reward: float) -> Trajectory:
    """The episode with what other reward functions paid added to its last turn."""
    more = reward - trajectory.reward
    if not trajectory.turns or abs(more) <= _SAME * max(1.0, abs(reward)):
        return trajectory
    last = trajectory.turns[-1]
    return replace(
        trajectory, turns=(*trajectory.turns[:-1], replace(last, reward=last.reward + more))
    )


def _runs(mask: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Half-open ranges of ones."""
    place = 0
    for is_own, run in groupby(bool(value) for value in mask):
        length = len(list(run))
        if is_own:
            yield place, place + length
        place += length


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")
