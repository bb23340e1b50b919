"""The examination: five questions in order; the verdict is the first that fails and that no other explains.

1. Do replies parse?  2. Do rewards differ within prompts, and is an honest try worth more than an invalid
reply?  3. Is anything learnt on held-out tasks?  4. Is reasoning about its prompt?  5. Do actions follow it?

A later question can explain an earlier one: replies stop parsing *because* an invalid reply pays as well as
an honest one. Then the cause is the verdict, not its symptom. ``benchmarks/planted_failures.py`` measures how
often the cause is named right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ragen2.diagnostics.base import StepMetrics
from ragen2.diagnostics.judging.answers import (
    Answer,
    Question,
    Status,
    are_actions_following,
    are_rewards_telling,
    do_replies_parse,
    is_anything_learnt,
)
from ragen2.diagnostics.judging.causes import REMEDIES, Cause
from ragen2.diagnostics.judging.detectors import Finding, find_failures
from ragen2.diagnostics.judging.grounded import is_reasoning_grounded
from ragen2.diagnostics.metrics.collapse import main_scope

Tone = Literal["good", "fair", "bad", "unknown"]

HEALTHY = "Healthy"
GROUNDED = "Reasoning is about its prompt"
MORE = (
    "Go on: more steps, or more tasks with `--set evaluation.tasks=512`, will show what is learnt."
)
NO_RECORDS = "Nothing recorded yet"
UNDECIDED = "Not known whether reasoning is about its prompt"
_TOLD = {Question.LEARNT, Question.GROUNDED}
"""What is told in full where nothing fails."""
_SAME = {
    "template_collapse": Question.GROUNDED,
    "low_entropy_collapse": Question.GROUNDED,
    "entropy_gaming": Question.GROUNDED,
    "unused_reasoning": Question.FOLLOWED,
}
"""Failures that a question asks about: where it fails too, they are not told again."""
FAILURE_ADVICE = {
    "reasoning_shrinkage": "Look at replies in `ragen2 report RUN_DIR`; `--set algorithm.kind=dr_grpo` "
    "does not favour short ones.",
    "entropy_gaming": REMEDIES[Cause.ENTROPY_GAMING].next,
}
_LOOK = "Look at replays of that step: `ragen2 report RUN_DIR`."


@dataclass(frozen=True, slots=True)
class Examination:
    """Five answers, what else is failing, and what follows from them."""

    answers: tuple[Answer, ...]
    failures: tuple[Finding, ...] = ()
    """Failures over steps that no failing question covers, the severe ones first."""
    first_step: int = 0

    @property
    def verdict(self) -> Answer | None:
        """The first failing question that no other failing one explains; None when none fails."""
        failing = [one for one in self.answers if one.status is Status.NO]
        return next((one for one in failing if one.explained_by is None), None)

    @property
    def cause(self) -> str:
        """The verdict's cause; else the first severe failure; else ``healthy``."""
        verdict = self.verdict
        if verdict is not None and verdict.cause is not None:
            return verdict.cause.value
        return next((one.name for one in self._severe), "healthy")

    @property
    def head(self) -> str:
        """What happened, in a few words, and since when."""
        verdict = self.verdict
        if verdict is not None and verdict.cause is not None:
            return REMEDIES[verdict.cause].head + self.since(verdict.since)
        for failure in self._severe:
            return failure.name.replace("_", " ").capitalize() + self.since(failure.since_step)
        if not self.answers:
            return NO_RECORDS
        if self.of(Question.GROUNDED).status is not Status.YES:
            return UNDECIDED
        return GROUNDED if self._is_open else HEALTHY

    @property
    def text(self) -> str:
        """The verdict's numbers and likeliest cause, then what else fails, in sentences."""
        verdict = self.verdict
        parts: list[str] = []
        if verdict is not None and verdict.cause is not None:
            parts += [verdict.text, REMEDIES[verdict.cause].reason]
            others = [one for one in self.answers if one.status is Status.NO and one is not verdict]
            parts += [f"Also, {self._told(one)}" for one in others]
        else:
            parts += [f"{one.text}." for one in self._severe]
            told = [one for one in self.answers if one.question in _TOLD and not self._severe]
            # A log without evaluations need not begin with what it lacks; `certainty` names it.
            parts += [one.text for one in told if one.status is not Status.UNKNOWN or one.metric]
            parts += [
                one.text for one in told if one.question is Question.GROUNDED and not one.metric
            ]
        besides = [one for one in self.failures if verdict is not None or one not in self._severe]
        if besides:
            names = ", ".join(one.name.replace("_", " ") for one in besides)
            parts.append(f"Besides: {names}.")
        return " ".join(parts)

    @property
    def certainty(self) -> str:
        """How sure that is, and what could not be asked."""
        verdict = self.verdict
        known = verdict or self._answer(Question.GROUNDED)
        parts = [known.certainty] if known is not None and known.certainty else []
        unknown = [one.question.value for one in self.answers if one.status is Status.UNKNOWN]
        if unknown:
            parts.append(f"Not known: {' '.join(unknown)}")
        return " ".join(parts)

    @property
    def next(self) -> str:
        """The next thing to do, as a command or a setting."""
        verdict = self.verdict
        if verdict is not None and verdict.cause is not None:
            return REMEDIES[verdict.cause].next
        for failure in self._severe:
            return FAILURE_ADVICE.get(failure.name, _LOOK)
        unknown = {one.question for one in self.answers if one.status is Status.UNKNOWN}
        if self._is_open:
            unknown.remove(Question.LEARNT)
        return next(
            (text for ask, text in TO_KNOW.items() if ask in unknown),
            MORE if self._is_open else "Go on.",
        )

    @property
    def tone(self) -> Tone:
        """Bad when a question or something severe fails, fair when something else does."""
        if self.verdict is not None or self._severe:
            return "bad"
        grounded = self._answer(Question.GROUNDED)
        if grounded is None or grounded.status is Status.UNKNOWN:
            return "unknown"
        return "fair" if self.failures else "good"

    def of(self, question: Question) -> Answer:
        """The answer to one question."""
        return next(one for one in self.answers if one.question is question)

    @property
    def _is_open(self) -> bool:
        """Whether held-out tasks were played, but too few or too early to tell what is learnt.

        A log without evaluations is healthy as far as it goes.
        """
        learnt = self._answer(Question.LEARNT)
        return learnt is not None and learnt.status is Status.UNKNOWN and bool(learnt.metric)

    def _answer(self, question: Question) -> Answer | None:
        return self.of(question) if self.answers else None

    @property
    def _severe(self) -> list[Finding]:
        return [one for one in self.failures if one.severity == "severe"]

    def since(self, step: int | None) -> str:
        """The date of a failure in words; empty for one that was there from the first step."""
        return f" since step {step}" if step is not None and step > self.first_step else ""

    def _told(self, answer: Answer) -> str:
        head = "" if answer.cause is None else REMEDIES[answer.cause].head.lower()
        return f"{head}{self.since(answer.since)}: {answer.text}"


