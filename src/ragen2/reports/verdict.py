"""The verdict on a run or an audit, in words, with the numbers it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ragen2.diagnostics import Finding, find_failures, read_chain
from ragen2.diagnostics.judging.regime import SIGNIFICANT
from ragen2.reports.load import Run, Series
from ragen2.runs.record import AuditRecord, FoundFailure, StepRecord

Tone = Literal["good", "fair", "bad", "unknown"]

TONES: dict[str, Tone] = {
    "diverse_grounded": "good",
    "compressed_grounded": "fair",
    "template_collapse": "bad",
    "low_entropy_collapse": "bad",
    "undecided": "unknown",
}
HEADS = {
    "diverse_grounded": "Healthy",
    "compressed_grounded": "Compressed",
    "template_collapse": "Template collapse",
    "low_entropy_collapse": "Low-entropy collapse",
    "undecided": "Undecided",
}
WORDS = {
    "diverse_grounded": "Reasoning is varied and depends on its prompt.",
    "compressed_grounded": "Reasoning depends on its prompt, but hardly varies.",
    "template_collapse": "Reasoning is varied, but no longer depends on its prompt.",
    "low_entropy_collapse": "Reasoning is the same whatever the prompt.",
    "undecided": "Too few traces were scored to tell whether reasoning depends on its prompt.",
}
NOT_MEASURED = "Collapse not measured"
BASIS = {
    "text": "Estimated from the wording of the log's own reasoning traces, not from a model's likelihoods; "
    "confirm a collapse with --model.",
    "model": "Scored with {scorer}.",
    "server": "Scored by the server {scorer}.",
}
LATEST = 5
"""Measurements whose median stands for a period of the run; single ones are noisy."""
UNCHANGED = 0.05
"""Share of a value by which it may move and still count as the same."""


@dataclass(frozen=True, slots=True)
class EvidenceLine:
    """One line of evidence, the metric to look at, and what it speaks for."""

    text: str
    metric: str | None = None
    tone: Tone | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A headline of a few words, one or two sentences, their colour, and the evidence."""

    word: str
    text: str
    tone: Tone
    evidence: tuple[EvidenceLine, ...]


@dataclass(frozen=True, slots=True)
class RegimePeriod:
    """The regime that a run ends in, and the step from which it held without a break."""

    regime: str
    since: int
    is_whole_run: bool
    """Whether no other regime came before it."""


def judge(run: Run) -> Verdict:
    """Read the last regime, say since when it holds and what changed, and add what else went wrong."""
    period = last_period(run)
    findings = run.audit.failures if run.audit else find_failures(run.records)
    besides = [one for one in findings if period is None or one.name != period.regime]
    evidence = (*_evidence(run, period), *map(_failure_line, besides), *_chain(run))
    if period is None:
        text = (
            "No step had enough to compare"
            if run.audit
            else "No step of this run compared reasoning traces across prompts"
        )
        why = why_not_measured(run.records)
        text += f": {why}." if why else "."
        return Verdict(NOT_MEASURED, text + _also(besides), "unknown", evidence)
    tone = TONES[period.regime]
    return Verdict(
        HEADS[period.regime] + ("" if period.is_whole_run else f" since step {period.since}"),
        " ".join(part for part in (_change_words(run, period), _words(period)) if part)
        + _also(besides),
        "fair" if besides and tone == "good" else tone,
        evidence,
    )


def last_period(run: Run) -> RegimePeriod | None:
    """The regime at the end and since when; None when none was ever named."""
    named = [(record.step, record.regime) for record in run.records if record.regime]
    if not named:
        return None
    last = named[-1][1] or ""
    others = [index for index, (_, name) in enumerate(named) if name != last]
    first = others[-1] + 1 if others else 0
    return RegimePeriod(last, named[first][0], is_whole_run=not others)


def why_not_measured(records: Sequence[StepRecord]) -> str:
    """The newest reason that steps give for having no collapse metrics; empty when none gives one."""
    for record in reversed(records):
        for name, why in record.absent.items():
            if name.startswith("collapse/"):
                return why
    return ""


def basis(record: AuditRecord) -> str:
    """What an audit's scores are, in one sentence: a reader must not take wording for likelihood."""
    return BASIS[record.likelihood].format(scorer=record.scorer)


def _words(period: RegimePeriod) -> str:
    words = WORDS[period.regime]
    return words.replace("no longer depends", "does not depend") if period.is_whole_run else words


def _change_words(run: Run, period: RegimePeriod) -> str:
    """What retrieval and entropy did from before the period until now."""
    prefix = f"collapse/{run.main_scope}/"
    retrieval = run.series(f"{prefix}retrieval_accuracy")
    before, now = _levels(retrieval, period.since)
    if now is None:
        return ""
    if before is None or period.is_whole_run:
        chance = run.series(f"{prefix}retrieval_chance").values
        against = f" (chance {chance[-1]:.2f})" if chance else ""
        return f"Retrieval is at {now:.2f}{against}." if TONES[period.regime] == "bad" else ""
    entropy_name = f"{prefix}conditional_entropy"
    if not run.series(entropy_name).values:
        entropy_name += "_seq"
    entropy = _levels(run.series(entropy_name), period.since)
    goal = "to chance" if _is_at_chance(run, prefix, period.since) else f"to {now:.2f}"
    moved = _moved(before, now)
    first = (
        f"Retrieval {moved} from {before:.2f} {goal}"
        if moved != "stayed"
        else f"Retrieval stayed at {now:.2f}"
    )
    if entropy[0] is None or entropy[1] is None:
        return f"{first}."
    return f"{first} while entropy {_moved(entropy[0], entropy[1])}."


