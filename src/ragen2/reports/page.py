"""One self-contained HTML page of a run: verdict in words first, then the curves behind it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

from ragen2.errors import RunError
from ragen2.reports.figures import Chart, draw, draw_plane
from ragen2.reports.gradients import online_section
from ragen2.reports.load import Run, load_run_directory
from ragen2.reports.scopes import scope_charts
from ragen2.reports.verdict import Verdict, judge
from ragen2.runs.files import write_atomically


def write_report(paths: Sequence[Path], out: Path) -> Path:
    """Write the page for these run directories to ``out``."""
    runs = [load_run_directory(path) for path in paths]
    empty = [str(run.path) for run in runs if not run.records]
    if empty:
        raise RunError(f"{', '.join(empty)} has no records yet; train it first")
    try:
        write_atomically(out, render_page(runs))
    except OSError as error:
        raise RunError(f"report {out} cannot be written: {error.strerror}") from error
    return out


def render_page(runs: Sequence[Run]) -> str:
    """The whole page as text."""
    style = (resources.files("ragen2") / "reports" / "page.css").read_text(encoding="utf-8")
    sections = "".join(_section(run) for run in runs)
    title = escape(", ".join(run.path.name for run in runs))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>ragen2 · {title}</title><style>{style}</style></head><body>"
        f"<main>{sections}</main></body></html>\n"
    )


def charts(run: Run) -> list[str]:
    """Every figure of the page, in reading order."""
    collapse = f"collapse/{run.main_scope}/"
    bound = run.series(f"{collapse}mi_bound").values
    return [
        draw(
            Chart(
                "Success",
                [run.series("rollout/success", "training"), run.series("eval/success", "held out")],
                floor=0.0,
                ceiling=1.0,
            )
        ),
        draw(
            Chart(
                "Retrieval accuracy",
                [run.series(f"{collapse}retrieval_accuracy")],
                guides=[run.series(f"{collapse}retrieval_chance", "chance")],
                floor=0.0,
                ceiling=1.0,
            )
        ),
        draw(
            Chart(
                "Mutual information I(X;Z)",
                [run.series(f"{collapse}mi_estimate")],
                guides=[run.series(f"{collapse}mi_bound", "bound log P")],
                unit="nats a token",
                floor=0.0,
            )
        ),
        draw(
            Chart(
                "Entropy",
                [
                    run.series(f"{collapse}conditional_entropy", "H(Z|X)"),
                    run.series(f"{collapse}reasoning_entropy", "H(Z)"),
                ],
                unit="nats a token",
                floor=0.0,
            )
        ),
        draw_plane(
            run.series(f"{collapse}conditional_entropy"),
            run.series(f"{collapse}mi_estimate"),
            bound[-1] if bound else None,
        ),
        draw(Chart("Reward", [run.series("reward/mean")])),
        draw(Chart("Reward variance within prompts", [run.series("reward/variance")], floor=0.0)),
        draw(Chart("Prompts kept by the filter", [run.series("filter/kept")], floor=0.0)),
        draw(
            Chart(
                "Tokens",
                [
                    run.series("rollout/reasoning_tokens", "reasoning"),
                    run.series("rollout/reply_tokens", "reply"),
                ],
                unit="a turn",
                floor=0.0,
            )
        ),
        draw(
            Chart(
                "Format validity", [run.series("rollout/format_validity")], floor=0.0, ceiling=1.0
            )
        ),
        draw(Chart("Gradient norm", [run.series("update/grad_norm")], floor=0.0)),
        draw(
            Chart(
                "Policy entropy in the update",
                [run.series("update/entropy")],
                unit="nats a token",
                floor=0.0,
            )
        ),
    ]


def _section(run: Run) -> str:
    verdict = judge(run)
    figures = "".join(charts(run))
    return (
        f"<section><header><h1>{escape(run.path.name)}</h1>{_verdict(verdict)}</header>"
        f'<div class="charts">{figures}</div>{_scopes(run)}{online_section(run)}{_settings(run)}</section>'
    )


def _scopes(run: Run) -> str:
    """The charts beyond the first turn, under their own heading; nothing where there are none."""
    figures = "".join(scope_charts(run))
    if not figures:
        return ""
    words = (
        "Does the reasoning of later turns, and on prompts that never change, depend on its prompt?"
    )
    return f'<h2>By scope</h2><p>{words}</p><div class="charts">{figures}</div>'


def _verdict(verdict: Verdict) -> str:
    rows = "".join(f"<li>{escape(line)}</li>" for line in verdict.evidence)
    return f'<p class="verdict {verdict.tone}">{escape(verdict.words)}</p><ul>{rows}</ul>'


def _settings(run: Run) -> str:
    rows = []
    for name, value in run.settings.items():
        if isinstance(value, dict):
            rows += [(f"{name}.{inner}", item) for inner, item in value.items()]
        else:
            rows.append((name, value))
    cells = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows
    )
    return f"<details><summary>Settings</summary><table>{cells}</table></details>"
