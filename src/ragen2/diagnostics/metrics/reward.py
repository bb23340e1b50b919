"""Reward spread: the signal that the policy gradient has to work with, and what a filter does to it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ragen2.diagnostics.base import (
    Diagnostic,
    Evidence,
    Metrics,
    executed_actions,
    task_reward,
)
from ragen2.spread import spread
from ragen2.types import BoolArray, FloatArray, Group, IntArray, Selection

MEANS = np.linspace(0.01, 0.99, 99)
"""Candidates for the mean chance of a level."""
CONCENTRATIONS = np.geomspace(0.02, 200.0, 60)
"""Candidates for a + b of the beta distribution: small means that a prompt pays it always or never."""
MOST_LEVELS = 32
"""Different returns up to which a larger group is forecast; more are as good as continuous."""


class Reward(Diagnostic):
    """Mean return, within-prompt variance and std, and how unevenly prompts hold it."""

    kind: Literal["reward"] = "reward"

    def measure(self, evidence: Evidence) -> Metrics:
        """All under ``reward/``; with several environments, also under ``reward/<env>/``."""
        found = _prefixed("reward/", [group.rewards_G for group in evidence.groups])
        for name, value in (
            ("invalid_gain", invalid_gain(evidence.groups)),
            ("luck_ratio", luck_ratio(evidence.groups)),
        ):
            found |= {} if value is None else {f"reward/{name}": value}
        envs = sorted({group.prompt.env for group in evidence.groups})
        for env in envs if len(envs) > 1 else ():
            own = [group.rewards_G for group in evidence.groups if group.prompt.env == env]
            found |= _prefixed(f"reward/{metric_name(env)}/", own)
        return found


def reward_spread(rewards_PG: Sequence[FloatArray]) -> Metrics:
    """Within-prompt spread over a batch. Variance is the unbiased estimate (ddof 1).

    ``variance_std_over_mean`` is Std(RV)/Mean(RV), RAGEN-2's predictor of whether filtering helps, and
    ``std_std_over_mean`` the same of standard deviations. Both, and ``effective_prompts``, are left out
    when no prompt has any variance.
    """
    variance_P = np.array([spread(group, "reward_variance", ddof=1) for group in rewards_PG])
    std_P = np.sqrt(variance_P)
    sizes_P = np.array([len(group) for group in rewards_PG])
    metrics = {
        "mean": float(np.concatenate(list(rewards_PG)).mean()),
        "variance": float(variance_P.mean()),
        "std": float(std_P.mean()),
        "dead_ratio": float(np.mean(variance_P == 0.0)),
        "effective_batch": float(sizes_P[variance_P > 0.0].sum()),
    }
    if variance_P.any():
        metrics["variance_std_over_mean"] = std_over_mean(variance_P)
        metrics["std_std_over_mean"] = std_over_mean(std_P)
        metrics["effective_prompts"] = effective_number(variance_P)
    return metrics


def invalid_gain(groups: Sequence[Group]) -> float | None:
    """Mean return of rollouts whose first reply is invalid less that of the others, within prompts.

    First replies answer the same prompt, so nothing but the reply differs; later ones come more often in
    longer episodes. None where no prompt has both kinds.
    """
    gains = []
    for group in groups:
        invalid_G = np.array(
            [bool(one.turns[0].problem) for one in group.trajectories if one.turns]
        )
        returns_G = np.array([one.reward for one in group.trajectories if one.turns])
        if invalid_G.any() and not invalid_G.all():
            gains.append(float(returns_G[invalid_G].mean() - returns_G[~invalid_G].mean()))
    return float(np.mean(gains)) if gains else None


def luck_ratio(groups: Sequence[Group]) -> float | None:
    """Part of the reward variance within prompts that rollouts of the very same actions have.

    None where no two rollouts of a prompt did the same, or where nothing varies. Actions that answer to what
    luck showed are themselves lucky, so over several turns this is at least luck's part, seldom more.
    """
    lucky = freedom = total = 0.0
    for group in groups:
        rewards_G = np.array([task_reward(one) for one in group.trajectories])
        done: dict[tuple[str, ...], list[float]] = {}
        for one, reward in zip(group.trajectories, rewards_G.tolist(), strict=True):
            done.setdefault(executed_actions(one), []).append(reward)
        repeats = len(rewards_G) - len(done)
        lucky += sum(float(np.var(rewards)) * len(rewards) for rewards in done.values())
        freedom += repeats
        total += repeats * spread(rewards_G, "reward_variance", ddof=1)
    if not freedom or total <= 0.0:
        return None
    return min(1.0, lucky / total)


def std_over_mean(values_P: FloatArray) -> float:
    """Spread of values over their mean (population form); 0 when all are equal."""
    return float(values_P.std() / values_P.mean())


def effective_number(weights_P: FloatArray) -> float:
    """Kish's effective sample size (1965): (sum w)^2 / sum w^2 = P / (1 + (std/mean)^2)."""
    scaled = weights_P / weights_P.max()  # squares of tiny weights would vanish
    return float(scaled.sum() ** 2 / (scaled**2).sum())


