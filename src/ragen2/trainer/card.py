"""The card of a saved model: how the model was trained, how well it plays, whether it collapsed.

Everything in it is a function of the settings and the records, so that a resumed run writes the same card.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ragen2 import __version__
from ragen2.config import dump_config
from ragen2.diagnostics.metrics.collapse import judged_scope
from ragen2.runs.files import write_atomically

if TYPE_CHECKING:
    from ragen2.config import RunConfig
    from ragen2.runs.record import StepRecord
    from ragen2.trainer.warmstart import WarmstartConfig

FILE = "README.md"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
MEASURES = (
    ("mutual information, nats per token", "mi_estimate"),
    ("retrieval accuracy", "retrieval_accuracy"),
    ("retrieval by chance", "retrieval_chance"),
    ("conditional entropy, nats per token", "conditional_entropy"),
)
REGIMES = {
    "diverse_grounded": "reasoning is varied and depends on its prompt",
    "compressed_grounded": "reasoning depends on its prompt, but hardly varies",
    "template_collapse": "reasoning is varied, but no longer depends on its prompt",
    "low_entropy_collapse": "reasoning is the same whatever the prompt",
    "undecided": "too few traces were scored to tell",
}


def write_card(folder: Path, config: RunConfig, records: Sequence[StepRecord]) -> None:
    """Put the card beside the weights, under the name that the hub shows."""
    write_atomically(folder / FILE, model_card(config, records))


def model_card(config: RunConfig, records: Sequence[StepRecord]) -> str:
    """Front matter that the hub reads, then the same for people."""
    step = records[-1].step if records else 0
    title = f"{config.env.kind} agent after {step} steps of {config.algorithm.kind}"
    parts = [
        _front_matter(config, records, title),
        f"# {title}",
        f"Trained with ragen2 {__version__} from `{config.model.path}`, step {step} of {config.steps}, "
        f"seed {config.seed}.",
        _success(config, records),
        _collapse(config, records),
        f"## Settings\n\n```toml\n{dump_config(config)}```",
    ]
    return "\n\n".join(parts) + "\n"


def warmstart_card(config: WarmstartConfig, loss: float) -> str:
    """The card of a warm start: what it imitated. It has not played: how well is not known."""
    kind = config.env.kind
    title = f"Warm start for {kind}"
    made_of = "a new model" if config.new is not None else f"`{config.model.path}`"
    base = None if config.new is not None else config.model.path
    matter = _matter(["ragen2", "imitation-learning", kind], base)
    parts = [
        "\n".join(["---", *matter, "---"]),
        f"# {title}",
        f"Made with ragen2 {__version__} from {made_of}: {config.steps} steps of supervised learning on "
        f"scripted episodes, seed {config.seed}. A turn plays the expert's move with chance "
        f"{config.quality:g} and describes its own state with chance {config.groundedness:g}.",
        f"Loss at the last step: {loss:.4f} nats per token.",
        "## Success\n\nNot evaluated.",
        "## Collapse\n\nNot measured.",
        f"## Settings\n\n```toml\n{dump_config(config)}```",
    ]
    return "\n\n".join(parts) + "\n"


def _matter(tags: Sequence[str], base: str | None) -> list[str]:
    """What the hub asks of every model; the model it comes from, if the hub has that."""
    lines = [
        "library_name: transformers",
        "pipeline_tag: text-generation",
        f"tags: {json.dumps(list(tags))}",
    ]
    if base is not None and HUB_ID.fullmatch(base) and not Path(base).exists():
        lines.append(f"base_model: {json.dumps(base)}")
    return lines


def _front_matter(config: RunConfig, records: Sequence[StepRecord], title: str) -> str:
    """YAML; a JSON value is a YAML value."""
    tags = ["ragen2", "reinforcement-learning", config.env.kind, config.algorithm.kind]
    lines = _matter(tags, config.model.path)
    evaluated = _measured(records, "eval/success")
    if evaluated:
        result = {
            "task": {"type": "reinforcement-learning", "name": config.env.kind},
            "dataset": {"type": config.env.kind, "name": f"{config.env.kind}, held-out tasks"},
            "metrics": [
                {
                    "type": "success_rate",
                    "name": "held-out success",
                    "value": evaluated[-1].metrics["eval/success"],
                }
            ],
        }
        lines.append(f"model-index: {json.dumps([{'name': title, 'results': [result]}])}")
    return "\n".join(["---", *lines, "---"])


def _success(config: RunConfig, records: Sequence[StepRecord]) -> str:
    evaluated = _measured(records, "eval/success")
    if not evaluated:
        return "## Success\n\nNot evaluated."
    ends = evaluated[:1] + evaluated[1:][-1:]
    return "\n".join(
        [
            "## Success",
            "",
            f"On {config.evaluation.tasks} held-out tasks, sampled at temperature "
            f"{config.evaluation.temperature:g}. The interval is 95%.",
            "",
            "| step | success | interval | mean reward |",
            "|---|---|---|---|",
            *(_success_row(record) for record in ends),
        ]
    )


def _success_row(record: StepRecord) -> str:
    found = record.metrics
    low, high = found["eval/success_low"], found["eval/success_high"]
    return (
        f"| {record.step} | {found['eval/success']:.3f} | {low:.3f} to {high:.3f} "
        f"| {found['eval/reward']:.3f} |"
    )


def _collapse(config: RunConfig, records: Sequence[StepRecord]) -> str:
    scope = judged_scope(config.diagnostics)
    measured = _measured(records, f"collapse/{scope}/mi_estimate")
    if not measured:
        return "## Collapse\n\nNot measured."
    first, last = measured[0], measured[-1]
    lines = ["## Collapse", ""]
    if last.regime:
        name = last.regime.replace("_", " ")
        lines += [f"**{name}** at step {last.step}: {REGIMES.get(last.regime, name)}.", ""]
    alarms = [record.step for record in records if record.metrics.get("warning/level")]
    alarm = f"raised first at step {alarms[0]}" if alarms else "never raised"
    lines += [f"The early warning was {alarm}.", ""]
    lines += [
        f"| {scope.replace('_', ' ')} | step {first.step} | step {last.step} |",
        "|---|---|---|",
    ]
    for label, name in MEASURES:
        path = f"collapse/{scope}/{name}"
        if path in first.metrics and path in last.metrics:
            lines.append(f"| {label} | {first.metrics[path]:.3f} | {last.metrics[path]:.3f} |")
    return "\n".join(lines)


def _measured(records: Sequence[StepRecord], metric: str) -> list[StepRecord]:
    return [record for record in records if metric in record.metrics]
