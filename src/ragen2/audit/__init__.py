"""Audit: did it collapse? Read from the rollouts that any framework logged."""

from ragen2.audit.analyse import analyse
from ragen2.audit.files import log_files
from ragen2.audit.likelihoods import PolicyLikelihood, ServerLikelihood, WordLikelihood
from ragen2.audit.log import ReadSettings, read_log
from ragen2.audit.readers import READERS, parse_columns
from ragen2.audit.reservoir import SampleLimits
from ragen2.audit.rollouts import ReasoningRule

__all__ = [
    "READERS",
    "PolicyLikelihood",
    "ReadSettings",
    "ReasoningRule",
    "SampleLimits",
    "ServerLikelihood",
    "WordLikelihood",
    "analyse",
    "log_files",
    "parse_columns",
    "read_log",
]
