"""The five questions of the examination, each answered from records alone: yes, no, or not known and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ragen2.diagnostics.base import StepMetrics
from ragen2.diagnostics.judging.causes import Cause
from ragen2.diagnostics.judging.detectors import (
    LATEST,
    LOST,
    series,
)
from ragen2.diagnostics.judging.regime import SIGNIFICANT
from ragen2.diagnostics.statistics.resampling import Z95
from ragen2.diagnostics.statistics.trends import departure, trend

FEWEST_VALID = 0.5
"""Share of well-formed replies below which the format comes first."""
SMALLEST_FALL = 0.1
"""Loss of valid replies, as a share of all, that is worth reporting."""
MOST_CUT = 0.2
"""Share of replies cut at the token limit from which the limit comes first."""
FEWEST_PROMPTS = 1.5
"""Effective number of prompts with variance below which an update rests on one prompt or none."""
MOST_DEAD = 0.85
"""Share of prompts without variance from which the batch teaches next to nothing."""
MANY_DEAD = 0.75
"""Share of prompts without variance from which it matters that an update rests on one prompt."""
BLIND = 0.25
"""Share of reward-blind prompts from which the reward comes first."""
LUCKY = 0.8
"""Luck's part of the variance at which the paper's noise injection left no gain: four fifths."""
SOLVED = 0.9
"""Success from which a task counts as solved."""
RARE = 0.9
"""Share of valid replies from which what an invalid one pays does not matter."""
POOLED = 10
"""Newest measurements that are pooled where single ones are noisy."""
FEWEST_POOLED = 3
EQUAL = 1e-9
"""Returns that differ by less are equal but for rounding."""
FEWEST_STEPS = 20
"""Steps of training before which nothing learnt is no finding."""
FOR_SURE = 3.5
"""Standard errors by which the best of several evaluations must exceed the last one."""
COARSEST = 0.15
"""Rise of held-out success that evaluations must be able to show before its absence is a finding."""


class Question(StrEnum):
    """What is asked, in this order."""

    PARSES = "Do replies parse?"
    REWARDED = "Do rewards tell good rollouts from bad ones?"
    LEARNT = "Is anything learnt on held-out tasks?"
    GROUNDED = "Is reasoning about its prompt?"
    FOLLOWED = "Do actions follow the reasoning?"


class Status(StrEnum):
    """What the records say."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Answer:
    """One question, answered."""

    question: Question
    status: Status
    text: str
    """The numbers, in one sentence; where the answer is not known, why."""
    certainty: str = ""
    """How sure this is, in one sentence; empty where it is not known."""
    since: int | None = None
    """First step from which on the question fails without a break; None where it does not fail."""
    cause: Cause | None = None
    metric: str | None = None
    """The curve to look at."""
    explained_by: Question | None = None
    """The failing question that this failure follows from."""


