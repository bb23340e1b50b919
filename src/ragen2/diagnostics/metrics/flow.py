"""Information flow beyond the reasoning: input -> reasoning -> action, link by link.

With A an action, Z its reasoning, X its prompt, and a prime for another prompt's:

    reasoning_action_swap   = mean of log p(A|X,Z) - log p(A|X,Z')    does the action follow this reasoning?
    reasoning_action_blank  = mean of log p(A|X,Z) - log p(A|X)       does it need reasoning at all?
    input_action_direct     = mean of log p(A|X,Z) - log p(A|X',Z)    does it follow the input beside it?
    input_action            = I(X;A)                                  does it depend on the input at all?

Since A is drawn from p(.|X,Z), each of the first three is a mean of Kullback-Leibler divergences: 0 exactly
where the exchange does not change what the policy does, above 0 where it does.

Shape letters: N traces, S exchanges per trace, B draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Generic, Literal, TypeVar

import numpy as np
from pydantic import Field

from ragen2.diagnostics.base import Diagnostic, Evidence, Measured, Metrics
from ragen2.diagnostics.judging.regime import SIGNIFICANT
from ragen2.diagnostics.metrics.surface import action_information, actions_by_prompt, is_comparable
from ragen2.diagnostics.statistics.resampling import permutation_p_value, stratified_spread
from ragen2.scoring.exchanges import ActionTrace, FlowScores, action_traces, owners, score_flow
from ragen2.seeding import stream
from ragen2.types import FloatArray, IntArray

FEWEST_TRACES = 8
"""Replies a turn position needs to be measured; with fewer no sign test could reach 0.01."""
EXCHANGES = ("reasoning_action_swap", "reasoning_action_blank", "input_action_direct")


AnyTrace = TypeVar("AnyTrace")


@dataclass(frozen=True, slots=True, eq=False)
class TurnScope(Generic[AnyTrace]):
    """The traces of one turn position, or in ``problem`` why they cannot be compared."""

    name: str
    turn: int
    traces: list[AnyTrace]
    problem: str


class Flow(Diagnostic):
    """Do actions follow the reasoning, and do they depend on the prompt?"""

    kind: Literal["flow"] = "flow"
    needs_scorer: ClassVar[bool] = True

    every: int = Field(10, ge=1, description="measured at steps that are multiples of this")
    scopes: tuple[Literal["first_turn", "turns"], ...] = Field(
        ("first_turn",),
        min_length=1,
        description="whose actions: `first_turn`, `turns` (each position from the second on)",
    )
    max_traces: int = Field(
        32, ge=FEWEST_TRACES, description="replies scored at most, in each scope"
    )
    swaps: int = Field(
        2, ge=1, le=10_000, description="other prompts whose reasoning a reply is tried with"
    )
    resamples: int = Field(
        200, ge=100, le=1_000_000, description="bootstrap, sign-flip and permutation draws"
    )

    def measure(self, evidence: Evidence) -> Measured:
        """The links of each scope, under ``flow/<scope>/``."""
        if evidence.scorer is None:
            raise ValueError("the flow diagnostic was called without a scorer")
        whole = Measured()
        for scope in self._scopes(evidence):
            found, absent = self._input_action(scope, evidence), {}
            if scope.problem:
                absent = dict.fromkeys(EXCHANGES, scope.problem)
            else:
                found |= self._exchanges(scope, evidence)
            if not is_comparable(actions_by_prompt(evidence.groups, scope.turn)):
                absent["input_action"] = "fewer than two prompts had two actions each"
            whole |= {f"flow/{scope.name}/{name}": value for name, value in found.items()}
            whole.absent |= {f"flow/{scope.name}/{name}": why for name, why in absent.items()}
        return whole

    def _scopes(self, evidence: Evidence) -> Iterator[TurnScope[ActionTrace]]:
        """The replies of each scope; the same evidence always gives the same ones."""
        trajectories = [one for group in evidence.groups for one in group.trajectories]
        longest = max((len(one.turns) for one in trajectories), default=0)
        if "turns" in self.scopes and longest < 2:
            yield TurnScope("turns", 2, [], "no trajectory has a second turn")
        last = longest if "turns" in self.scopes else 1
        for turn in range(1 if "first_turn" in self.scopes else 2, last + 1):
            rng = stream(evidence.seed, "flow traces", evidence.step, turn)
            traces = action_traces(evidence.groups, turn, self.max_traces, rng)
            name = "first_turn" if turn == 1 else f"turn_{turn}"
            yield TurnScope(name, turn, traces, _problem(traces))

    def _input_action(self, scope: TurnScope[ActionTrace], evidence: Evidence) -> Metrics:
        actions = actions_by_prompt(evidence.groups, scope.turn)
        found = action_information(actions, resamples=self.resamples, seed=evidence.step)
        if found is None:
            return {}
        return {
            "input_action": found.adjusted,
            "input_action_raw": found.raw,
            "input_action_bound": found.bound,
            "input_action_p_value": found.p_value,
            "action_entropy": found.entropy,
        }

    def _exchanges(self, scope: TurnScope[ActionTrace], evidence: Evidence) -> Metrics:
        assert evidence.scorer is not None  # noqa: S101 - measure checked it
        rng = stream(evidence.seed, "flow", evidence.step, scope.turn)
        scores = score_flow(
            scope.traces, evidence.scorer, evidence.temperature, swaps=self.swaps, rng=rng
        )
        return {} if scores is None else measure_flow(scores, self.resamples, rng)


def measure_flow(scores: FlowScores, resamples: int, rng: np.random.Generator) -> Metrics:
    """Each exchange's effect per token and (``_seq``) per action, with 95% interval and p-value.

    The interval is for these prompts: replies are resampled within them. The p-value flips the signs
    of the replies' effects: given prompts and exchanges, their actions are independent draws.
    """
    effects = {
        "reasoning_action_swap": (scores.own_N[:, None] - scores.swapped_NS).mean(1),
        "reasoning_action_blank": scores.own_N - scores.blank_N,
        "input_action_direct": (scores.own_N[:, None] - scores.redirected_NS).mean(1),
    }
    metrics: Metrics = {}
    for name, effect_N in effects.items():
        for key, value_N in ((name, effect_N / scores.length_N), (f"{name}_seq", effect_N)):
            low, high = mean_interval(value_N, scores.owner_N, resamples, rng)
            metrics |= {key: float(value_N.mean()), f"{key}_low": low, f"{key}_high": high}
        metrics[f"{name}_p_value"] = sign_flip_p_value(effect_N, resamples, rng)
    metrics["swap_differs_ratio"] = float(scores.differs_NS.mean())
    metrics["num_traces"] = float(len(scores.owner_N))
    metrics["num_prompts"] = float(len(np.unique(scores.owner_N)))
    return metrics


def mean_interval(
    value_N: FloatArray, owner_N: IntArray, draws: int, rng: np.random.Generator
) -> tuple[float, float]:
    """95% interval of the mean, values resampled within their owner.

    Where every owner has one value only, as in later turns, all are taken as one sample.
    """
    spread = stratified_spread(value_N[:, None], owner_N, draws, rng)
    if spread is None:
        spread = stratified_spread(value_N[:, None], np.zeros_like(owner_N), draws, rng)
    assert spread is not None  # noqa: S101 - a scope has several replies
    mean, error = float(value_N.mean()), float(spread.error_M[0])
    return mean - error * float(spread.low_M[0]), mean + error * float(spread.high_M[0])


def sign_flip_p_value(value_N: FloatArray, draws: int, rng: np.random.Generator) -> float:
    """Chance of a mean this large if each value were as likely to have the other sign."""
    sign_BN = rng.choice([-1.0, 1.0], size=(draws, len(value_N)))
    null_B = (sign_BN @ value_N) / len(value_N)
    return permutation_p_value(float(value_N.mean()), null_B)


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


def _problem(traces: list[ActionTrace]) -> str:
    if len(traces) < FEWEST_TRACES:
        return f"{len(traces)} replies with reasoning and action, {FEWEST_TRACES} are needed"
    prompts = len(np.unique(owners(traces)))
    if prompts < 2:
        return f"{prompts} distinct prompt among {len(traces)} replies, 2 are needed"
    return ""


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
