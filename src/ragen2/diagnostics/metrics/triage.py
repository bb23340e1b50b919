"""Triage: why does a prompt have no reward variance? Too easy, too hard, or a reward that sees nothing.

A flat prompt teaches nothing, but the cures differ. Labels come from the rollouts alone, or, where the
environment is at hand, from contrasts: what other behaviour on the same prompt would have been paid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np
from pydantic import Field

from ragen2.diagnostics.base import (
    Attempts,
    Contrasts,
    Diagnostic,
    Evidence,
    Metrics,
    Played,
    attempts_of,
)
from ragen2.spread import spread
from ragen2.types import FloatArray

TOLERANCE = 1e-9
"""Rewards closer than this share of their size are equal."""
LUCK_MARGIN = 0.1
"""Part of the range of contrast rewards by which means must differ, where luck blurs them."""
MOST_EXAMPLES = 3


class Label(StrEnum):
    """What a prompt's rewards say."""

    LIVE = "live"
    """Rewards differ: there is something to learn from."""
    TOO_EASY = "too_easy"
    """Every member gets it right."""
    TOO_HARD = "too_hard"
    """No member gets it right, though the reward could tell if one did."""
    REWARD_BLIND = "reward_blind"
    """Behaviour differs and the reward does not: look at the reward."""
    UNCLEAR = "unclear"
    """The evidence does not decide."""


@dataclass(frozen=True, slots=True, eq=False)
class Triaged:
    """A prompt's label, why, and plays to look at."""

    name: str
    label: Label
    reason: str
    examples: tuple[tuple[str, Played], ...] = ()
    """Who played, and the play; for a reward-blind prompt they differ in behaviour, not in reward."""
    format_only: bool = False
    """Whether returns differ by format penalties and by nothing else."""
    replay_failed: bool = False
    """Whether the environment raised when it was asked for contrasts."""


class Triage(Diagnostic):
    """Shares of prompts that are live, too easy, too hard, reward-blind or unclear."""

    kind: Literal["triage"] = "triage"
    replays: int = Field(
        4,
        ge=0,
        le=10_000,
        description="plays of each contrast (expert, random) on a flat prompt; 0: rollouts alone",
    )
    low_std: float = Field(
        0.0, ge=0.0, description="standard deviation of task rewards up to which a prompt is flat"
    )

    def measure(self, evidence: Evidence) -> Metrics:
        """Shares of the batch's prompts, under ``triage/``; those of the labels add up to 1."""
        return triage_shares(self.judge(evidence))

    def judge(self, evidence: Evidence) -> list[Triaged]:
        """One verdict per group, in order."""
        prompts = [attempts_of(group) for group in evidence.groups]
        replayer = evidence.replayer if self.replays else None
        if replayer is None:
            return triage(prompts, low_std=self.low_std)
        contrasts = [
            replayer.contrasts(group, self.replays) if is_flat(prompt, self.low_std) else None
            for group, prompt in zip(evidence.groups, prompts, strict=True)
        ]
        return triage(prompts, contrasts, reward_range=replayer.reward_range, low_std=self.low_std)


def triage(
    prompts: Sequence[Attempts],
    contrasts: Sequence[Contrasts | None] | None = None,
    *,
    reward_range: tuple[float, float] | None = None,
    low_std: float = 0.0,
) -> list[Triaged]:
    """Label every prompt of a batch.

    Args:
        prompts: the plays of each prompt; live prompts teach what failure and success pay elsewhere.
        contrasts: other behaviour on the same prompts; left out, or None for a prompt, the plays
            of the batch alone decide.
        reward_range: least and greatest reward; left out, what each environment paid in this batch.
        low_std: standard deviation of rewards up to which a prompt counts as flat.
    """
    levels = {
        env: _levels([one for one in prompts if one.env == env], reward_range, low_std)
        for env in {prompt.env for prompt in prompts}
    }
    beside = contrasts if contrasts is not None else [None] * len(prompts)
    return [
        _judge(prompt, contrast, levels[prompt.env], low_std)
        for prompt, contrast in zip(prompts, beside, strict=True)
    ]


def triage_shares(found: Sequence[Triaged]) -> Metrics:
    """Share of prompts with each label and with format spread alone; failed replays are counted."""
    labels = [one.label for one in found]
    shares = {label.value: labels.count(label) / len(labels) for label in Label}
    shares["format_only"] = float(np.mean([one.format_only for one in found]))
    shares["replay_errors"] = float(sum(one.replay_failed for one in found))
    return {f"triage/{name}": value for name, value in shares.items()}


def is_flat(prompt: Attempts, low_std: float = 0.0) -> bool:
    """Whether the task rewards of a prompt are as good as equal."""
    return spread(prompt.rewards_G, "reward_std", ddof=1) <= low_std