def metric_name(env: str) -> str:
    """An environment's kind as part of a metric's name: ``FrozenLake`` is ``frozen_lake``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", env).lower()
    name = re.sub(r"[^a-z0-9]+", "_", words).strip("_")
    return name if name[:1].isalpha() else f"env_{name}"


def _prefixed(prefix: str, rewards_PG: Sequence[FloatArray]) -> Metrics:
    return {f"{prefix}{name}": value for name, value in reward_spread(rewards_PG).items()}


@dataclass(frozen=True, slots=True)
class NoiseSplit:
    """Reward variance in two parts."""

    policy: float
    """Variance of members' expected returns: what choosing other actions changes."""
    environment: float
    """Mean variance of a return when its actions stay the same: luck."""

    @property
    def total(self) -> float:
        """What the variance of returns, each played once, estimates."""
        return self.policy + self.environment

    @property
    def environment_ratio(self) -> float | None:
        """Luck's part of the whole, in [0, 1]; None where nothing varies."""
        if self.total <= 0.0:
            return 1.0 if self.environment > 0.0 else None
        return min(1.0, self.environment / self.total)


def noise_split(returns_GR: FloatArray) -> NoiseSplit:
    """Split one prompt's variance: ``returns_GR[g, r]`` is replay r of member g's actions."""
    returns_GR = np.asarray(returns_GR, dtype=np.float64)
    if returns_GR.ndim != 2 or min(returns_GR.shape) < 2:
        raise ValueError(
            f"a split needs at least 2 members x 2 replays, got shape {returns_GR.shape}"
        )
    replays = returns_GR.shape[1]
    environment = float(returns_GR.var(axis=1, ddof=1).mean())
    # One-way analysis of variance: means over R replays still carry 1/R of the luck, which is taken off.
    between = float(returns_GR.mean(axis=1).var(ddof=1))
    return NoiseSplit(policy=between - environment / replays, environment=environment)


def mean_split(splits: Sequence[NoiseSplit]) -> NoiseSplit:
    """The batch's split: each part averaged over prompts, so it stays unbiased."""
    if not splits:
        raise ValueError("a mean split needs at least one prompt")
    return NoiseSplit(
        policy=float(np.mean([one.policy for one in splits])),
        environment=float(np.mean([one.environment for one in splits])),
    )


@dataclass(frozen=True, slots=True)
class DeadForecast:
    """The share of prompts expected to be dead at one group size."""

    group_size: int
    dead_ratio: float
    is_extrapolated: bool
    """Beyond the size that was played: rests on the beta model."""


def forecast_dead(rewards_PG: Sequence[FloatArray], sizes: Sequence[int]) -> list[DeadForecast]:
    """Dead share at each of ``sizes``; a size that cannot be forecast is left out."""
    played = min(len(rewards_G) for rewards_G in rewards_PG)
    levels = np.unique(np.concatenate(list(rewards_PG)))
    tries_P = np.array([len(rewards_G) for rewards_G in rewards_PG])
    found = []
    for size in sizes:
        if size <= played:
            dead = float(np.mean([subset_dead(rewards_G, size) for rewards_G in rewards_PG]))
        elif len(levels) <= MOST_LEVELS:
            counts = [np.array([(one == level).sum() for one in rewards_PG]) for level in levels]
            dead = sum(all_alike(hits_P, tries_P, size) for hits_P in counts)
        else:
            continue
        found.append(DeadForecast(size, min(1.0, dead), is_extrapolated=size > played))
    return found


def subset_dead(rewards_G: FloatArray, size: int) -> float:
    """Chance that ``size`` members drawn without replacement have equal returns."""
    if not 1 <= size <= len(rewards_G):
        raise ValueError(f"a subset of {size} cannot be drawn from {len(rewards_G)} members")
    _, counts = np.unique(rewards_G, return_counts=True)
    ways = sum(math.comb(int(count), size) for count in counts)
    return ways / math.comb(len(rewards_G), size)


