"""The filter contract: a signal for each prompt, then a rule that says which prompts to keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field

from ragen2.component import Component, UnknownKind, shortened, suggest
from ragen2.errors import ConfigError, EnvError
from ragen2.spread import ROUNDING, GroupSignal, group_signal, spread
from ragen2.types import BoolArray, FloatArray, Group, Selection

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {"kind": "top_p", "signal": "reward_variance", "mass": 0.9},
    "ragen_main_table": {
        "kind": "top_p_softmax",
        "signal": "reward_std",
        "mass": 0.9,
        "include_zero": True,
    },
    "ragen_guide": {"kind": "top_p", "signal": "reward_std", "mass": 0.9, "eps": 0.01},
    "upstream_pr": {"kind": "top_p", "signal": "reward_variance", "ddof": 0, "mass": 0.9},
}
"""The definitions of the filter that are in circulation. On the same rewards they keep different prompts:
they differ in what is ranked (variance or standard deviation), in how mass is counted (linear or softmax),
and in what happens to prompts without signal.

``paper``: linear mass of variance. ``ragen_main_table``: the released main-table script.
``ragen_guide``: what the released guide recommends. ``upstream_pr``: what the author proposed to other
frameworks, where ``ddof`` can be set."""


class Filter(Component, ABC):
    """Chooses the prompts that are worth an update. It describes; it never edits."""

    family: ClassVar[str] = "filter"

    kind: str
    signal: GroupSignal = Field("reward_variance", description="what prompts are ranked by")
    ddof: int = Field(1, ge=0, le=1, description="0: spread of these rewards; 1: unbiased estimate")
    noise: float = Field(
        0.0,
        ge=0.0,
        description="reward variance that is luck, not behaviour; taken off each prompt's variance",
    )

    noise_replays: int = Field(
        0,
        ge=0,
        le=10_000,
        description="times each rollout's actions are replayed under other luck to measure noise; 0 is off",
    )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], path: str = "") -> Self:
        """As every component, and ``kind`` may be the name of a preset."""
        return super().from_dict(_resolve(data), path)

    @classmethod
    def find(cls, kind: str) -> type[Self]:
        """As every component; a mistyped preset is suggested too."""
        if kind.lower() not in {name.lower() for name in cls.kinds()}:
            names = [*cls.kinds(), *PRESETS]
            raise UnknownKind(f"unknown filter kind {kind!r}; {suggest(kind, names)}")
        return super().find(kind)

    @abstractmethod
    def keep(self, scores_P: FloatArray) -> BoolArray:
        """Which prompts to keep, given their scores."""

    def select(self, groups: Sequence[Group], noise_P: FloatArray | None = None) -> Selection:
        """Score each group and keep what the rule keeps.

        ``noise_P`` is each prompt's own measured luck, in place of the constant ``noise``.
        """
        for group in groups:
            bad = np.flatnonzero(~np.isfinite(group.rewards_G))
            if len(bad):
                raise EnvError(
                    f"{group.prompt.env} seed {group.prompt.seed} returned a reward of "
                    f"{group.rewards_G[bad[0]]}; an environment must pay finite rewards"
                )
        scores_P = np.array([group_signal(group, self.signal, self.ddof) for group in groups])
        return self._selection(scores_P, [group.rewards_G for group in groups], noise_P)

    def select_rewards(
        self, rewards_PG: Sequence[FloatArray], noise_P: FloatArray | None = None
    ) -> Selection:
        """The same for bare rewards; groups may differ in size."""
        match self.signal:
            case "reward_variance" | "reward_std":
                scores = [spread(rewards_G, self.signal, self.ddof) for rewards_G in rewards_PG]
            case "reward_mean":
                scores = [float(rewards_G.mean()) for rewards_G in rewards_PG]
            case _:
                raise ConfigError(
                    f"signal {self.signal!r} needs whole rollouts; rank bare rewards by "
                    "reward_variance, reward_std or reward_mean"
                )
        return self._selection(np.array(scores), rewards_PG, noise_P)

    def weights(self, scores_P: FloatArray) -> FloatArray | None:  # for members that weigh
        """What each prompt's advantages are multiplied by; None is 1 for all."""
        return None

    def members(self, rewards_PG: Sequence[FloatArray]) -> tuple[BoolArray, ...] | None:
        """Which members of each group are updated on; None is all."""
        return None

    def _selection(
        self, scores_P: FloatArray, rewards_PG: Sequence[FloatArray], noise_P: FloatArray | None
    ) -> Selection:
        scores_P = self._without_noise(scores_P, noise_P)
        kept_P = self.keep(scores_P)
        if getattr(kept_P, "dtype", None) != np.bool_ or kept_P.shape != scores_P.shape:
            raise ConfigError(
                f"filter {self.kind}: keep returned {shortened(kept_P)}; it must be an array of "
                f"{len(scores_P)} truth values, one for each prompt"
            )
        reason = "" if kept_P.any() else self._why_nothing(scores_P)
        return Selection(kept_P, scores_P, reason, self.weights(scores_P), self.members(rewards_PG))

    def _without_noise(self, scores_P: FloatArray, noise_P: FloatArray | None) -> FloatArray:
        """Variance that is left when luck is taken off; other signals have no luck to take off."""
        noise = self.noise if noise_P is None else noise_P
        if self.signal not in ("reward_variance", "reward_std") or not np.any(noise):
            return scores_P
        is_variance = self.signal == "reward_variance"
        variance_P = scores_P if is_variance else scores_P**2
        left_P = variance_P - noise
        left_P = np.where(left_P <= ROUNDING * variance_P, 0.0, left_P)
        return left_P if is_variance else np.sqrt(left_P)

    def _why_nothing(self, scores_P: FloatArray) -> str:
        if not scores_P.any():
            return f"all {len(scores_P)} prompts have zero {self.signal}"
        return f"no prompt passed {self.kind}; greatest {self.signal} {scores_P.max():.3g}"


class RankFilter(Filter):
    """A filter that ranks prompts and may start at either end."""

    largest: bool = Field(True, description="prefer prompts with more signal; false prefers less")
    include_zero: bool = Field(
        False, description="prompts without any signal take part; false drops them first"
    )

    def candidates(self, scores_P: FloatArray) -> BoolArray:
        """Prompts that may be kept at all."""
        return np.asarray((scores_P != 0.0) | self.include_zero)

    def ranking(self, scores_P: FloatArray) -> list[int]:
        """Candidates from best to worst; ties keep their order in the batch."""
        order = np.argsort(-scores_P if self.largest else scores_P, kind="stable")
        may = self.candidates(scores_P)
        return [int(p) for p in order if may[p]]


def mask_of(kept: Sequence[int], count: int) -> BoolArray:
    """True at the kept prompts."""
    mask_P = np.zeros(count, dtype=np.bool_)
    mask_P[list(kept)] = True
    return mask_P


def _resolve(data: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a filter whose ``kind`` may be a preset's name; what is given beside it wins."""
    preset = PRESETS.get(str(data.get("kind")).lower())
    if preset is None:
        return dict(data)
    return {**preset, **{name: value for name, value in data.items() if name != "kind"}}