@dataclass(frozen=True, slots=True, eq=False)
class _Levels:
    """What the batch tells about an environment's rewards; only live prompts teach what is paid."""

    low: float
    high: float
    failures: FloatArray
    """Rewards of members of live prompts that did not solve it."""
    successes: FloatArray
    variety: float | None
    """Median variety of behaviour of live prompts; None without any."""


def _levels(
    prompts: Sequence[Attempts], reward_range: tuple[float, float] | None, low_std: float
) -> _Levels:
    live = [prompt for prompt in prompts if not is_flat(prompt, low_std)]
    members = [member for prompt in live for member in prompt.members]
    everyone = np.concatenate([prompt.rewards_G for prompt in prompts])
    low, high = reward_range or (float(everyone.min()), float(everyone.max()))
    return _Levels(
        low,
        high,
        failures=np.array([member.reward for member in members if member.solved is False]),
        successes=np.array([member.reward for member in members if member.solved]),
        variety=float(np.median([prompt.variety for prompt in live])) if live else None,
    )


def _judge(
    prompt: Attempts, contrasts: Contrasts | None, levels: _Levels, low_std: float
) -> Triaged:
    if not is_flat(prompt, low_std):
        return Triaged(prompt.name, Label.LIVE, "rewards differ")
    case = _Case(prompt, contrasts or Contrasts(), levels)
    label, reason = _explain(case)
    if case.contrasts.problem:
        reason = f"{reason}; no replay: {case.contrasts.problem}"
    if case.contrasts.missing:
        reason = f"{reason}; {', '.join(case.contrasts.missing)} to compare with"
    return Triaged(
        prompt.name,
        label,
        reason,
        _examples(case, label),
        format_only=prompt.format_spread,
        replay_failed=bool(case.contrasts.problem),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """One flat prompt with everything its label may rest on."""

    prompt: Attempts
    contrasts: Contrasts
    levels: _Levels

    @property
    def paid(self) -> float:
        """What every member got, but for differences too small to count."""
        return float(np.median(self.prompt.rewards_G))

    @property
    def tolerance(self) -> float:
        return max(TOLERANCE * max(1.0, abs(self.paid)), float(np.ptp(self.prompt.rewards_G)))

    @property
    def flags(self) -> set[bool | None]:
        return {member.solved for member in self.prompt.members}

    @property
    def responds(self) -> bool:
        """Whether any other behaviour was paid otherwise."""
        return any(abs(play.reward - self.paid) > self.tolerance for play in self.contrasts.plays)

    def is_one_of(self, rewards: FloatArray) -> bool:
        return bool((np.abs(rewards - self.paid) <= self.tolerance).any())

    def is_lowest(self) -> bool:
        return self.paid <= self.levels.low + self.tolerance

    def is_highest(self) -> bool:
        return self.paid >= self.levels.high - self.tolerance


def _explain(case: _Case) -> tuple[Label, str]:
    members = case.prompt.members
    if case.prompt.num_broken:
        return Label.UNCLEAR, f"the environment raised in {case.prompt.num_broken} plays"
    if len(members) == 1:
        return Label.UNCLEAR, "one play only: no spread can show"
    if case.flags >= {True, False}:
        solved = sum(bool(member.solved) for member in members)
        return (
            Label.REWARD_BLIND,
            f"{solved} of {len(members)} solved it, yet all were paid {case.paid:g}",
        )
    if not case.contrasts.plays:
        return _from_the_batch(case)
    return _against_the_best(case) if case.responds else _without_response(case)


def _without_response(case: _Case) -> tuple[Label, str]:
    """Everything that was tried was paid the same."""
    flags = {play.solved for play in (*case.prompt.members, *case.contrasts.plays)}
    if flags == {True} and case.contrasts.random:
        return Label.TOO_EASY, "random play solves it too"
    if flags >= {True, False}:
        return Label.REWARD_BLIND, f"solved or not, {case.paid:g} is paid"
    if not case.contrasts.expert:
        return _from_the_batch(case)
    if case.is_lowest() or case.is_one_of(case.levels.failures):
        return (
            Label.TOO_HARD,
            f"not even the scripted expert is paid more than {case.paid:g}: impossible, or its "
            "reward is broken",
        )
    return Label.REWARD_BLIND, f"members, expert and random play are all paid {case.paid:g}"


def _against_the_best(case: _Case) -> tuple[Label, str]:
    """The reward can tell; compare what members got with what could be had."""
    contrasts, paid = case.contrasts, case.paid
    if contrasts.one_turn and _differs(contrasts.own, case):
        usual = np.mean([play.reward for play in contrasts.own])
        return (
            Label.UNCLEAR,
            f"equal by luck: the same actions are paid {usual:.3g} on average, not {paid:g}",
        )
    both = {"the scripted expert": contrasts.expert, "random play": contrasts.random}
    rivals = {name: plays for name, plays in both.items() if plays}
    if not rivals:
        return _from_the_batch(case)
    best = max(rivals, key=lambda name: np.mean([play.reward for play in rivals[name]]))
    mean = float(np.mean([play.reward for play in rivals[best]]))
    is_more = mean > paid and _differs(rivals[best], case)
    if case.flags == {True}:
        more = f", though {best} is paid {mean:.3g}" if is_more else ""
        return Label.TOO_EASY, f"all members solve it and are paid {paid:g}{more}"
    if is_more:
        return Label.TOO_HARD, f"{best} is paid {mean:.3g}, every member {paid:g}"
    if not contrasts.expert:  # that random play earns no more says nothing
        return _from_the_batch(case)
    return Label.TOO_EASY, f"no contrast is paid more than the members' {paid:g}"


def _differs(plays: tuple[Played, ...], case: _Case) -> bool:
    """Whether plays are paid otherwise than the members on average, and not by luck alone."""
    rewards = np.array([play.reward for play in plays])
    if len(rewards) < 2:
        return len(rewards) == 1 and abs(float(rewards[0]) - case.paid) > case.tolerance
    everyone = [play.reward for play in case.contrasts.plays]
    blur = 2.0 * float(rewards.std(ddof=1)) / np.sqrt(len(rewards))
    is_lucky = blur > case.tolerance
    margin = max(blur, LUCK_MARGIN * float(np.ptp(everyone))) if is_lucky else case.tolerance
    return bool(abs(rewards.mean() - case.paid) > margin)


def _from_the_batch(case: _Case) -> tuple[Label, str]:
    """Without the environment: what the same reward means elsewhere in the batch."""
    levels, paid = case.levels, case.paid
    has_contrast = levels.high - levels.low > case.tolerance
    if case.flags == {True}:
        is_underpaid = (
            paid < levels.successes.min() - case.tolerance
            if len(levels.successes)
            else has_contrast and case.is_lowest()
        )
        if is_underpaid:
            return Label.REWARD_BLIND, f"all solved it and were paid {paid:g}, like a failure"
        return Label.TOO_EASY, f"all {len(case.prompt.members)} solved it"
    if case.flags == {False}:
        return _from_failures(case, has_contrast)
    if not has_contrast:
        return Label.UNCLEAR, f"every play of the batch was paid {paid:g}"
    if case.is_highest():
        return Label.TOO_EASY, f"all were paid {paid:g}, the most there is"
    if case.is_lowest():
        return Label.TOO_HARD, f"all were paid {paid:g}, the least there is"
    return _between(case)


def _from_failures(case: _Case, has_contrast: bool) -> tuple[Label, str]:
    levels, paid = case.levels, case.paid
    if case.is_one_of(levels.failures):
        return Label.TOO_HARD, f"none solved it; {paid:g} is what failure pays elsewhere"
    if len(levels.successes) and paid >= levels.successes.min() - case.tolerance:
        return Label.REWARD_BLIND, f"none solved it and all were paid {paid:g}, like a success"
    if has_contrast and case.is_highest() and not case.is_lowest():
        return Label.REWARD_BLIND, f"none solved it and all were paid {paid:g}, the most there is"
    if case.is_lowest():
        return Label.TOO_HARD, f"none solved it and all were paid {paid:g}, the least there is"
    return _between(case)


def _between(case: _Case) -> tuple[Label, str]:
    """A reward between the extremes that no failure elsewhere explains."""
    variety, usual = case.prompt.variety, case.levels.variety
    share = f"{len({m.behaviour for m in case.prompt.members})} different behaviours"
    if usual is not None and variety >= usual and variety * len(case.prompt.members) > 1:
        return (
            Label.REWARD_BLIND,
            f"{share}, as many as where rewards differ, all paid {case.paid:g}",
        )
    if variety * len(case.prompt.members) <= 1:
        return Label.UNCLEAR, f"all did the same and were paid {case.paid:g}"
    return Label.UNCLEAR, f"{share}, all paid {case.paid:g}: partial credit, or a blind reward"


def _examples(case: _Case, label: Label) -> tuple[tuple[str, Played], ...]:
    """Plays that show the label: as different from each other as can be had."""
    members = [(f"member {index}", play) for index, play in enumerate(case.prompt.members)]
    others = [("expert", play) for play in case.contrasts.expert[:1]]
    others += [("random", play) for play in case.contrasts.random[:1]]
    if label is not Label.REWARD_BLIND:
        return (members[0], *others[:1])
    found: dict[object, tuple[str, Played]] = {}
    for name, play in members + others:
        found.setdefault(play.solved, (name, play))
    for name, play in members + others:
        found.setdefault(play.behaviour, (name, play))
    shown = {id(play): (name, play) for name, play in found.values()}
    return tuple(shown.values())[:MOST_EXAMPLES]
