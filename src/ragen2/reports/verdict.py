"""The verdict on a run, in words, with the numbers it rests on."""

from __future__ import annotations

from dataclasses import dataclass

from ragen2.reports.load import Run, Series

COLLAPSE = "collapse/first_turn/"
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
    """Read the last regime and say since when it holds."""
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
    return [
        ("held-out success", run.series("eval/success")),
        ("retrieval accuracy", run.series(f"{COLLAPSE}retrieval_accuracy")),
        ("mutual information, nats a token", run.series(f"{COLLAPSE}mi_estimate")),
        ("conditional entropy H(Z|X), nats a token", run.series(f"{COLLAPSE}conditional_entropy")),
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
