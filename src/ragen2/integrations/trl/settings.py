"""What an SNRGRPOTrainer takes besides TRL's own arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SerializeAsAny

from ragen2.component import Settings
from ragen2.config import Stops
from ragen2.diagnostics import Collapse, Diagnostic, EarlyWarning, Reward, Surface
from ragen2.errors import ConfigError
from ragen2.filtering import Filter, TopP

ROW_MEANS = frozenset({"grpo", "dr_grpo", "luspo", "sapo"})
"""Loss types that divide by the number of rows."""
TOKEN_MEANS = frozenset({"cispo", "dapo", "vespo"})
"""Loss types that divide by the tokens of the generation batch."""
BATCH_MEANS = frozenset({"bnpo"})
"""Loss types that divide by the tokens of the micro-batch."""
REWARD_SIGNALS = frozenset({"reward_variance", "reward_std", "reward_mean"})


NO_STOPS = Stops(variance_steps=0, empty_steps=0, success_evaluations=0)
"""TRL's own arguments say when a run ends, unless our rules are asked for."""


class SNRSettings(Settings):
    """The filter, what is measured, and where it is written."""

    filter: SerializeAsAny[Filter] = Field(
        default_factory=TopP, description="prompts to update on; KeepAll() measures only"
    )
    diagnostics: tuple[SerializeAsAny[Diagnostic], ...] = Field(
        default_factory=lambda: (Surface(), Reward(), Collapse()), description="what is measured"
    )
    warning: EarlyWarning = Field(
        default_factory=EarlyWarning, description="when a fall of MI or retrieval is an alarm"
    )
    stops: Stops = Field(
        NO_STOPS, description="when a run ends early, after the step that follows; left out, never"
    )
    reasoning: Literal["think", "all"] = Field(
        "think", description="the part of a completion that is scored: what <think> holds, or all"
    )
    success_reward: float | None = Field(
        None, description="reward from which a completion counts as solved; left out, none is known"
    )
    run_dir: Path | None = Field(
        None, description="run directory; left out, the folder ragen2 in TRL's output_dir"
    )
    rollouts_every: int = Field(1, ge=1, description="steps between saved rollouts")


def check_settings(settings: SNRSettings, args: Any) -> None:
    """Refuse what cannot be done right with these arguments of TRL, one line per mistake."""
    mistakes = []
    known = ROW_MEANS | TOKEN_MEANS | BATCH_MEANS
    if args.loss_type not in known:
        mistakes.append(
            f"loss_type {args.loss_type!r} is not one whose denominator is known; "
            f"use one of {', '.join(sorted(known))}"
        )
    if args.multi_objective_aggregation != "sum_then_normalize":
        mistakes.append(
            f"multi_objective_aggregation {args.multi_objective_aggregation!r} normalises over all "
            "groups, dropped ones too; use sum_then_normalize"
        )
    if settings.filter.signal not in REWARD_SIGNALS:
        mistakes.append(
            f"filter.signal {settings.filter.signal!r} needs log-probs that TRL does not give out; "
            f"use one of {', '.join(sorted(REWARD_SIGNALS))}"
        )
    if settings.filter.noise_replays:
        mistakes.append(
            f"filter.noise_replays is {settings.filter.noise_replays}, but TRL cannot play a task "
            "again; set it to 0, or give filter.noise"
        )
    if getattr(settings.warning, "response", "warn") == "checkpoint":
        mistakes.append(
            "warning.response is 'checkpoint', but TRL decides what is saved and kept; use warn, stop or "
            "command"
        )
    if mistakes:
        raise ConfigError("\n".join(mistakes))
