"""The curves that the page draws first, in reading order, and unit and meaning of every metric."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from ragen2.diagnostics.metrics.collapse import FIRST_TURN, PROBE, measured_scopes
from ragen2.reports.data.numbers import spread_over
from ragen2.reports.load import Run

COLOURS = 6
"""Lines that a chart can tell apart."""
SCOPE_NAMES = {"trajectory": "all turns", PROBE: "probe set"}
VISION = re.compile(r"vision/(?:first_turn|turn_\d+)/grounding")
METRICS_FILE = "metrics.json"
METRIC_ROW = re.compile(r"^\| `(\w+/[\w/@]+)`(?: ±)? \| ([^|]*) \| [^|]* \| (.*) \|$", re.MULTILINE)
SCOPE_PATTERN = "(?:first_turn|turn_[0-9]+|trajectory|probe)"
PLACEHOLDERS = {
    "SCOPE": SCOPE_PATTERN,
    "first_turn": SCOPE_PATTERN,
    "BUCKET": "(?:bucket_[0-9]+|all)",
}
"""What the docs write for a part of a name that varies."""
ENV_METRIC = re.compile(r"^reward/\w+/(\w+)$")
"""The metrics of one environment among several are named like those of all."""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A metric and its name in the legend."""

    metric: str
    name: str


