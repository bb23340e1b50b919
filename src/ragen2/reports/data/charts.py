"""The curves that the page draws first, in reading order, with their guides and units."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from ragen2.diagnostics.metrics.collapse import FIRST_TURN, PROBE, measured_scopes
from ragen2.reports.data.numbers import spread_over
from ragen2.reports.load import Run

COLOURS = 6
"""Lines that a chart can tell apart."""
SCOPE_NAMES = {"trajectory": "all turns", PROBE: "probe set"}


VISION = re.compile(r"vision/(?:first_turn|turn_\d+)/grounding")


@dataclass(frozen=True, slots=True)
class Line:
    """A metric and its name in the legend."""

    metric: str
    name: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over steps that share an axis."""

    id: str
    title: str
    series: list[Line]
    guides: list[Line] = field(default_factory=list)
    """Dashed lines to read the others against."""
    unit: str = ""
    floor: float | None = None
    ceiling: float | None = None
    about: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The chart as the page takes it."""
        return asdict(self)


def charts_of(run: Run) -> list[Chart]:
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
    return "nats a word" if is_text else "nats a token"


def _main(run: Run) -> list[Chart]:
    stem, unit = f"collapse/{run.main_scope}/", token_unit(run)
    success = [Line("rollout/success", "training"), Line("eval/success", "held out")]
    return [
        Chart("success", "Success", success, unit="share", floor=0.0, ceiling=1.0),
        Chart(
            "retrieval",
            "Retrieval accuracy",
            [Line(f"{stem}retrieval_accuracy", "retrieval")],
            [Line(f"{stem}retrieval_chance", "chance")],
            "share of reasonings",
            0.0,
            1.0,
            "How often a reasoning fits its own prompt better than all others.",
        ),
        Chart(
            "information",
            "Mutual information I(X;Z)",
            [Line(f"{stem}mi_estimate", "I(X;Z)")],
            [Line(f"{stem}mi_bound", "log P")],
            unit,
            0.0,
            about="What reasoning tells about its prompt; near 0 is collapse, log P the most there can be.",
        ),
        Chart(
            "entropy",
            "Entropy of reasoning",
            [
                Line(f"{stem}conditional_entropy", "H(Z|X), for one prompt"),
                Line(f"{stem}reasoning_entropy", "H(Z), over all prompts"),
            ],
            unit=unit,
            floor=0.0,
            about="Variety alone: it may rise while dependence on the prompt is lost.",
        ),
        Chart(
            "warning",
            "Early warning",
            [Line("warning/statistic", "what has been lost")],
            unit="thresholds",
            floor=0.0,
            about="At 1 the alarm is raised.",
        ),
    ]


def _scopes(recorded: frozenset[str]) -> list[Chart]:
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
            ("mi_estimate", "mi_bound", "I(X;Z)", "log P", "nats a token", None),
        ):
            lines = [Line(f"collapse/{one}/{metric}", _turn_label(one)) for one in members]
            guides = [Line(f"collapse/{one}/{guide}", name) for one in members[:1]]
            found.append(
                Chart(f"{metric}_{key}", f"{title}, {words}", lines, guides, unit, 0.0, ceiling)
            )
    return found


def _vision(recorded: frozenset[str]) -> list[Chart]:
    """What reasoning takes from images; nothing where none were shown."""
    turns = [name.split("/")[1] for name in recorded if VISION.fullmatch(name)]
    ordered = sorted(
        turns, key=lambda turn: int(turn.removeprefix("turn_")) if turn != FIRST_TURN else 1
    )
    stem = f"vision/{FIRST_TURN}/"
    parts = (("whole", "prompt"), ("image", "image alone"), ("text", "words alone"))
    return [
        Chart(
            "grounding",
            "Grounding in the image",
            [
                Line(f"vision/{turn}/grounding", _turn_label(turn))
                for turn in spread_over(ordered, COLOURS)
            ],
            unit="share",
            floor=0.0,
            ceiling=1.0,
            about="How often a reasoning is likelier with its own image than with another; 1/2 is blind.",
        ),
        Chart(
            "image_information",
            "What the image tells, and the words",
            [Line(f"{stem}{part}_mi", words) for part, words in parts],
            unit="nats a token",
            floor=0.0,
            about="I(X;Z) when the whole prompt is exchanged, only its image, only its words.",
        ),
    ]


def _turn_label(scope: str) -> str:
    return "turn 1" if scope == FIRST_TURN else scope_label(scope)


def _filter_and_reward() -> list[Chart]:
    triage = ("live", "too_easy", "too_hard", "reward_blind", "unclear")
    return [
        Chart(
            "reward",
            "Reward",
            [Line("reward/mean", "training"), Line("eval/reward", "held out")],
            unit="return an episode",
        ),
        Chart(
            "variance",
            "Reward variance within prompts",
            [Line("reward/variance", "variance")],
            unit="squared return",
            floor=0.0,
        ),
        Chart(
            "unevenness",
            "Std(RV) / Mean(RV)",
            [Line("reward/variance_std_over_mean", "Std/Mean of reward variance")],
            floor=0.0,
            about="How uneven reward variance is over prompts; near 0 a filter has nothing to choose.",
        ),
        Chart(
            "kept",
            "Kept by the filter",
            [
                Line("filter/kept_ratio", "prompts"),
                Line("filter/kept_signal", "of their signal"),
                Line("reward/dead_ratio", "prompts without variance"),
            ],
            unit="share",
            floor=0.0,
            ceiling=1.0,
        ),
        Chart(
            "triage",
            "Why prompts are flat",
            [Line(f"triage/{name}", name.replace("_", " ")) for name in triage],
            unit="share of prompts",
            floor=0.0,
            ceiling=1.0,
        ),
    ]


def _text(run: Run) -> list[Chart]:
    if run.audit:
        return [
            Chart(
                "variety",
                "Variety of wording",
                [Line("rollout/distinct_reasoning_ratio", "different reasonings over all")],
                unit="share",
                floor=0.0,
                ceiling=1.0,
            ),
            Chart(
                "words",
                "Length of reasoning",
                [Line("rollout/reasoning_words", "words")],
                unit="words",
                floor=0.0,
            ),
        ]
    return [
        Chart(
            "tokens",
            "Length of replies",
            [
                Line("rollout/reasoning_tokens", "reasoning"),
                Line("rollout/reply_tokens", "whole reply"),
            ],
            unit="tokens a turn",
            floor=0.0,
        ),
        Chart(
            "format",
            "Format validity",
            [Line("rollout/format_validity", "well-formed replies")],
            unit="share of replies",
            floor=0.0,
            ceiling=1.0,
        ),
    ]


def _update() -> list[Chart]:
    return [
        Chart("gradient", "Gradient norm", [Line("update/grad_norm", "norm")], floor=0.0),
        Chart(
            "policy_entropy",
            "Policy entropy in the update",
            [Line("update/entropy", "entropy")],
            unit="nats a token",
            floor=0.0,
        ),
        Chart(
            "kl",
            "KL to the starting model",
            [Line("update/kl", "KL")],
            unit="nats a token",
            floor=0.0,
        ),
        Chart(
            "snr",
            "SNR of the policy gradient",
            [Line("probe/all/snr", "SNR")],
            floor=0.0,
            about="Pure noise has 1.",
        ),
    ]
