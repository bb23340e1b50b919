"""A bounded, seeded sample of a log: what is kept of each step, however long the log is.

Sampling is by hash: of the prompts of a step, those with the smallest hashes stay. A prompt that
belongs to the final sample was in it from its first rollout on, so its rollouts are all seen, and the
sample does not depend on how the log is cut into files.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from ragen2.audit.rollouts import (
    RECORDED,
    LoggedPrompt,
    LoggedRollout,
    LoggedTurn,
    ReasoningRule,
    SampledTokens,
    Split,
    Unusable,
    digest,
)
from ragen2.diagnostics.metrics.wording import num_words

MAX_CHARACTERS = 8192
"""Of a trace that are kept; memory and the cost of scoring are bounded by it."""
EDGE = 64
"""Characters around a trace that are kept: how its first and last word is tokenised depends on them."""
MAX_PLAYS = 64
"""Rewards kept for each prompt."""
ANSWER_CHARACTERS = 200

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class TextTrace:
    """One reasoning trace with the prompt it was written for, as text, and as tokens if those are known."""

    prompt: LoggedPrompt
    lead: str
    reasoning: str
    before: str = ""
    """The end of what the reply says before the reasoning."""
    after: str = ""
    """The beginning of what it says after it."""
    tokens: SampledTokens | None = None

    @classmethod
    def of(
        cls, turn: LoggedTurn, split: Split, *, is_recorded: bool, keeps_tokens: bool
    ) -> TextTrace:
        """What is kept of a reply; ``is_recorded``: its reasoning is what the log says it is."""
        end = split.start + len(split.reasoning)
        is_cut = len(split.reasoning) > MAX_CHARACTERS
        tokens = turn.tokens if keeps_tokens else None
        if tokens is not None and (is_cut or not is_recorded):
            tokens = replace(tokens, reasoning_span=None)
        return cls(
            turn.prompt,
            split.lead,
            split.reasoning[:MAX_CHARACTERS],
            turn.text[: split.start][-EDGE:],
            "" if is_cut else turn.text[end : end + EDGE],
            tokens,
        )


@dataclass(frozen=True, slots=True)
class Play:
    """How one rollout ended."""

    group: str
    reward: float | None
    solved: bool | None
    answer: str


@dataclass(frozen=True, slots=True)
class SampleLimits:
    """How much of a log is kept."""

    prompts: int = 32
    traces: int = 16
    steps: int = 50
    turns: int = 1
    seed: int = 0


class Smallest(Generic[Item]):
    """The items of smallest rank among all that were offered."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ranks: list[int] = []
        self.items: list[Item] = []

    def offer(self, rank: int, item: Item) -> Item | None:
        """Take an item if it is among the smallest; returns what was dropped for it, or the item itself."""
        place = bisect_right(self.ranks, rank)
        self.ranks.insert(place, rank)
        self.items.insert(place, item)
        if len(self.ranks) <= self.size:
            return None
        self.ranks.pop()
        return self.items.pop()


class PromptSample:
    """Kept rollouts of one prompt of one step."""

    def __init__(self, key: bytes, limits: SampleLimits) -> None:
        self.key = key
        self.num_seen = 0
        self.traces = [Smallest[TextTrace](limits.traces) for _ in range(limits.turns)]
        """One sample for each turn position."""
        self.plays = Smallest[Play](MAX_PLAYS)