@dataclass(frozen=True, slots=True)
class PageChart:
    """Curves over steps that share an axis."""

    id: str
    title: str
    series: list[ChartLine]
    guides: list[ChartLine] = field(default_factory=list)
    """Dashed lines to read the others against."""
    unit: str = ""
    floor: float | None = None
    ceiling: float | None = None
    about: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The chart as the page takes it."""
        return asdict(self)


def charts_of(run: Run) -> list[PageChart]:
    """Charts with at least one measured series."""
    found = [
        *_main(run),
        *_scopes(run.recorded),
        *_vision(run.recorded),
        *_filter_and_reward(),
        *_text(run),
        *_update(),
    ]
    return [chart for chart in found if any(line.metric in run.recorded for line in chart.series)]


def scope_label(scope: str) -> str:
    """``turn_3`` as ``turn 3``, ``trajectory`` as ``all turns``, ``probe`` as ``probe set``."""
    return SCOPE_NAMES.get(scope, scope.replace("_", " "))


def token_unit(run: Run) -> str:
    """What entropies are per; an audit without a model counts words."""
    is_text = run.audit is not None and run.audit.likelihood == "text"
    return "nats per word" if is_text else "nats per token"


def read_page(page: str) -> list[list[str]]:
    """[name, unit, meaning] of every metric in the text of docs/metrics.md."""
    return [
        [name, "" if unit == "none" else unit, _plain_text(about)]
        for name, unit, about in METRIC_ROW.findall(page)
    ]


def describe(name: str) -> tuple[str, str]:
    """Unit and meaning of a metric; both empty for one that the docs do not know, as of a plug-in."""
    for pattern, unit, about in _known_metrics():
        if pattern.fullmatch(name):
            return unit, about
    found = ENV_METRIC.match(name)
    return describe(f"reward/{found[1]}") if found else ("", "")


def _main(run: Run) -> list[PageChart]:
    stem, unit = f"collapse/{run.main_scope}/", token_unit(run)
    success = [ChartLine("rollout/success", "training"), ChartLine("eval/success", "held out")]
    return [
        PageChart("success", "Success", success, unit="share", floor=0.0, ceiling=1.0),
        PageChart(
            "grounded",
            "Grounded share",
            [ChartLine(f"{stem}grounded_share", "grounded")],
            [ChartLine(f"{stem}grounded_share_detectable", "smallest that would show")],
            "share of traces",
            0.0,
            1.0,
            "How many traces carry information about their prompt.",
        ),
        PageChart(
            "retrieval",
            "Retrieval accuracy",
            [ChartLine(f"{stem}retrieval_accuracy", "retrieval")],
            [ChartLine(f"{stem}retrieval_chance", "chance")],
            "share of traces",
            0.0,
            1.0,
            "How often a trace fits its own prompt better than all others.",
        ),
        PageChart(
            "information",
            "Mutual information I(X;Z)",
            [ChartLine(f"{stem}mi_estimate", "I(X;Z)")],
            [ChartLine(f"{stem}mi_bound", "log P")],
            unit,
            0.0,
            about="What reasoning tells about its prompt; near 0 is collapse, log P the most there can be.",
        ),
        PageChart(
            "entropy",
            "Entropy of reasoning",
            [
                ChartLine(f"{stem}conditional_entropy", "H(Z|X), for one prompt"),
                ChartLine(f"{stem}reasoning_entropy", "H(Z), over all prompts"),
            ],
            unit=unit,
            floor=0.0,
            about="Variety alone: it may rise while dependence on the prompt is lost.",
        ),
        PageChart(
            "warning",
            "Early warning",
            [ChartLine("warning/statistic", "what has been lost")],
            unit="thresholds",
            floor=0.0,
            about="At 1 the alarm is raised.",
        ),
    ]


def _scopes(recorded: frozenset[str]) -> list[PageChart]:
    """Retrieval and information by turn, over whole trajectories, and of the probe set."""
    scopes = measured_scopes(recorded)
    turns = [scope for scope in scopes if scope.startswith("turn_")]
    if turns and FIRST_TURN in scopes:
        turns = [FIRST_TURN, *turns]
    groups = [("turns", "by turn", spread_over(turns, COLOURS))] if turns else []
    groups += [(one, SCOPE_NAMES[one], [one]) for one in scopes if one in SCOPE_NAMES]
    found = []
    for key, words, members in groups:
        for metric, guide, title, name, unit, ceiling in (
            ("retrieval_accuracy", "retrieval_chance", "Retrieval", "chance", "share", 1.0),
            ("mi_estimate", "mi_bound", "I(X;Z)", "log P", "nats per token", None),
        ):
            lines = [ChartLine(f"collapse/{one}/{metric}", _turn_label(one)) for one in members]
            guides = [ChartLine(f"collapse/{one}/{guide}", name) for one in members[:1]]
            found.append(
                PageChart(f"{metric}_{key}", f"{title}, {words}", lines, guides, unit, 0.0, ceiling)
            )
    return found


def _vision(recorded: frozenset[str]) -> list[PageChart]:
    """What reasoning takes from images; nothing where none were shown."""
    turns = [name.split("/")[1] for name in recorded if VISION.fullmatch(name)]
    ordered = sorted(
        turns, key=lambda turn: int(turn.removeprefix("turn_")) if turn != FIRST_TURN else 1
    )
    stem = f"vision/{FIRST_TURN}/"
    parts = (("whole", "prompt"), ("image", "image alone"), ("text", "words alone"))
    return [
        PageChart(
            "grounding",
            "Grounding in the image",
            [
                ChartLine(f"vision/{turn}/grounding", _turn_label(turn))
                for turn in spread_over(ordered, COLOURS)
            ],
            unit="share",
            floor=0.0,
            ceiling=1.0,
            about="How often a trace is likelier with its own image than with another; 1/2 is blind.",
        ),
        PageChart(
            "image_information",
            "What the image tells, and the words",
            [ChartLine(f"{stem}{part}_mi", words) for part, words in parts],
            unit="nats per token",
            floor=0.0,
            about="I(X;Z) when the whole prompt is exchanged, only its image, only its words.",
        ),
    ]


def _turn_label(scope: str) -> str:
    return "turn 1" if scope == FIRST_TURN else scope_label(scope)


def _filter_and_reward() -> list[PageChart]:
    triage = ("live", "too_easy", "too_hard", "reward_blind", "unclear")
    return [
        PageChart(
            "reward",
            "Reward",
            [ChartLine("reward/mean", "training"), ChartLine("eval/reward", "held out")],
            unit="return per episode",
        ),
        PageChart(
            "variance",
            "Reward variance within prompts",
            [ChartLine("reward/variance", "variance")],
            unit="squared return",
            floor=0.0,
        ),
        PageChart(
            "curriculum",
            "Level of the curriculum",
            [ChartLine("curriculum/level", "level of training tasks")],
            floor=0.0,
            about="0 has the easiest tasks. Held-out tasks are always as the run's settings say.",
        ),
        PageChart(
            "unevenness",
            "Std(RV) / Mean(RV)",
            [ChartLine("reward/variance_std_over_mean", "Std/Mean of reward variance")],
            floor=0.0,
            about="How uneven reward variance is over prompts; near 0 a filter has nothing to choose.",
        ),
        PageChart(
            "kept",
            "Kept by the filter",
            [
                ChartLine("filter/kept_ratio", "prompts"),
                ChartLine("filter/kept_signal", "of their signal"),
                ChartLine("reward/dead_ratio", "prompts without variance"),
            ],
            unit="share",
            floor=0.0,
            ceiling=1.0,
        ),
        PageChart(
            "triage",
            "Why prompts are flat",
            [ChartLine(f"triage/{name}", name.replace("_", " ")) for name in triage],
            unit="share of prompts",
            floor=0.0,
            ceiling=1.0,
        ),
    ]


def _text(run: Run) -> list[PageChart]:
    if run.audit:
        return [
            PageChart(
                "variety",
                "Variety of wording",
                [ChartLine("rollout/distinct_reasoning_ratio", "different traces over all")],
                unit="share",
                floor=0.0,
                ceiling=1.0,
            ),
            PageChart(
                "words",
                "Length of reasoning",
                [ChartLine("rollout/reasoning_words", "words")],
                unit="words",
                floor=0.0,
            ),
        ]
    return [
        PageChart(
            "tokens",
            "Length of replies",
            [
                ChartLine("rollout/reasoning_tokens", "reasoning"),
                ChartLine("rollout/reply_tokens", "whole reply"),
            ],
            unit="tokens per turn",
            floor=0.0,
        ),
        PageChart(
            "format",
            "Replies that can be executed",
            [
                ChartLine("rollout/format_validity", "as written"),
                ChartLine("rollout/parsed_ratio", "parsed"),
                ChartLine("rollout/known_actions_ratio", "actions that exist"),
                ChartLine("rollout/effective_actions_ratio", "actions that change something"),
            ],
            unit="share",
            floor=0.0,
            ceiling=1.0,
        ),
    ]


def _update() -> list[PageChart]:
    return [
        PageChart("gradient", "Gradient norm", [ChartLine("update/grad_norm", "norm")], floor=0.0),
        PageChart(
            "policy_entropy",
            "Policy entropy in the update",
            [ChartLine("update/entropy", "entropy")],
            unit="nats per token",
            floor=0.0,
        ),
        PageChart(
            "kl",
            "KL to the starting model",
            [ChartLine("update/kl", "KL")],
            unit="nats per token",
            floor=0.0,
        ),
        PageChart(
            "snr",
            "SNR of the policy gradient",
            [ChartLine("probe/all/snr", "SNR")],
            floor=0.0,
            about="Pure noise has 1.",
        ),
    ]


def _plain_text(text: str) -> str:
    """Markdown of a table cell as plain text."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return text.replace("`", "").replace("\\|", "|")


@cache
def _known_metrics() -> tuple[tuple[re.Pattern[str], str, str], ...]:
    text = (resources.files(__package__) / METRICS_FILE).read_text(encoding="utf-8")
    return tuple(_metric_patterns(json.loads(text)))


def _metric_patterns(rows: list[list[str]]) -> Iterator[tuple[re.Pattern[str], str, str]]:
    for name, unit, about in rows:
        parts = [PLACEHOLDERS.get(part, re.escape(part)) for part in name.split("/")]
        yield re.compile("/".join(parts)), unit, about
