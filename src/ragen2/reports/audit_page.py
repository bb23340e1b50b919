"""One self-contained HTML page of an audit: verdict, what was read, the curves, what was left out."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib import resources
from pathlib import Path

from ragen2.reports.figures import Chart, draw, draw_plane
from ragen2.reports.load import Run, Series
from ragen2.reports.verdict import TONES, WORDS
from ragen2.runs.audit_record import AuditRecord

COLLAPSE = "collapse/first_turn/"
BASIS = {
    "text": "Estimated from the wording of the log's own reasonings, not from a model's likelihoods; "
    "confirm a collapse with --model.",
    "model": "Scored with {scorer}.",
    "server": "Scored by the server {scorer}.",
}

ROWS = (
    ("retrieval accuracy", f"{COLLAPSE}retrieval_accuracy"),
    ("mutual information", f"{COLLAPSE}mi_estimate"),
    ("share of prompts without reward variance", "reward/dead_ratio"),
    ("words a reasoning", "rollout/reasoning_words"),
)


def verdict_words(record: AuditRecord) -> str:
    """The verdict as one sentence."""
    if record.regime is None:
        return "Collapse could not be measured: no step had enough to compare."
    return WORDS[record.regime]


def verdict_tone(record: AuditRecord) -> str:
    """Colour of the verdict."""
    return TONES.get(record.regime or "", "fair")


def basis(record: AuditRecord) -> str:
    """What the scores are, in one sentence: a reader must not take wording for likelihood."""
    return BASIS[record.likelihood].format(scorer=record.scorer)


def evidence(record: AuditRecord) -> list[str]:
    """The numbers behind the verdict, then other failures, one line each."""
    lines = []
    if record.regime is not None and len(record.steps) > 1:
        lines.append(
            f"{record.regime.replace('_', ' ')} since step {record.regime_since} "
            f"(of {record.steps[-1].step})"
        )
    lines += [one.note for one in record.steps[-1:] if one.note and one.regime == record.regime]
    run = as_run(record)
    lines += [
        _ends(label, run.series(name)) + _against(run, name)
        for label, name in ROWS
        if run.series(name).values
    ]
    return lines + [one.text for one in record.failures if one.name != record.regime]


def _ends(label: str, series: Series) -> str:
    """The first and the last value."""
    places = (0, -1) if len(series.values) > 1 else (-1,)
    told = ", ".join(f"{series.values[i]:.3g} at step {series.steps[i]}" for i in places)
    return f"{label} {told}"


def _against(run: Run, name: str) -> str:
    """What retrieval must be read against."""
    if not name.endswith("retrieval_accuracy"):
        return ""
    chance = run.series(f"{COLLAPSE}retrieval_chance").values[-1]
    p_value = run.series(f"{COLLAPSE}retrieval_p_value").values[-1]
    return f" (chance {chance:.3g}, p {p_value:.2g})"


def as_run(record: AuditRecord) -> Run:
    """The audit's steps as a run, so that they are drawn as a run's are."""
    return Run(Path(record.sources[0]), {}, tuple(record.steps))


def render_audit(record: AuditRecord) -> str:
    """The whole page as text."""
    style = (resources.files("ragen2") / "reports" / "page.css").read_text(encoding="utf-8")
    title = escape(", ".join(Path(source).name or source for source in record.sources))
    facts = [basis(record), *evidence(record), *record.notes]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>ragen2 audit · {title}</title><style>{style}</style></head><body><main><section>"
        f"<header><h1>Audit of {title}</h1>"
        f'<p class="verdict {verdict_tone(record)}">{escape(verdict_words(record))}</p>'
        f"<ul>{_items(facts)}</ul></header>"
        f'<div class="charts">{"".join(_charts(record))}</div>'
        f"{_blind(record)}{_rows(record)}{_absent(record)}{_settings(record)}"
        "</section></main></body></html>\n"
    )


def _charts(record: AuditRecord) -> list[str]:
    run = as_run(record)
    chance = run.series(f"{COLLAPSE}retrieval_chance").values
    bound = run.series(f"{COLLAPSE}mi_bound").values
    unit = "nats a word" if record.likelihood == "text" else "nats a token"
    charts = [
        Chart(
            "Retrieval accuracy",
            [run.series(f"{COLLAPSE}retrieval_accuracy")],
            [("chance", chance[-1])] if chance else (),
            floor=0.0,
            ceiling=1.0,
        ),
        Chart(
            "Mutual information I(X;Z)",
            [run.series(f"{COLLAPSE}mi_estimate")],
            [("bound log P", bound[-1])] if bound else (),
            unit,
            floor=0.0,
        ),
        Chart(
            "Variety of wording",
            [run.series("rollout/distinct_reasoning_ratio")],
            unit="different reasonings over all",
            floor=0.0,
            ceiling=1.0,
        ),
        Chart(
            "Entropy",
            [
                run.series(f"{COLLAPSE}conditional_entropy", "H(Z|X)"),
                run.series(f"{COLLAPSE}reasoning_entropy", "H(Z)"),
            ],
            unit=unit,
            floor=0.0,
        ),
        Chart("Reward", [run.series("reward/mean")]),
        Chart("Reward variance within prompts", [run.series("reward/variance")], floor=0.0),
        Chart(
            "Prompts without reward variance",
            [run.series("reward/dead_ratio")],
            floor=0.0,
            ceiling=1.0,
        ),
        Chart("Length of reasoning", [run.series("rollout/reasoning_words")], (), "words", 0.0),
    ]
    drawn = [draw(chart) for chart in charts if any(one.steps for one in chart.series)]
    entropy = run.series(f"{COLLAPSE}conditional_entropy")
    if entropy.steps:
        information = run.series(f"{COLLAPSE}mi_estimate")
        drawn.append(draw_plane(entropy, information, bound[-1] if bound else None))
    return drawn


def _blind(record: AuditRecord) -> str:
    if not record.blind_prompts:
        return ""
    shown = _items(
        f"step {one.step}: {one.reason} ({'; '.join(one.examples)})" for one in record.blind_prompts
    )
    title = "<summary>Prompts whose reward sees no difference</summary>"
    return f"<details open>{title}<ul>{shown}</ul></details>"


def _rows(record: AuditRecord) -> str:
    rows = record.rows
    cells = [("read", rows.read), ("used", rows.used)]
    cells += [(f"not used: {reason}", count) for reason, count in rows.unused.items()]
    cells += [(f"not scored: {reason}", count) for reason, count in rows.no_trace.items()]
    body = _table((name, f"{count:,}") for name, count in cells)
    body += _table(record.unreadable.items()) if record.unreadable else ""
    return f"<details open><summary>Rows of the log</summary>{body}</details>"


def _absent(record: AuditRecord) -> str:
    reasons = {(name, why): None for one in record.steps for name, why in one.absent.items()}
    if not reasons:
        return ""
    return f"<details><summary>What could not be computed</summary>{_table(reasons)}</details>"


def _settings(record: AuditRecord) -> str:
    cells = [("formats", ", ".join(record.formats)), ("scores from", record.scorer)]
    cells += [(name, str(value)) for name, value in record.settings.items()]
    return f"<details><summary>Settings</summary>{_table(cells)}</details>"


def _table(cells: Iterable[tuple[str, str]]) -> str:
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in cells
    )
    return f"<table>{rows}</table>"


def _items(lines: Iterable[str]) -> str:
    return "".join(f"<li>{escape(line)}</li>" for line in lines)
