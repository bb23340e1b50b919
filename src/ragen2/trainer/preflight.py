"""Preflight: play one batch, and say whether there is something to learn and whether to filter.

Letters: P prompts, G members of a group, B resampled batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ragen2.diagnostics import Evidence, Reward, Surface, Triage, Triaged, measure, regime
from ragen2.diagnostics.base import attempts_of
from ragen2.diagnostics.metrics.problems import ProblemCount, reply_problems
from ragen2.diagnostics.metrics.reward import (
    DeadForecast,
    NoiseSplit,
    forecast_dead,
    mean_split,
    noise_split,
    std_over_mean,
)
from ragen2.diagnostics.metrics.triage import triage_shares
from ragen2.errors import ConfigError, EnvError
from ragen2.filtering import Filter
from ragen2.progress import part, report
from ragen2.rollout import play
from ragen2.rollout.context import require_vision
from ragen2.rollout.play import refuse_broken
from ragen2.scoring import cross_score, first_turn_traces
from ragen2.seeding import stream
from ragen2.spread import spread
from ragen2.trainer.advice import Advice, PreflightFindings, advise
from ragen2.trainer.batch import EnvReplayer, replayed_returns, training_tasks
from ragen2.trainer.incentives import Incentives, measure_incentives
from ragen2.types import FloatArray, Group

if TYPE_CHECKING:
    from ragen2.config import RunConfig
    from ragen2.policy import Policy

SCHEMA_VERSION = 1
SCOPE = "collapse/first_turn"
MOST_TRACES = 64
RESAMPLED_BATCHES = 200
RESAMPLED_RATIOS = 2000
TRIAGE_REPLAYS = 8
SIZES = (2, 4, 8, 16, 32, 64)
"""Group sizes that are forecast, besides the run's own."""


@dataclass(frozen=True, slots=True)
class FilterForecast:
    """What a filter would keep of batches like this one."""

    kind: str
    settings: dict[str, Any]
    is_own: bool
    """Whether it is the run's filter, with the run's settings; others have their defaults."""
    kept_ratio: float
    """Expected share of prompts kept, over batches drawn from this one's prompts."""
    kept_ratio_low: float
    kept_ratio_high: float
    """Range that holds nine of ten such batches."""
    kept_prompts: int
    """Prompts kept of this very batch."""
    effective_batch: float
    """Expected episodes that are kept and lie in a prompt with variance."""


@dataclass(frozen=True, slots=True, eq=False)
class Preflight:
    """All that one batch shows about a run."""

    env: str
    model: str
    num_prompts: int
    group_size: int
    metrics: dict[str, float]
    ratio_interval: tuple[float, float] | None
    """95% of Std(RV)/Mean(RV) over resampled prompts."""
    filters: tuple[FilterForecast, ...]
    group_sizes: tuple[DeadForecast, ...]
    prompts: tuple[Triaged, ...]
    noise: NoiseSplit | None
    noise_by_prompt: tuple[NoiseSplit, ...]
    regime: str | None
    incentives: Incentives | None
    problems: tuple[ProblemCount, ...]
    """What was wrong with replies that could not be executed as written, the most frequent first."""
    advice: Advice
    absent: dict[str, str]
    """What could not be had, each with the reason."""

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return {
            "schema_version": SCHEMA_VERSION,
            "env": self.env,
            "model": self.model,
            "num_prompts": self.num_prompts,
            "group_size": self.group_size,
            "advice": {
                "decision": self.advice.decision.value,
                "go": self.advice.go,
                "line": self.advice.line,
                "reasons": list(self.advice.reasons),
            },
            "metrics": self.metrics,
            "variance_std_over_mean_interval": self.ratio_interval,
            "filters": [asdict(one) for one in self.filters],
            "group_sizes": [asdict(one) for one in self.group_sizes],
            "noise": None if self.noise is None else _noise_dict(self.noise),
            "noise_by_prompt": [_noise_dict(one) for one in self.noise_by_prompt],
            "regime": self.regime,
            "incentives": None if self.incentives is None else asdict(self.incentives),
            "problems": [asdict(one) for one in self.problems],
            "prompts": [_prompt_dict(one) for one in self.prompts],
            "absent": self.absent,
        }


