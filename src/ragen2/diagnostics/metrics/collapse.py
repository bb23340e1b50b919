"""The collapse diagnostic: MI proxies, retrieval and entropies of reasoning, scope by scope."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from ragen2.diagnostics.base import Diagnostic, Evidence, Measured
from ragen2.diagnostics.metrics.mutual_information import measure
from ragen2.progress import part
from ragen2.runs.scores import RowSource, ScopeScores
from ragen2.scoring import Trace, cross_score, near_duplicates, prompt_words
from ragen2.scoring.traces import (
    first_of_prompts,
    of_first_prompts,
    trajectory_traces,
    turn_traces,
    until_prompts,
    until_tokens,
)
from ragen2.seeding import stream
from ragen2.types import Group, ScoreMatrix, Trajectory

FIRST_TURN = "first_turn"
PROBE = "probe"
PREFIX = f"collapse/{FIRST_TURN}/"
MEASURED = re.compile(r"collapse/(first_turn|turn_\d+|trajectory|probe)/retrieval_accuracy")
FEWEST_TRACES = 8
"""Traces a turn position needs to be measured; below, its numbers would be noise."""
Scope = Literal["first_turn", "turns", "trajectory"]


@dataclass(frozen=True, slots=True, eq=False)
class ScopeTraces:
    """The traces of one scope, or in ``problem`` why they cannot be compared."""

    name: str
    traces: list[Trace]
    problem: str


class Collapse(Diagnostic):
    """Does reasoning still depend on the prompt?"""

    kind: Literal["collapse"] = "collapse"
    needs_scorer: ClassVar[bool] = True

    scopes: tuple[Scope, ...] = Field(
        ("first_turn",),
        description="whose reasoning: `first_turn`, `turns` (each position from the second on), "
        "`trajectory`",
    )
    max_traces: int = Field(64, ge=2, description="traces cross-scored at most, in each scope")
    max_prompts: int = Field(64, ge=2, description="different prompts at most, in each scope")
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="tokens read at most, in each scope; past it fewer pairs are scored, then "
        "fewer traces; left out, no limit",
    )
    resamples: int = Field(200, ge=100, le=1_000_000, description="bootstrap and permutation draws")
    interval: Literal["batch", "population"] = Field(
        "batch",
        description="what intervals are for: these prompts, or batches of as many others like them",
    )

    @field_validator("scopes")
    @classmethod
    def _some(cls, value: tuple[Scope, ...]) -> tuple[Scope, ...]:
        if not value:
            raise ValueError("must name at least one scope, got none; or leave the diagnostic out")
        return value

    def measure(self, evidence: Evidence) -> Measured:
        """All proxies of each scope, under ``collapse/<scope>/``."""
        if evidence.scorer is None:
            raise ValueError("the collapse diagnostic was called without a scorer")
        found = Measured()
        for scope in self._scopes(evidence):
            found.add(self.measure_scope(scope, evidence))
        return found

    def measure_scope(self, scope: ScopeTraces, evidence: Evidence) -> Measured:
        """All proxies of traces that were already chosen."""
        if scope.problem:
            return Measured(absent={f"collapse/{scope.name}": scope.problem})
        assert evidence.scorer is not None  # noqa: S101 - measure checked it
        with part(f"{len(scope.traces)} traces, {scope.name.replace('_', ' ')}"):
            scores = cross_score(
                scope.traces,
                evidence.scorer,
                evidence.temperature,
                max_tokens=self.max_tokens,
                rng=stream(evidence.seed, "columns", scope.name, evidence.step),
            )
        assert scores is not None  # noqa: S101 - a scope without a problem has two prompts
        found = measure(
            scores.logp_NP,
            scores.length_N,
            scores.owner_N,
            interval=self.interval,
            resamples=self.resamples,
            ema=evidence.ema.get(scope.name),
            seed=evidence.step,
        )
        prompts = first_of_prompts(scope.traces)
        pairs = near_duplicates([prompt_words(one.prompt_ids_T, one.images) for one in prompts])
        found["near_duplicates"] = float(len({column for i, j, _ in pairs for column in (i, j)}))
        return Measured(
            {f"collapse/{scope.name}/{name}": value for name, value in found.items()},
            scores=_with_texts(scope, scores, evidence.groups),
        )

    def _scopes(self, evidence: Evidence) -> Iterator[ScopeTraces]:
        """The traces of each scope; the same evidence always gives the same ones."""
        if "first_turn" in self.scopes:
            yield check_scope(FIRST_TURN, self._turn(evidence, 1))
        if "turns" in self.scopes:
            longest = _longest(evidence)
            if longest < 2:
                yield ScopeTraces("turns", [], "no trajectory has a second turn")
            for k in range(2, longest + 1):
                yield check_scope(f"turn_{k}", self._turn(evidence, k), fewest=FEWEST_TRACES)
        if "trajectory" in self.scopes:
            rng = stream(evidence.seed, "trajectory traces", evidence.step)
            drawn = trajectory_traces(evidence.groups, self.max_traces, rng)
            few = until_prompts(drawn, self.max_prompts)
            yield check_scope("trajectory", until_tokens(few, self.max_tokens))

    def _turn(self, evidence: Evidence, k: int) -> list[Trace]:
        drawn = turn_traces(
            evidence.groups, k, None, stream(evidence.seed, "traces", evidence.step, k)
        )
        few = of_first_prompts(drawn, self.max_prompts)[: self.max_traces]
        return until_tokens(few, self.max_tokens)


def measured_scopes(names: Iterable[str]) -> list[str]:
    """Scopes that metrics of these names are about, the first turn first, turns in order."""
    found = {match[1] for name in names if (match := MEASURED.fullmatch(name))}
    turns = sorted((s for s in found if s.startswith("turn_")), key=lambda s: int(s[5:]))
    return [scope for scope in (FIRST_TURN, *turns, "trajectory", PROBE) if scope in found]


def judged_scope(diagnostics: Iterable[Diagnostic]) -> str:
    """The scope whose regime is a run's: the first turn, or whole trajectories if that is not asked for.

    One scope for the whole run: regimes of different scopes in turn would look like changes.
    """
    asked = {scope for one in diagnostics if isinstance(one, Collapse) for scope in one.scopes}
    return FIRST_TURN if FIRST_TURN in asked or "trajectory" not in asked else "trajectory"


def main_scope(names: Iterable[str]) -> str:
    """The scope to show first: the one that a run is judged by, or the probe set without any."""
    scopes = measured_scopes(names)
    preferred = (FIRST_TURN, "trajectory", PROBE)
    return next((scope for scope in preferred if scope in scopes), FIRST_TURN)


def check_scope(name: str, traces: list[Trace], *, fewest: int = 2) -> ScopeTraces:
    """The scope, with the reason if it cannot be measured: too few traces, or all of one prompt."""
    prompts = len(first_of_prompts(traces))
    problem = ""
    if len(traces) < fewest:
        problem = f"{len(traces)} reasoning traces to score, {fewest} are needed"
    elif prompts < 2:
        problem = f"{prompts} distinct prompt among {len(traces)} reasoning traces, 2 are needed"
    return ScopeTraces(name, traces, problem)


def row_sources(
    traces: Sequence[Trace], groups: Sequence[Group], *, is_saved: bool = True
) -> list[RowSource]:
    """One source per trace, for traces drawn from ``groups``.

    ``is_saved``: whether these groups are what the step's rollout file holds, so that its lines count.
    """
    firsts = [0, *accumulate(len(group.trajectories) for group in groups)]
    found = []
    for trace in traces:
        place = trace.place
        if place is None:
            raise ValueError("a trace without a place has no text; take traces of groups")
        trajectory = groups[place.group].trajectories[place.member]
        turn = trajectory.turns[place.turn - 1]
        task = f"seed {trajectory.prompt.seed}"
        play = f"{task}, play {trajectory.luck}"
        later = f"{play}, turn {place.turn}"
        found.append(
            RowSource(
                text=turn.reply.reasoning,
                label=play if place.turn == 1 else later,
                prompt=_shown(trajectory, place.turn),
                prompt_label=task if place.turn == 1 else later,
                action=" || ".join(turn.reply.actions),
                turn=place.turn,
                line=firsts[place.group] + place.member if is_saved else None,
                image=trace.images[-1].digest if trace.images else "",
            )
        )
    return found


def _shown(trajectory: Trajectory, turn: int) -> str:
    """What the environment showed last before ``turn`` (from 1)."""
    if turn > 1:
        return trajectory.turns[turn - 2].observation
    messages = trajectory.prompt.messages
    return messages[-1].content if messages else ""


def _with_texts(
    scope: ScopeTraces, scores: ScoreMatrix, groups: Sequence[Group]
) -> list[ScopeScores]:
    """The matrix as it is recorded; none for traces that were not drawn from groups, which have no text."""
    if any(trace.place is None for trace in scope.traces):
        return []
    # Replies to the probe set are played aside; they are in no rollout file.
    texts = row_sources(scope.traces, groups, is_saved=scope.name != PROBE)
    images = [trace.images[-1] for trace in scope.traces if trace.images]
    return [ScopeScores.of(scope.name, scores, texts, images)]


def _longest(evidence: Evidence) -> int:
    """Turns of the longest trajectory."""
    trajectories = [one for group in evidence.groups for one in group.trajectories]
    return max((len(one.turns) for one in trajectories), default=0)