def _levels(series: Series, since: int) -> tuple[float | None, float | None]:
    """Median of the last measurements before ``since``, and of the last ones of all from there on."""
    before = [v for step, v in zip(series.steps, series.values, strict=True) if step < since]
    after = [v for step, v in zip(series.steps, series.values, strict=True) if step >= since]
    return _median(before[-LATEST:]), _median(after[-LATEST:])


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _moved(before: float, now: float) -> str:
    if abs(now - before) <= UNCHANGED * max(abs(before), abs(now)):
        return "stayed"
    return "rose" if now > before else "fell"


def _is_at_chance(run: Run, prefix: str, since: int) -> bool:
    """Whether most of the newest measurements from ``since`` on do not beat shuffled prompts."""
    p_value = _levels(run.series(f"{prefix}retrieval_p_value"), since)[1]
    return p_value is not None and p_value > SIGNIFICANT


def _evidence(run: Run, period: RegimePeriod | None) -> list[EvidenceLine]:
    found = []
    has_steps = any(record.step for record in run.records)
    if period is not None:
        name = period.regime.replace("_", " ")
        text = name
        if has_steps:
            text += f" since step {period.since} (of {run.records[-1].step})"
        found.append(EvidenceLine(text, None, TONES[period.regime]))
    if run.audit:
        notes = [one.note for one in run.records[-1:] if one.note and one.regime]
        found += [EvidenceLine(note) for note in notes]
    rows = [(label, metric, run.series(metric)) for label, metric in _rows(run)]
    found += [
        EvidenceLine(
            _change(label, series, has_steps=has_steps) + _against(run, metric),
            metric,
            _tone(run, metric),
        )
        for label, metric, series in rows
        if series.values
    ]
    return found


def _rows(run: Run) -> list[tuple[str, str]]:
    collapse = f"collapse/{run.main_scope}/"
    if run.audit:
        return [
            ("retrieval accuracy", f"{collapse}retrieval_accuracy"),
            ("mutual information", f"{collapse}mi_estimate"),
            ("share of prompts without reward variance", "reward/dead_ratio"),
            ("words per trace", "rollout/reasoning_words"),
        ]
    more = [
        (f"retrieval accuracy, {words}", f"collapse/{scope}/retrieval_accuracy")
        for scope, words in (("trajectory", "all turns"), ("probe", "probe set"))
        if scope != run.main_scope
    ]
    return [
        ("held-out success", "eval/success"),
        ("retrieval accuracy", f"{collapse}retrieval_accuracy"),
        *more,
        ("mutual information, nats per token", f"{collapse}mi_estimate"),
        ("conditional entropy H(Z|X), nats per token", f"{collapse}conditional_entropy"),
        ("format validity", "rollout/format_validity"),
    ]


def _change(label: str, series: Series, *, has_steps: bool) -> str:
    """The first and the last value, with the last one's interval; a log may know no steps."""
    places = (0, -1) if len(series.values) > 1 else (-1,)
    values = ", ".join(
        f"{series.values[i]:.3g}" + (f" at step {series.steps[i]}" if has_steps else "")
        for i in places
    )
    text = f"{label}: {values}"
    if series.low:
        text += f" (95% {series.low[-1]:.3g} to {series.high[-1]:.3g})"
    return text


def _against(run: Run, metric: str) -> str:
    """What retrieval must be read against."""
    if not metric.endswith("/retrieval_accuracy"):
        return ""
    stem = metric.removesuffix("retrieval_accuracy")
    chance = run.series(f"{stem}retrieval_chance").values
    p_value = run.series(f"{stem}retrieval_p_value").values
    parts = [f"chance {chance[-1]:.3g}"] if chance else []
    parts += [f"p {p_value[-1]:.2g}"] if p_value else []
    return f"; {', '.join(parts)}" if parts else ""


def _tone(run: Run, metric: str) -> Tone | None:
    """Whether retrieval speaks for dependence on the prompt; other numbers mean nothing alone."""
    if not metric.endswith("/retrieval_accuracy"):
        return None
    p_values = run.series(metric.replace("retrieval_accuracy", "retrieval_p_value")).values
    if not p_values:
        return None
    return "good" if p_values[-1] <= SIGNIFICANT else "bad"


def _failure_line(finding: Finding | FoundFailure) -> EvidenceLine:
    name = finding.name.replace("_", " ")
    tone: Tone = "bad" if finding.severity == "severe" else "fair"
    return EvidenceLine(f"{name} since step {finding.since_step}: {finding.text}", None, tone)


def _also(besides: Sequence[Finding | FoundFailure]) -> str:
    names = ", ".join(one.name.replace("_", " ") for one in besides)
    return f" Besides: {names}." if names else ""


def _chain(run: Run) -> list[EvidenceLine]:
    """The newest finding on input -> reasoning -> action, if it was measured."""
    measured = [r.step for r in run.records if any(name.startswith("flow/") for name in r.metrics)]
    newest = {name: value for record in run.records for name, value in record.metrics.items()}
    return [EvidenceLine(f"step {step}: {read_chain(newest).text}") for step in measured[-1:]]
