"""The probe set: the same held-out prompts at every evaluation, so that steps can be compared.

Training prompts change every step, and with them how hard they are to tell apart. A change of
``collapse/probe/`` is a change of the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ragen2.diagnostics import Collapse, Ema, Evidence
from ragen2.diagnostics.collapse import PROBE, ScopeTraces, check_scope
from ragen2.rollout import Task, play
from ragen2.scoring import first_turn_traces
from ragen2.seeding import stream

if TYPE_CHECKING:
    from ragen2.config import RunConfig
    from ragen2.runs.scores import ScopeScores
    from ragen2.trainer.loop import Policy
    from ragen2.types import Group


def measure_probe(
    config: RunConfig,
    policy: Policy,
    *,
    step: int,
    ema: Mapping[str, Ema],
    keep_scores: Callable[[ScopeScores], None] | None = None,
) -> tuple[dict[str, float], dict[str, str]]:
    """Metrics under ``collapse/probe/``, or the reason why there are none; both empty when it is off."""
    if not config.evaluation.probe_prompts:
        return {}, {}
    groups = play_probe_set(config, policy)
    scope = probe_traces(config, groups)
    if scope.problem:
        return {}, {f"collapse/{PROBE}": scope.problem}
    evidence = Evidence(
        step,
        groups,
        policy,
        config.rollout.temperature,
        ema,
        config.seed,
        keep_scores=keep_scores,
    )
    return Collapse().measure_scope(scope, evidence), {}


def play_probe_set(config: RunConfig, policy: Policy) -> list[Group]:
    """One-turn replies to the first held-out tasks, sampled as in training with the same luck each time."""
    env = config.env.model_copy(update={"max_turns": 1})
    tasks = [
        [Task(seed, luck) for luck in range(config.evaluation.probe_traces)]
        for seed in range(config.evaluation.probe_prompts)
    ]
    return play(env, policy, tasks, config.rollout, key=(config.seed, PROBE))


def probe_traces(config: RunConfig, groups: list[Group]) -> ScopeTraces:
    """The reasonings of those replies."""
    return check_scope(PROBE, first_turn_traces(groups, None, stream(config.seed, PROBE)))
