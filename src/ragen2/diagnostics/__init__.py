"""Diagnostics: the index of what is measured. ``measure`` needs numpy and nothing else of ours."""

from ragen2.diagnostics.actions import ActionInformation, Actions, action_information
from ragen2.diagnostics.attempts import Attempts, Contrasts, Played
from ragen2.diagnostics.base import Diagnostic, Evidence
from ragen2.diagnostics.chain import Chain, read_chain
from ragen2.diagnostics.collapse import Collapse
from ragen2.diagnostics.dependence import DependenceRow, dependence, enough_prompts
from ragen2.diagnostics.detectors import Finding, find_failures
from ragen2.diagnostics.flow import Flow, measure_flow
from ragen2.diagnostics.lengths import length_control
from ragen2.diagnostics.mutual_information import Ema, measure, next_ema
from ragen2.diagnostics.noise import NoiseSplit, noise_split
from ragen2.diagnostics.regime import Regime, explain_regime, regime
from ragen2.diagnostics.reward import Reward, reward_spread
from ragen2.diagnostics.surface import Surface, surface
from ragen2.diagnostics.triage import Label, Triage, Triaged, triage
from ragen2.diagnostics.vision import Vision
from ragen2.diagnostics.warning import EarlyWarning, WarningState

__all__ = [
    "ActionInformation",
    "Actions",
    "Attempts",
    "Chain",
    "Collapse",
    "Contrasts",
    "DependenceRow",
    "Diagnostic",
    "EarlyWarning",
    "Ema",
    "Evidence",
    "Finding",
    "Flow",
    "Label",
    "NoiseSplit",
    "Played",
    "Regime",
    "Reward",
    "Surface",
    "Triage",
    "Triaged",
    "Vision",
    "WarningState",
    "action_information",
    "dependence",
    "enough_prompts",
    "explain_regime",
    "find_failures",
    "length_control",
    "measure",
    "measure_flow",
    "next_ema",
    "noise_split",
    "read_chain",
    "regime",
    "reward_spread",
    "surface",
    "triage",
]
