"""The chain input -> reasoning -> action in words: which links hold, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ragen2.diagnostics.judging.regime import SIGNIFICANT


class Link(StrEnum):
    """What the evidence says about one link."""

    HOLDS = "holds"
    """Above 0 and beyond its null."""
    NOT_SEEN = "not seen"
    """Not beyond its null: broken, or too weak for this many traces."""
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Chain:
    """The three links of a batch and the sentence about them."""

    input_reasoning: Link
    reasoning_action: Link
    input_action: Link
    text: str


def read_chain(metrics: Mapping[str, float], scope: str = "first_turn") -> Chain:
    """Read the links off the metrics of one step, with their prefixes.

    Input -> reasoning is retrieval above chance, as in the regimes; reasoning -> action is the effect of
    swapping in another prompt's reasoning; input -> action is I(X;A).
    """
    collapse, flow = f"collapse/{scope}/", f"flow/{scope}/"
    swap, information = f"{flow}reasoning_action_swap", f"{flow}input_action"
    first = _link(metrics, f"{collapse}retrieval_above_chance", f"{collapse}retrieval_p_value")
    second = _link(metrics, f"{swap}_seq", f"{swap}_p_value")
    whole = _link(metrics, information, f"{information}_p_value")
    details = [
        f"input -> reasoning {first.value}"
        + _numbers(metrics, "retrieval above chance", f"{collapse}retrieval_above_chance"),
        f"reasoning -> action {second.value}"
        + _numbers(metrics, "nats lost with another's reasoning", f"{swap}_seq"),
        f"input -> action {whole.value}" + _numbers(metrics, "I(X;A) in nats", information),
    ]
    text = f"{_conclusion(first, second, whole)}: {'; '.join(details)}"
    return Chain(first, second, whole, text)


def _link(metrics: Mapping[str, float], value: str, p_value: str) -> Link:
    if value not in metrics or p_value not in metrics:
        return Link.NOT_MEASURED
    holds = metrics[value] > 0.0 and metrics[p_value] <= SIGNIFICANT
    return Link.HOLDS if holds else Link.NOT_SEEN


def _numbers(metrics: Mapping[str, float], label: str, name: str) -> str:
    return f" ({label}: {metrics[name]:.3f})" if name in metrics else ""


def _conclusion(first: Link, second: Link, whole: Link) -> str:
    if Link.NOT_MEASURED in {first, second, whole}:
        return "The chain was not measured whole"
    if whole is Link.NOT_SEEN:
        return "No dependence of actions on the input is seen"
    sentences = {
        (Link.HOLDS, Link.HOLDS): "The chain is whole",
        (Link.HOLDS, Link.NOT_SEEN): "Reasoning is about the input, but actions do not follow it",
        (Link.NOT_SEEN, Link.HOLDS): (
            "Actions follow the reasoning, but get what they know of the input past it"
        ),
        (Link.NOT_SEEN, Link.NOT_SEEN): "Actions depend on the input, past the reasoning",
    }
    return sentences[first, second]