def preflight(config: RunConfig, policy: Policy) -> Preflight:
    """Play the first batch of the run, train nothing, and judge it."""
    groups = _play_batch(config, policy)
    rewards = [group.rewards_G for group in groups]
    report(f"judging {len(groups)} prompts")
    evidence = Evidence(1, groups, seed=config.seed, replayer=EnvReplayer(config.env))
    prompts = Triage(replays=TRIAGE_REPLAYS).judge(evidence)
    metrics = Surface().measure(evidence) | Reward().measure(evidence) | triage_shares(prompts)
    report("playing the same actions under other luck")
    splits, no_noise = _noise(config, groups)
    noise = mean_split(splits) if splits else None
    report(f"trying {len(Filter.kinds())} filters")
    filters, no_filters = forecast_filters(groups, config.filter, seed=config.seed)
    sizes = sorted({*SIZES, config.rollout.group_size})
    forecasts = forecast_dead(rewards, sizes)
    report("playing without the model")
    incentives, no_incentives = _incentives(config)
    with part("scoring the reasoning"):
        collapse, no_collapse = _collapse(config, policy, groups)
    metrics |= {f"{SCOPE}/{name}": value for name, value in collapse.items()}
    found = PreflightFindings(
        metrics,
        len(groups),
        ratio_interval(rewards, seed=config.seed),
        noise.environment_ratio if noise else None,
        incentives.warning if incentives else "",
        len(config.env.easier) if config.curriculum.mode == "off" else 0,
    )
    return Preflight(
        env=config.env.kind,
        model=config.model.path,
        num_prompts=len(groups),
        group_size=config.rollout.group_size,
        metrics=metrics,
        ratio_interval=found.ratio_interval,
        filters=filters,
        group_sizes=tuple(forecasts),
        prompts=tuple(prompts),
        noise=noise,
        noise_by_prompt=tuple(splits),
        regime=regime(collapse).value if collapse else None,
        incentives=incentives,
        problems=tuple(reply_problems(groups)),
        advice=advise(found),
        absent=no_noise | no_filters | no_incentives | no_collapse | _unforecast(sizes, forecasts),
    )


def _play_batch(config: RunConfig, policy: Policy) -> list[Group]:
    """The tasks and the random streams of the run's first step."""
    require_vision(config.env, policy, config.rollout, config.prompt)
    key = (config.seed, "train", 1)
    tasks = training_tasks(config, 1)
    groups = play(config.env, policy, tasks, config.rollout, key=key, prompt=config.prompt)
    refuse_broken(groups)
    return groups


def forecast_filters(
    groups: Sequence[Group], own: Filter, *, seed: int = 0
) -> tuple[tuple[FilterForecast, ...], dict[str, str]]:
    """The run's filter, then every registered kind with its defaults; and those that cannot be tried."""
    others: list[Filter] = []
    absent: dict[str, str] = {}
    for kind in Filter.kinds():
        try:
            other = Filter.from_dict({"kind": kind})
        except ConfigError as error:
            absent[f"filters/{kind}"] = str(error).splitlines()[0]
            continue
        if other != own:
            others.append(other)
    rng = stream("preflight", "batches", seed)
    draws_BP = rng.integers(len(groups), size=(RESAMPLED_BATCHES, len(groups)))
    return tuple(
        _forecast(groups, one, draws_BP, is_own=one is own) for one in (own, *others)
    ), absent


