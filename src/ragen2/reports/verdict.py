"""The verdict on a run, in words, with the numbers it rests on."""

from __future__ import annotations

from dataclasses import dataclass

from ragen2.diagnostics import Finding, find_failures, read_chain
from ragen2.reports.load import Run, Series

TONES = {
    "diverse_grounded": "good",
    "compressed_grounded": "fair",
    "template_collapse": "bad",
    "low_entropy_collapse": "bad",
    "undecided": "fair",
}
WORDS = {
    "diverse_grounded": "Healthy: reasoning is varied and depends on its prompt.",
    "compressed_grounded": "Compressed: reasoning depends on its prompt, but hardly varies.",
    "template_collapse": "Template collapse: reasoning is varied, but no longer depends on its prompt.",
    "low_entropy_collapse": "Low-entropy collapse: reasoning is the same whatever the prompt.",
    "undecided": "Undecided: too few traces were scored to tell whether reasoning depends on its prompt.",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sentence, its colour, and the evidence."""

    words: str
    tone: str
    evidence: tuple[str, ...]


def judge(run: Run) -> Verdict:
    """Read the last regime, say since when it holds, and add what else went wrong."""
    findings = find_failures(run.records)
    verdict = _regime_verdict(run)
    besides = [finding for finding in findings if WORDS.get(finding.name) != verdict.words]
    words = verdict.words
    if besides:
        words += f" Besides: {', '.join(finding.name.replace('_', ' ') for finding in besides)}."
    tone = "fair" if besides and verdict.tone == "good" else verdict.tone
    return Verdict(words, tone, (*verdict.evidence, *map(_told, besides), *_chain(run)))


def _told(finding: Finding) -> str:
    return f"{finding.name.replace('_', ' ')} since step {finding.since_step}: {finding.text}"


def _chain(run: Run) -> list[str]:
    """The newest reading of input -> reasoning -> action, if it was measured."""
    measured = [r.step for r in run.records if any(name.startswith("flow/") for name in r.metrics)]
    newest = {name: value for record in run.records for name, value in record.metrics.items()}
    return [f"step {step}: {read_chain(newest).text}" for step in measured[-1:]]


def _regime_verdict(run: Run) -> Verdict:
    regimes = [(record.step, record.regime) for record in run.records if record.regime]
    evidence = [line for line in (_change(*row) for row in _rows(run)) if line]
    if not regimes:
        return Verdict("Collapse was not measured in this run.", "fair", tuple(evidence))
    last = regimes[-1][1] or ""
    since = regimes[-1][0]
    for step, name in reversed(regimes):
        if name != last:
            break
        since = step
    evidence.insert(0, f"{last.replace('_', ' ')} since step {since} (of {run.records[-1].step})")
    return Verdict(WORDS[last], TONES[last], tuple(evidence))


def _rows(run: Run) -> list[tuple[str, Series]]:
    collapse = f"collapse/{run.main_scope}/"
    more = [
        (f"retrieval accuracy, {words}", run.series(f"collapse/{scope}/retrieval_accuracy"))
        for scope, words in (("trajectory", "all turns"), ("probe", "probe set"))
        if scope != run.main_scope
    ]
    return [
        ("held-out success", run.series("eval/success")),
        ("retrieval accuracy", run.series(f"{collapse}retrieval_accuracy")),
        *more,
        ("mutual information, nats a token", run.series(f"{collapse}mi_estimate")),
        ("conditional entropy H(Z|X), nats a token", run.series(f"{collapse}conditional_entropy")),
        ("format validity", run.series("rollout/format_validity")),
    ]


def _change(label: str, series: Series) -> str:
    if not series.values:
        return ""
    first, last = (f"{series.values[i]:.3f} at step {series.steps[i]}" for i in (0, -1))
    text = f"{label}: {first}, {last}"
    if series.low:
        text += f" (95% {series.low[-1]:.3f} to {series.high[-1]:.3f})"
    return text
