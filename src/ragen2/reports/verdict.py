"""The verdict on a run or an audit, as every view tells it: what happened, how sure, what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ragen2.diagnostics import Answer, Examination, Finding, Status, examine, read_chain
from ragen2.diagnostics.judging.examination import Tone
from ragen2.reports.load import Run
from ragen2.reports.prompts import UngroundedPrompt, ungrounded_prompts
from ragen2.runs.record import AuditRecord, StepRecord

BASIS = {
    "text": "Estimated from the wording of the log's own reasoning traces, not from a model's likelihoods; "
    "confirm a collapse with --model.",
    "model": "Scored with {scorer}.",
    "server": "Scored by the server {scorer}.",
}
TONES: dict[Status, Tone] = {Status.YES: "good", Status.NO: "bad", Status.UNKNOWN: "unknown"}


@dataclass(frozen=True, slots=True)
class EvidenceLine:
    """One line of evidence, the metric to look at, and what it speaks for."""

    text: str
    metric: str | None = None
    tone: Tone | None = None
    head: str = ""
    """The question that it answers, or the failure that it is."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happened in a few words and in sentences, how sure that is, what to do next, and the evidence."""

    word: str
    text: str
    certainty: str
    next: str
    tone: Tone
    evidence: tuple[EvidenceLine, ...]
    prompts: tuple[UngroundedPrompt, ...] = ()
    """Where only part of the reasoning is grounded: prompts whose reasoning is not."""


def judge(run: Run) -> Verdict:
    """Examine the run's records."""
    found = examine(run.records, run.main_scope)
    return Verdict(
        found.head,
        found.text,
        found.certainty,
        found.next,
        found.tone,
        evidence(found, run),
        ungrounded_prompts(run),
    )


def evidence(found: Examination, run: Run) -> tuple[EvidenceLine, ...]:
    """The five answers, what else is failing, and the newest finding on the chain of information."""
    return (
        *(_answer_line(one, found.since(one.since)) for one in found.answers),
        *(_failure_line(one) for one in found.failures),
        *_chain(run),
    )


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


def _answer_line(answer: Answer, since: str) -> EvidenceLine:
    head = f"{answer.question.value} {answer.status.value.capitalize()}{since}."
    return EvidenceLine(answer.text, answer.metric, TONES[answer.status], head)


def _failure_line(finding: Finding) -> EvidenceLine:
    head = f"{finding.name.replace('_', ' ').capitalize()} since step {finding.since_step}."
    tone: Tone = "bad" if finding.severity == "severe" else "fair"
    return EvidenceLine(f"{finding.text}.", None, tone, head)


def _chain(run: Run) -> list[EvidenceLine]:
    """The newest finding on input -> reasoning -> action, if it was measured."""
    measured = [r.step for r in run.records if any(name.startswith("flow/") for name in r.metrics)]
    newest = {name: value for record in run.records for name, value in record.metrics.items()}
    return [
        EvidenceLine(f"{read_chain(newest).text}.", head=f"At step {step}.")
        for step in measured[-1:]
    ]