@dataclass(slots=True)
class StepSample:
    """What is kept and counted of one step."""

    step: int
    kept: Smallest[PromptSample]
    num_rollouts: int = 0
    num_traces: int = 0
    reasoning_words: int = 0
    num_cut: int = 0
    by_key: dict[bytes, PromptSample] = field(default_factory=dict)

    def slot(self, key: bytes, limits: SampleLimits) -> PromptSample | None:
        """The sample of a prompt; None when the prompt does not belong to those kept."""
        if key in self.by_key:
            return self.by_key[key]
        sample = PromptSample(key, limits)
        gone = self.kept.offer(_rank(limits.seed, "prompt", self.step, key), sample)
        if gone is sample:
            return None
        if gone is not None:
            del self.by_key[gone.key]
        self.by_key[key] = sample
        return sample

    def count(self, split: Split) -> None:
        """Add one trace to the step's totals, kept or not."""
        self.num_traces += 1
        self.num_cut += len(split.reasoning) > MAX_CHARACTERS
        self.reasoning_words += num_words(split.reasoning)

    def prompts(self) -> list[PromptSample]:
        """Kept prompts in the order of their hashes, which is not the order of the log."""
        return list(self.kept.items)


class Reservoir:
    """Takes rollouts one at a time and keeps what fits the limits."""

    def __init__(
        self,
        limits: SampleLimits,
        rule: ReasoningRule,
        *,
        template_opens: bool = False,
        keeps_tokens: bool = True,
    ) -> None:
        self.limits = limits
        self.rule = rule
        self.template_opens = template_opens
        self.keeps_tokens = keeps_tokens
        self.without: Counter[str] = Counter()
        """Rollouts whose rewards count but whose first turn gave no trace, by reason."""
        self._samples: dict[int, StepSample] = {}
        self._left_out: set[int] = set()

    def add(self, rollout: LoggedRollout, step: int) -> None:
        """Take one rollout; raises ``Unusable`` when its step is one of those left out."""
        sample = self._step(step)
        if sample is None:
            raise Unusable("step left out (--max-steps)")
        key = digest(rollout.turns[0].prompt)
        slot = sample.slot(key, self.limits)
        number = slot.num_seen if slot else 0
        answer = rollout.turns[0].text
        for position, turn in enumerate(rollout.turns[: self.limits.turns]):
            split = self.rule.split_turn(turn, template_opens=self.template_opens)
            if split is None:
                self.without["no reasoning"] += position == 0
                continue
            answer = split.answer
            if position == 0:
                sample.count(split)
            if slot is not None:
                trace = TextTrace.of(
                    turn,
                    split,
                    is_recorded=self.rule.text == RECORDED,
                    keeps_tokens=self.keeps_tokens,
                )
                slot.traces[position].offer(self._trace_rank("trace", key, number), trace)
        sample.num_rollouts += 1
        if slot is not None:
            slot.num_seen += 1
            group = rollout.group if rollout.group is not None else key.hex()
            play = Play(group, rollout.reward, rollout.solved, answer[:ANSWER_CHARACTERS])
            slot.plays.offer(self._trace_rank("play", key, number), play)

    def steps(self) -> list[StepSample]:
        """The kept steps, earliest first."""
        return [self._samples[step] for step in sorted(self._samples)]

    @property
    def num_left_out(self) -> int:
        """Steps that were dropped to stay within the limits."""
        return len(self._left_out)

    def _trace_rank(self, what: str, key: bytes, number: int) -> int:
        return _rank(self.limits.seed, what, key, number)

    def _step(self, step: int) -> StepSample | None:
        """The sample of a step; None for one that was dropped to stay within the limits."""
        if step in self._left_out:
            return None
        if step not in self._samples:
            self._samples[step] = StepSample(step, Smallest(self.limits.prompts))
            if len(self._samples) > self.limits.steps:
                self._drop_one()
        return self._samples.get(step)

    def _drop_one(self) -> None:
        """Drop the step whose neighbours are closest to each other; the first and last stay.

        So the kept steps lie about evenly over the log, and a trend has both its ends.
        """
        steps = sorted(self._samples)
        gaps = [after - before for before, after in zip(steps, steps[2:], strict=False)]
        dropped = steps[1 + gaps.index(min(gaps))]
        del self._samples[dropped]
        self._left_out.add(dropped)


def _rank(*name: int | str | bytes) -> int:
    """A hash to sample by; equal names have equal ranks in every process."""
    text = b"/".join(part if isinstance(part, bytes) else str(part).encode() for part in name)
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