def all_alike(hits_P: IntArray, tries_P: IntArray, size: int) -> float:
    """E[p^size] over prompts like these, where a prompt's p gave ``hits`` of ``tries``.

    p comes from a beta distribution. Its parameters are averaged by their likelihood under a flat prior on
    the mean and on the logarithm of the concentration, so that few prompts do not pin them to an extreme.
    """
    mean, concentration = (grid.ravel() for grid in np.meshgrid(MEANS, CONCENTRATIONS))
    a, b = mean * concentration, (1.0 - mean) * concentration
    log_likelihood = np.zeros_like(a)
    alike = Counter(zip(hits_P.tolist(), tries_P.tolist(), strict=True))
    for (hits, tries), count in alike.items():
        own = _log_rising(a, hits) + _log_rising(b, tries - hits) - _log_rising(a + b, tries)
        log_likelihood += count * own
    weight = np.exp(log_likelihood - log_likelihood.max())
    chance = np.exp(_log_rising(a, size) - _log_rising(a + b, size))
    return float((weight * chance).sum() / weight.sum())


def _log_rising(start: FloatArray, count: int) -> FloatArray:
    """Sum of log(start), log(start + 1), ... (``count`` of them): a ratio of gamma functions."""
    steps = np.arange(count, dtype=np.float64)
    result: FloatArray = np.log(start[:, None] + steps[None, :]).sum(axis=1)
    return result


def filter_metrics(selection: Selection, groups: Sequence[Group]) -> dict[str, float]:
    """Kept share, in all and by difficulty, and how hard the kept prompts are against the others.

    Difficulty is one minus the group's success rate. ``difficulty_gap`` above 0: the kept prompts are
    harder than the batch. Shares of a kind of prompt that the batch does not hold are left out.
    """
    solved_P = np.array([np.mean([one.solved for one in g.trajectories]) for g in groups])
    metrics = {
        "kept": float(selection.kept_P.sum()),
        "kept_ratio": selection.kept_ratio,
        "difficulty": float(1.0 - solved_P.mean()),
    }
    if selection.kept_P.any():
        kept = float(1.0 - solved_P[selection.kept_P].mean())
        metrics["difficulty_gap"] = kept - metrics["difficulty"]
    # Signals such as the mean reward can be negative; shares of them mean nothing.
    if selection.scores_P.sum() > 0.0 and selection.scores_P.min() >= 0.0:
        metrics["kept_signal"] = float(
            selection.scores_P[selection.kept_P].sum() / selection.scores_P.sum()
        )
    for name, rows_P in (
        ("never_solved", solved_P == 0.0),
        ("sometimes_solved", (solved_P > 0.0) & (solved_P < 1.0)),
        ("always_solved", solved_P == 1.0),
    ):
        metrics |= _share(name, rows_P, selection.kept_P)
    metrics |= _inflation(groups, solved_P)
    return {f"filter/{name}": value for name, value in metrics.items()}


def coverage(kept: Sequence[Sequence[bool]], tasks: Sequence[Sequence[int]]) -> float | None:
    """Share of the distinct tasks of these steps that were updated on at least once."""
    seen: set[int] = set()
    used: set[int] = set()
    for kept_P, tasks_P in zip(kept, tasks, strict=True):
        seen.update(tasks_P)
        used.update(task for task, is_kept in zip(tasks_P, kept_P, strict=True) if is_kept)
    return len(used) / len(seen) if seen else None


def _share(name: str, rows_P: BoolArray, kept_P: BoolArray) -> dict[str, float]:
    return {f"kept_ratio_{name}": float(kept_P[rows_P].mean())} if rows_P.any() else {}


def _inflation(groups: Sequence[Group], solved_P: FloatArray) -> dict[str, float]:
    """Share of reward variance that solving or not does not explain.

    A policy can earn its place in the filter by making rewards vary beside the task.
    """
    shares = []
    for group, rate in zip(groups, solved_P, strict=True):
        total = spread(group.rewards_G, "reward_variance", ddof=0)
        if total == 0.0:
            continue
        solved_G = np.array([one.solved for one in group.trajectories])
        within = sum(
            float(group.rewards_G[rows].var()) * float(rows.mean())
            for rows in (solved_G, ~solved_G)
            if rows.any()
        )
        shares.append(within / total if 0.0 < rate < 1.0 else 1.0)
    return {"variance_beside_success": float(np.mean(shares))} if shares else {}