def ratio_interval(
    rewards_PG: Sequence[FloatArray], *, seed: int = 0
) -> tuple[float, float] | None:
    """95% percentile interval of Std(RV)/Mean(RV) over resampled prompts; None without variance."""
    variance_P = np.array([spread(one, "reward_variance", ddof=1) for one in rewards_PG])
    if not variance_P.any():
        return None
    rng = stream("preflight", "ratio", seed)
    draws = variance_P[rng.integers(len(variance_P), size=(RESAMPLED_RATIOS, len(variance_P)))]
    ratios = [std_over_mean(draw) for draw in draws if draw.any()]
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


def _forecast(
    groups: Sequence[Group], own: Filter, draws_BP: np.ndarray[Any, Any], *, is_own: bool
) -> FilterForecast:
    kept_B, live_B = [], []
    for draw in draws_BP.tolist():
        batch = [groups[index] for index in draw]
        selection = own.select(batch)
        kept_B.append(selection.kept_ratio)
        live_B.append(_live_episodes(selection.apply(batch)))
    low, high = np.quantile(kept_B, [0.05, 0.95])
    return FilterForecast(
        kind=own.kind,
        settings=own.model_dump(mode="json", exclude={"kind"}),
        is_own=is_own,
        kept_ratio=float(np.mean(kept_B)),
        kept_ratio_low=float(low),
        kept_ratio_high=float(high),
        kept_prompts=int(own.select(groups).kept_P.sum()),
        effective_batch=float(np.mean(live_B)),
    )


def _live_episodes(kept: Sequence[Group]) -> int:
    return sum(
        len(group.trajectories)
        for group in kept
        if spread(group.rewards_G, "reward_variance", ddof=1) > 0.0
    )


def _noise(config: RunConfig, groups: Sequence[Group]) -> tuple[list[NoiseSplit], dict[str, str]]:
    """As many replays per member as members, so that both parts are known equally well."""
    if not config.env.stochastic:
        return [], {"noise": f"luck does nothing in {config.env.kind}"}
    size = config.rollout.group_size
    if size < 2:
        return [], {"noise": f"a split needs groups of at least 2, got {size}"}
    whole = [group for group in groups if not attempts_of(group).num_broken]
    splits = [noise_split(replayed_returns(config.env, group, size)) for group in whole]
    broken = len(groups) - len(whole)
    return splits, {"noise": f"the environment raised on {broken} prompts"} if broken else {}


def _incentives(config: RunConfig) -> tuple[Incentives | None, dict[str, str]]:
    try:
        found = measure_incentives(config)
    except EnvError as error:
        return None, {"incentives": str(error)}
    lacks = {"expert": found.expert, "random": found.random}
    return found, {
        f"incentives/{name}": f"{config.env.kind} has no {method}"
        for name, method in (("expert", "expert"), ("random", "random_action"))
        if lacks[name] is None
    }


def _collapse(
    config: RunConfig, policy: Policy, groups: Sequence[Group]
) -> tuple[dict[str, float], dict[str, str]]:
    traces = first_turn_traces(groups, MOST_TRACES, stream(config.seed, "preflight", "traces"))
    scores = cross_score(traces, policy, config.rollout.temperature)
    if scores is None:
        return {}, {SCOPE: "fewer than two distinct first-turn prompts had reasoning to score"}
    return measure(scores.logp_NP, scores.length_N, scores.owner_N, seed=config.seed), {}


def _unforecast(sizes: Sequence[int], found: Sequence[DeadForecast]) -> dict[str, str]:
    done = {one.group_size for one in found}
    reason = "beyond the size played, and returns take too many values for a model"
    return {f"group_sizes/{size}": reason for size in sizes if size not in done}


def _noise_dict(split: NoiseSplit) -> dict[str, float | None]:
    return {
        "policy": split.policy,
        "environment": split.environment,
        "total": split.total,
        "environment_ratio": split.environment_ratio,
    }


def _prompt_dict(one: Triaged) -> dict[str, Any]:
    examples = [{"who": who, **asdict(played)} for who, played in one.examples]
    return {**asdict(one), "label": one.label.value, "examples": examples}
