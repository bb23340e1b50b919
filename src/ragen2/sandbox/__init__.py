"""Run Python that nobody trusts: limits, isolation, and answers that a program cannot forge."""

from ragen2.sandbox.isolation import Demand, Isolation
from ragen2.sandbox.read_values import Members, Opaque, Pairs
from ragen2.sandbox.run import (
    Check,
    Given,
    ProgramOutcome,
    ResourceLimits,
    Sandbox,
    Status,
    best_isolation,
)

__all__ = [
    "Check",
    "Demand",
    "Given",
    "Isolation",
    "Members",
    "Opaque",
    "Pairs",
    "ProgramOutcome",
    "ResourceLimits",
    "Sandbox",
    "Status",
    "best_isolation",
]
