"""Diagnostics: the index of what is measured. ``measure`` needs numpy and nothing else of ours."""

from ragen2.diagnostics.base import Diagnostic, Evidence
from ragen2.diagnostics.collapse import Collapse
from ragen2.diagnostics.mutual_information import Ema, measure, next_ema
from ragen2.diagnostics.regime import Regime, regime
from ragen2.diagnostics.reward import Reward, reward_spread
from ragen2.diagnostics.surface import Surface, surface

__all__ = [
    "Collapse",
    "Diagnostic",
    "Ema",
    "Evidence",
    "Regime",
    "Reward",
    "Surface",
    "measure",
    "next_ema",
    "regime",
    "reward_spread",
    "surface",
]