TO_KNOW = {
    Question.GROUNDED: "Compare more prompts with at least 6 replies each: log them, or train with "
    "`--set rollout.prompts=16`; on a log `--model` needs fewer.",
    Question.LEARNT: "Evaluate on held-out tasks: `ragen2 eval MODEL --env NAME`.",
    Question.REWARDED: "See what one batch pays: `ragen2 preflight RUN.toml`.",
    Question.PARSES: "Log which replies are valid, or switch on the diagnostic `surface`.",
    Question.FOLLOWED: "Switch on the diagnostic `flow`.",
}
"""What to do about a question that is not known, the most urgent first."""


def examine(records: Sequence[StepMetrics], scope: str | None = None) -> Examination:
    """Ask all questions of a run's records; ``scope`` is whose reasoning is judged.

    A question whose metrics were not recorded is not known, and never fails.
    """
    if not records:
        return Examination(())
    names = {name for record in records for name in record.metrics}
    answers = (
        do_replies_parse(records),
        are_rewards_telling(records),
        is_anything_learnt(records),
        is_reasoning_grounded(records, scope or main_scope(names)),
        are_actions_following(records),
    )
    explained = tuple(replace(one, explained_by=_explanation(one, answers)) for one in answers)
    failing = {one.question for one in explained if one.status is Status.NO}
    besides = [one for one in find_failures(records) if _SAME.get(one.name) not in failing]
    trained = [record.step for record in records if record.step > 0]
    return Examination(explained, tuple(besides), min(trained, default=0))


def _explanation(answer: Answer, answers: Sequence[Answer]) -> Question | None:
    """The failing question that this one's failure follows from; None for a root."""
    if answer.status is not Status.NO:
        return None
    rewards, grounded = answers[1], answers[3]
    if answer.question is Question.PARSES:
        is_given_up = answer.cause is Cause.FORMAT_LOST and rewards.cause is Cause.INVALID_PAYS
        return Question.REWARDED if is_given_up else None
    if grounded.cause is None or answer is grounded:
        return None
    if answer.question is Question.REWARDED:
        # One text for everything makes one action for everything, and one reward.
        is_first = (grounded.since or 0) <= (answer.since or 0)
        is_uniform = grounded.cause is Cause.LOW_ENTROPY_COLLAPSE and is_first
        blamed = answer.cause in {Cause.TOO_HARD, Cause.TOO_EASY, Cause.REWARD_FLAT}
        return Question.GROUNDED if is_uniform and blamed else None
    if answer.question is Question.LEARNT and answer.cause is not Cause.OVERFIT:
        return Question.GROUNDED
    if answer.question is Question.FOLLOWED:
        return Question.GROUNDED
    return None
