"""Should this run filter its prompts? The rules of ``preflight``, on numbers alone.

Sources: the paper's table of Std(RV)/Mean(RV) against the filter's gain (1.29 and 1.16 help, 0.33 costs
about 5%), its noise injection (the gain holds up to half random moves and is gone at four fifths), and
arithmetic that is written out at each rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ragen2.diagnostics import Examination, Question, Status, examine
from ragen2.diagnostics.judging.answers import BLIND
from ragen2.diagnostics.judging.causes import REMEDIES, Cause

HELPS = 1.0
"""Std(RV)/Mean(RV) from which the filter is advised: with equal live prompts, half of all are dead."""
HURTS = 0.5
"""Up to here it is advised against: with equal live prompts, at most a fifth of all are dead."""
NOISY = 0.5
"""Luck's part of the variance from which ranking prompts by variance ranks them by luck."""

RARE_SUCCESS = 0.02
"""Below this, at least 72% of groups of 16 hold no success at all (0.98 to the power of 16)."""


class Decision(StrEnum):
    """What to do with the filter."""

    FILTER = "filter"
    NO_FILTER = "no_filter"
    EITHER = "either"
    FIX_FIRST = "fix_first"


@dataclass(frozen=True, slots=True)
class Advice:
    """A decision, as a line of text, with its reasons; the first reason decided."""

    decision: Decision
    line: str
    reasons: tuple[str, ...]

    @property
    def go(self) -> bool:
        """Whether the run can start as things are."""
        return self.decision is not Decision.FIX_FIRST


@dataclass(frozen=True, slots=True)
class PreflightFindings:
    """What the rules need to know of a batch."""

    metrics: Mapping[str, float]
    """Under their names in training: ``reward/``, ``triage/``, ``rollout/``, ``collapse/``."""
    num_prompts: int
    ratio_interval: tuple[float, float] | None = None
    """Of Std(RV)/Mean(RV), over prompts."""
    environment_ratio: float | None = None
    """Luck's part of the reward variance; None where luck does nothing or nothing varies."""
    incentive_warning: str = ""
    """One line where not trying pays as well as trying."""
    easier_levels: int = 0
    """Levels that a curriculum would have below these tasks; 0 where the run has one already."""


@dataclass(frozen=True, slots=True)
class _Step:
    """The batch as the examination takes it: one step."""

    metrics: Mapping[str, float]
    step: int = 1


def advise(found: PreflightFindings) -> Advice:
    """The first rule that applies decides: broken things, then noise, then evenness of the variance."""
    examined = examine([_Step(found.metrics)])
    blocking = _must_fix(examined)
    remarks = _remarks(found, examined)
    if blocking:
        line = "NO-GO: fix this first"
        return Advice(Decision.FIX_FIRST, line, (*blocking, *remarks))
    decision, reason = _about_the_filter(found)
    line = {
        Decision.FILTER: "GO: use the filter",
        Decision.NO_FILTER: "GO: train without the filter",
        Decision.EITHER: "GO: with or without the filter",
    }[decision]
    return Advice(decision, line, (reason, *remarks))


def _must_fix(found: Examination) -> list[str]:
    """Why training should not start: what the examination says of replies and of rewards."""
    asked = (found.of(Question.PARSES), found.of(Question.REWARDED))
    return [
        f"{one.text} {REMEDIES[one.cause].next}"
        for one in asked
        if one.status is Status.NO and one.cause is not None
    ]


def _about_the_filter(found: PreflightFindings) -> tuple[Decision, str]:
    share = found.environment_ratio
    if share is not None and share >= NOISY:
        return (
            Decision.NO_FILTER,
            f"luck makes {share:.0%} of the reward variance, so the filter would rank prompts by "
            "luck; less noise or larger groups come first",
        )
    ratio = found.metrics["reward/variance_std_over_mean"]
    measured = f"Std(RV)/Mean(RV) is {ratio:.2f}{_between(found.ratio_interval)}"
    if ratio >= HELPS:
        return (
            Decision.FILTER,
            f"{measured}: variance is uneven, as where the filter helped (1.16, 1.29)",
        )
    if ratio <= HURTS:
        return (
            Decision.NO_FILTER,
            f"{measured}: prompts hold much the same variance, as where the filter cost success (0.33)",
        )
    return (
        Decision.EITHER,
        f"{measured}: between the cases where the filter helped (1.16) and cost success (0.33)",
    )


def _between(interval: tuple[float, float] | None) -> str:
    return f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else ""


def _remarks(found: PreflightFindings, examined: Examination) -> list[str]:
    """What a reader should know, whatever was decided."""
    metrics = found.metrics
    remarks = []
    if found.incentive_warning:
        remarks.append(f"{found.incentive_warning}; {REMEDIES[Cause.INVALID_PAYS].next}")
    blind = metrics["triage/reward_blind"]
    if 0.0 < blind < BLIND:
        remarks.append(f"the reward does not see what is done on {blind:.0%} of prompts")
    if metrics["triage/format_only"]:
        remarks.append(
            f"{metrics['triage/format_only']:.0%} of prompts vary by format penalties alone"
        )
    grounded = examined.of(Question.GROUNDED)
    if grounded.status is Status.NO:
        remarks.append(f"{grounded.text} {grounded.certainty}")
    success = metrics.get("rollout/success", 1.0)
    if found.easier_levels and success < RARE_SUCCESS:
        remarks.append(
            f"{success:.1%} of rollouts succeed, too few to learn from; {found.easier_levels} easier "
            "levels are there: `--set curriculum.mode=adaptive`"
        )
    interval = found.ratio_interval
    if interval and interval[0] < HURTS and interval[1] > HELPS:
        remarks.append(
            f"{found.num_prompts} prompts leave the ratio open; raise rollout.prompts to be surer"
        )
    return remarks
