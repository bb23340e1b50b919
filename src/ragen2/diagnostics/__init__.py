"""Diagnostics: the index of what is measured. ``measure`` needs numpy and nothing else of ours."""

from ragen2.diagnostics.base import (
    Attempts,
    Contrasts,
    Diagnostic,
    Evidence,
    Measured,
    Played,
    measure_all,
)
from ragen2.diagnostics.judging.answers import Answer, Question, Status
from ragen2.diagnostics.judging.causes import Cause
from ragen2.diagnostics.judging.detectors import Finding, find_failures
from ragen2.diagnostics.judging.examination import Examination, examine
from ragen2.diagnostics.judging.regime import Regime, explain_regime, regime
from ragen2.diagnostics.judging.warning import EarlyWarning, WarningState
from ragen2.diagnostics.metrics.collapse import Collapse
from ragen2.diagnostics.metrics.dependence import DependenceRow, dependence, enough_prompts
from ragen2.diagnostics.metrics.flow import Chain, Flow, measure_flow, read_chain
from ragen2.diagnostics.metrics.lengths import length_control
from ragen2.diagnostics.metrics.mutual_information import Ema, measure, next_ema
from ragen2.diagnostics.metrics.reward import NoiseSplit, Reward, noise_split, reward_spread
from ragen2.diagnostics.metrics.surface import (
    ActionInformation,
    Actions,
    Surface,
    action_information,
    surface,
)
from ragen2.diagnostics.metrics.triage import Label, Triage, Triaged, triage
from ragen2.diagnostics.metrics.vision import Vision

__all__ = [
    "ActionInformation",
    "Actions",
    "Answer",
    "Attempts",
    "Cause",
    "Chain",
    "Collapse",
    "Contrasts",
    "DependenceRow",
    "Diagnostic",
    "EarlyWarning",
    "Ema",
    "Evidence",
    "Examination",
    "Finding",
    "Flow",
    "Label",
    "Measured",
    "NoiseSplit",
    "Played",
    "Question",
    "Regime",
    "Reward",
    "Status",
    "Surface",
    "Triage",
    "Triaged",
    "Vision",
    "WarningState",
    "action_information",
    "dependence",
    "enough_prompts",
    "examine",
    "explain_regime",
    "find_failures",
    "length_control",
    "measure",
    "measure_all",
    "measure_flow",
    "next_ema",
    "noise_split",
    "read_chain",
    "regime",
    "reward_spread",
    "surface",
    "triage",
]