@dataclass(frozen=True, slots=True)
class Track:
    """One metric over the steps that recorded it."""

    steps: tuple[int, ...]
    values: tuple[float, ...]

    @classmethod
    def of(cls, records: Sequence[StepMetrics], *names: str) -> Track:
        """The first of these metrics that was recorded at all; empty if none was."""
        for name in names:
            steps, values = series(records, name)
            if values:
                return cls(tuple(steps), tuple(values))
        return cls((), ())

    @property
    def now(self) -> float | None:
        """Median of the newest measurements; None without any."""
        return float(np.median(self.values[-LATEST:])) if self.values else None

    @property
    def start(self) -> float | None:
        """Median of the first measurements, at most a third of all; None without any."""
        first = self.values[: max(1, min(LATEST, len(self.values) // 3))]
        return float(np.median(first)) if first else None

    def since(self, fails: Callable[[float], bool]) -> int | None:
        """The step from which on it fails, single exceptions aside; None when it does not fail now."""
        return since_step(self.steps, [fails(value) for value in self.values])


def since_step(steps: Sequence[int], fails: Sequence[bool]) -> int | None:
    """The first step of the stretch that fails now, single exceptions aside; None if most newest ones do not.

    A running majority of five around each step decides where a stretch begins; the first step counts for
    those before it.
    """
    if not steps or np.mean(fails[-LATEST:]) <= 0.5:
        return None
    known = [fails[0], fails[0], *fails]
    majority = [bool(np.mean(known[at : at + LATEST]) > 0.5) for at in range(len(fails))]
    last = len(majority) - 1 - majority[::-1].index(True)
    fine = [at for at in range(last) if not majority[at]]
    return steps[fine[-1] + 1 if fine else 0]


def do_replies_parse(records: Sequence[StepMetrics]) -> Answer:
    """Question 1: no environment errors, no cut replies, at least half valid and not falling."""
    ask = Question.PARSES
    errors = Track.of(records, "rollout/env_errors")
    broken = errors.since(lambda count: count > 0.0)
    if broken is not None:
        return Answer(
            ask,
            Status.NO,
            f"The environment raised in {errors.now:.0f} episodes per step.",
            _in_newest(errors),
            broken,
            Cause.ENVIRONMENT_BROKEN,
            "rollout/env_errors",
        )
    valid = Track.of(records, "rollout/format_validity", "eval/format_validity")
    if valid.now is None or valid.start is None:
        return Answer(ask, Status.UNKNOWN, "The records do not say which replies are valid.")
    cut = Track.of(records, "rollout/cut_ratio")
    found, since = _format_problem(valid, cut)
    text = f"{valid.now:.0%} of replies are valid"
    if abs(valid.start - valid.now) >= SMALLEST_FALL:
        text += f", {valid.start:.0%} at the start"
    if cut.now:
        text += f"; {cut.now:.0%} are cut at the token limit"
    status = Status.YES if found is None else Status.NO
    metric = "rollout/cut_ratio" if found is Cause.REPLIES_CUT else "rollout/format_validity"
    return Answer(ask, status, f"{text}.", _in_newest(valid), since, found, metric)


def _format_problem(valid: Track, cut: Track) -> tuple[Cause | None, int | None]:
    low = valid.since(lambda share: share < FEWEST_VALID)
    fall = trend(valid.values)
    is_falling = (
        fall is not None and fall.p_falling <= SIGNIFICANT and -fall.change >= SMALLEST_FALL
    )
    now = valid.now or 0.0
    is_cut = (cut.now or 0.0) >= MOST_CUT
    if is_cut and (cut.now or 0.0) >= (1.0 - now) / 2.0:
        return Cause.REPLIES_CUT, cut.since(lambda share: share >= MOST_CUT)
    if is_falling and fall is not None:
        return Cause.FORMAT_LOST, departure(valid.steps, valid.values, fall)
    if low is None:
        return None, None
    had_form = (valid.start or 0.0) >= FEWEST_VALID
    return (Cause.FORMAT_LOST if had_form else Cause.FORMAT_NEVER_LEARNT), low


def are_rewards_telling(records: Sequence[StepMetrics]) -> Answer:
    """Question 2: rewards differ within prompts, by more than luck, and giving up does not pay."""
    ask = Question.REWARDED
    dead = Track.of(records, "reward/dead_ratio")
    if dead.now is None:
        return Answer(
            ask, Status.UNKNOWN, "The records hold no rewards of several rollouts of a prompt."
        )
    flat = since_step(
        dead.steps, [_is_flat(r) for r in records if "reward/dead_ratio" in r.metrics]
    )
    if flat is None and dead.now >= 0.5 and _is_easy(records):
        flat = dead.steps[0]
    if flat is not None:
        return _why_nothing_differs(records, dead, flat)
    text = f"Rewards differ within {1.0 - dead.now:.0%} of prompts."
    return _what_differs(records, Answer(ask, Status.YES, text, _in_newest(dead)))


def _why_nothing_differs(records: Sequence[StepMetrics], dead: Track, since: int) -> Answer:
    share, but = dead.now or 0.0, ""
    live = Track.of(records, "triage/live").now
    if live is not None and 1.0 - live > share:
        share, but = 1.0 - live, " but for format penalties"
    mean = Track.of(records, "reward/mean").now
    paid = f" ({mean:.2f} on average)" if mean is not None else ""
    text = f"{share:.0%} of prompts pay all their rollouts the same{but}{paid}"
    ask, sure, metric = Question.REWARDED, _in_newest(dead), "reward/dead_ratio"
    if _is_learnt_to_the_end(records):
        return Answer(ask, Status.YES, f"{text}, because they are solved.", sure, metric=metric)
    cause = _why_flat(records)
    more = _about_invalid(records) if cause is Cause.INVALID_PAYS else _told_labels(records)
    return Answer(ask, Status.NO, f"{text}{more}.", sure, since, cause, metric)


def _is_flat(record: StepMetrics) -> bool:
    """Whether this step's rewards teach next to nothing; effective prompts are absent without variance."""
    dead = record.metrics["reward/dead_ratio"]
    rests_on_one = record.metrics.get("reward/effective_prompts", 0.0) < FEWEST_PROMPTS
    # Where the task pays everyone the same, format penalties are all that differs.
    tells_nothing = record.metrics.get("triage/live", 1.0) <= 1.0 - MOST_DEAD
    return tells_nothing or dead >= MOST_DEAD or (rests_on_one and dead >= MANY_DEAD)


def _is_easy(records: Sequence[StepMetrics]) -> bool:
    """Whether the tasks were solved from the first steps on."""
    success = Track.of(records, "rollout/success")
    return min(success.start or 0.0, success.now or 0.0) >= SOLVED


def _is_learnt_to_the_end(records: Sequence[StepMetrics]) -> bool:
    success = Track.of(records, "rollout/success")
    now, start = success.now or 0.0, success.start or 0.0
    return now >= SOLVED and now - start >= SMALLEST_FALL


def _why_flat(records: Sequence[StepMetrics]) -> Cause:
    # Triage counts what the environment paid: where that differs and returns do not, the penalty levels it.
    levelled = (Track.of(records, "triage/live").now or 0.0) >= 0.5
    valid = Track.of(records, "rollout/format_validity").now
    if levelled or (valid is not None and valid < RARE and _invalid_pays(records)):
        return Cause.INVALID_PAYS
    shares = _labels(records)
    if shares[Cause.REWARD_BLIND] >= BLIND:
        return Cause.REWARD_BLIND
    largest = max(shares, key=lambda cause: shares[cause])
    if shares[largest] > BLIND:
        return largest
    success = Track.of(records, "rollout/success").now
    if success is None or 1.0 - SOLVED < success < SOLVED:
        return Cause.REWARD_FLAT
    return Cause.TOO_EASY if success >= SOLVED else Cause.TOO_HARD


def _labels(records: Sequence[StepMetrics]) -> dict[Cause, float]:
    """Share of prompts that triage calls blind, too hard or too easy; 0 where it was not asked."""
    return {
        cause: Track.of(records, f"triage/{cause.value}").now or 0.0
        for cause in (Cause.REWARD_BLIND, Cause.TOO_HARD, Cause.TOO_EASY)
    }


def _told_labels(records: Sequence[StepMetrics]) -> str:
    named = [
        f"{share:.0%} are {cause.value.replace('_', ' ')}"
        for cause, share in _labels(records).items()
        if share >= 0.05
    ]
    return f"; {', '.join(named)}" if named else ""


def _what_differs(records: Sequence[StepMetrics], fine: Answer) -> Answer:
    """Rewards differ; do they see what is done, and not luck alone, and does giving up cost?"""
    luck = Track.of(records, "reward/luck_ratio")
    blind = Track.of(records, "triage/reward_blind")
    valid = Track.of(records, "rollout/format_validity")
    ask, certainty = fine.question, fine.certainty
    pooled = float(np.mean(luck.values[-POOLED:])) if luck.values else 0.0
    if pooled >= LUCKY and (Track.of(records, "rollout/success").now or 0.0) < SOLVED:
        text = f"Luck makes {pooled:.0%} of the reward variance within prompts."
        since = luck.since(lambda share: share >= LUCKY / 2.0)
        sure = f"From rollouts that did the very same, in the newest {len(luck.values[-POOLED:])} steps."
        return Answer(ask, Status.NO, text, sure, since, Cause.LUCK, "reward/luck_ratio")
    if (blind.now or 0.0) >= BLIND:
        text = f"On {blind.now:.0%} of prompts rollouts do different things and are paid the same."
        since = blind.since(lambda share: share >= BLIND)
        return Answer(
            ask, Status.NO, text, certainty, since, Cause.REWARD_BLIND, "triage/reward_blind"
        )
    if valid.now is not None and valid.now < RARE and _invalid_pays(records):
        gain = Track.of(records, "reward/invalid_gain")
        text = f"{valid.now:.0%} of replies are valid{_about_invalid(records)}."
        since = gain.since(lambda value: value >= 0.0)
        sure = f"Pooled over {len(gain.values[-POOLED:])} steps (p < 0.05)."
        return Answer(ask, Status.NO, text, sure, since, Cause.INVALID_PAYS, "reward/invalid_gain")
    return fine


def _invalid_pays(records: Sequence[StepMetrics]) -> bool:
    """Whether rollouts that begin with an invalid reply earn no less, beyond noise, than the others."""
    gains = Track.of(records, "reward/invalid_gain").values[-POOLED:]
    if not gains:
        return False
    if len(gains) < FEWEST_POOLED:
        return max(abs(gain) for gain in gains) <= EQUAL
    error = float(np.std(gains, ddof=1)) / math.sqrt(len(gains))
    return float(np.mean(gains)) - Z95 * error >= -EQUAL


def _about_invalid(records: Sequence[StepMetrics]) -> str:
    gains = Track.of(records, "reward/invalid_gain").values[-POOLED:]
    if not gains:
        return ", though the environment paid them differently: the format penalty makes up for it"
    mean = float(np.mean(gains))
    size = (
        "as much as"
        if abs(mean) < 0.005
        else f"{abs(mean):.2f} {'less' if mean < 0.0 else 'more'} than"
    )
    return f", and a rollout that begins with an invalid reply earns {size} the others"


def is_anything_learnt(records: Sequence[StepMetrics]) -> Answer:
    """Question 3: held-out success rose from the first evaluation, and was not lost again."""
    ask, name = Question.LEARNT, "eval/success"
    scored = [r for r in records if f"{name}_low" in r.metrics and name in r.metrics]
    if len(scored) < 2:
        number = Track.of(records, name).now
        why = (
            "was never evaluated" if number is None else f"is {number:.0%} in one evaluation alone"
        )
        metric = None if number is None else name
        return Answer(ask, Status.UNKNOWN, f"Held-out success {why}.", metric=metric)
    first, last = scored[0], scored[-1]
    best = max(scored[:-1], key=lambda record: record.metrics[name])
    rise, error = _change(first, last)
    start, end = first.metrics[name], last.metrics[name]
    text = (
        f"Held-out success went from {start:.0%} to {end:.0%} (step {first.step} to {last.step})."
    )
    sure = f"95% interval of the change {rise - Z95 * error:+.0%} to {rise + Z95 * error:+.0%}."
    lost, lost_error = _lost(scored)
    if lost > FOR_SURE * lost_error and lost >= SMALLEST_FALL:
        text = text[:-1] + f", after {best.metrics[name]:.0%} at step {best.step}."
        return Answer(ask, Status.NO, text, sure, best.step, Cause.UNLEARNT, name)
    # With a curriculum, training tasks are others than held-out ones, and easier.
    has_levels = any("curriculum/level" in record.metrics for record in records)
    practice = None if has_levels else trend(Track.of(records, "rollout/success").values)
    if (
        practice is not None
        and practice.p_rising <= SIGNIFICANT
        and practice.change >= 2.0 * max(rise + Z95 * error, SMALLEST_FALL)
    ):
        text = text[:-1] + f"; on training tasks {practice.start:.0%} to {practice.end:.0%}."
        return Answer(ask, Status.NO, text, sure, first.step, Cause.OVERFIT, name)
    if rise > Z95 * error or start >= SOLVED:
        return Answer(ask, Status.YES, text, sure, metric=name)
    if last.step - first.step < FEWEST_STEPS or Z95 * error > COARSEST:
        why = f"{text[:-1]}: too few steps or tasks to tell."
        return Answer(ask, Status.UNKNOWN, why, metric=name)
    return Answer(ask, Status.NO, text, sure, first.step, Cause.NOT_LEARNING, name)


def _lost(scored: Sequence[StepMetrics]) -> tuple[float, float]:
    """How far the last evaluation lies below the best two neighbours before it, and the error of that.

    Two, because the best of many single ones is the luckiest.
    """
    drops = [
        (np.mean([one[0] for one in pair]), math.hypot(*(one[1] for one in pair)) / 2.0)
        for at in range(len(scored) - 2)
        for pair in [[_change(scored[-1], scored[at + i]) for i in (0, 1)]]
    ]
    drop, error = max(drops, default=(0.0, 0.0))
    return float(drop), float(error)


def _change(before: StepMetrics, after: StepMetrics) -> tuple[float, float]:
    """How far held-out success differs and the standard error of that, from the two intervals."""
    name = "eval/success"
    widths = [r.metrics[f"{name}_high"] - r.metrics[f"{name}_low"] for r in (before, after)]
    error = math.hypot(*widths) / (2.0 * Z95)
    return after.metrics[name] - before.metrics[name], error


def are_actions_following(records: Sequence[StepMetrics]) -> Answer:
    """Question 5: another prompt's reasoning makes the action less likely."""
    ask, stem = Question.FOLLOWED, "flow/first_turn/reasoning_action_swap"
    p_values = Track.of(records, f"{stem}_p_value")
    if not p_values.values:
        return Answer(ask, Status.UNKNOWN, "No step tried actions with another prompt's reasoning.")
    differs = Track.of(records, "flow/first_turn/swap_differs_ratio").now
    if differs is not None and differs < 0.5:
        return Answer(
            ask, Status.UNKNOWN, "Reasoning is nearly the same everywhere: a swap shows nothing."
        )
    newest = p_values.values[-FEWEST_POOLED:]
    lost = Track.of(records, f"{stem}_seq").now
    text = f"With another prompt's reasoning an action loses {lost or 0.0:.2f} nats."
    sure = f"p = {newest[-1]:.2g} in the newest of {len(p_values.values)} measurements."
    if newest[-1] <= SIGNIFICANT or float(np.median(newest)) <= SIGNIFICANT:
        return Answer(ask, Status.YES, text, sure, metric=stem)
    if len(newest) < 2 or min(newest) <= LOST:
        return Answer(ask, Status.UNKNOWN, f"{text} {sure} That does not decide.", metric=stem)
    held = [index for index, value in enumerate(p_values.values) if value <= SIGNIFICANT]
    since = p_values.steps[held[-1] + 1 if held else 0]
    return Answer(ask, Status.NO, text, sure, since, Cause.UNUSED_REASONING, stem)


def _in_newest(track: Track) -> str:
    count = len(track.values[-LATEST:])
    return f"Median of the newest {count} steps." if count > 1 else "From one step."
