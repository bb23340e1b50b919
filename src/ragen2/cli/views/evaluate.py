"""What ``ragen2 eval`` prints: success, then how far reasoning depends on its prompt."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from ragen2.diagnostics.metrics.collapse import measured_scopes
from ragen2.trainer.evaluate import Assessment

COLLAPSE = "collapse/first_turn/"
VISION = "vision/first_turn/"
ROWS = (
    ("eval/success", "success"),
    ("eval/reward", "reward"),
    ("eval/turns", "turns"),
    ("eval/format_validity", "format validity"),
    (f"{COLLAPSE}retrieval_accuracy", "retrieval accuracy"),
    (f"{COLLAPSE}retrieval_chance", "  chance"),
    (f"{COLLAPSE}mi_estimate", "MI (nats per token)"),
    (f"{COLLAPSE}mi_seq_estimate", "MI (nats per trace)"),
    (f"{COLLAPSE}mi_bound", "  its bound log P"),
    (f"{COLLAPSE}conditional_entropy", "H(Z|X) (nats per token)"),
    (f"{COLLAPSE}reasoning_entropy", "H(Z) (nats per token)"),
    (f"{VISION}retrieval_accuracy", "retrieval of the image"),
    (f"{VISION}retrieval_chance", "  chance"),
    (f"{VISION}grounding", "own image likelier than another"),
    (f"{VISION}image_mi", "MI with the image alone"),
    (f"{VISION}text_mi", "MI with the text alone"),
)
SCOPE_COLUMNS = (
    ("num_traces", "traces", "{:.0f}"),
    ("num_prompts", "prompts", "{:.0f}"),
    ("retrieval_accuracy", "retrieval", "{:.3f}"),
    ("retrieval_chance", "chance", "{:.3f}"),
    ("mi_estimate", "MI", "{:.3f}"),
    ("mi_bound", "bound", "{:.2f}"),
    ("conditional_entropy", "H(Z|X)", "{:.3f}"),
)


def print_verdict(model: str, env: str, verdict: Assessment) -> None:
    """The first turn with intervals, then scope by scope."""
    metrics = verdict.metrics
    table = Table(title=f"{model} on {env}", title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("95% interval", justify="right")
    for name, label in ROWS:
        if name in metrics:
            low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
            span = f"{low:.3f} .. {high:.3f}" if low is not None and high is not None else ""
            table.add_row(label, f"{metrics[name]:.3f}", span)
    console = Console()
    console.print(table)
    scopes = measured_scopes(metrics)
    if len(scopes) > 1:
        console.print(_scope_table(metrics, scopes))
    for name, reason in verdict.absent.items():
        print(f"{name} not measured: {reason}")
    regime = verdict.regime
    print(
        f"regime: {regime.replace('_', ' ') if regime else 'not measured (no reasoning to score)'}"
    )


def _scope_table(metrics: dict[str, float], scopes: list[str]) -> Table:
    table = Table(title="reasoning by scope", title_justify="left")
    table.add_column("scope")
    for _, label, _ in SCOPE_COLUMNS:
        table.add_column(label, justify="right")
    for scope in scopes:
        cells = [
            form.format(metrics[f"collapse/{scope}/{name}"]) for name, _, form in SCOPE_COLUMNS
        ]
        table.add_row(scope.replace("_", " "), *cells)
    return table
