"""Run Python that nobody trusts: limits, isolation, and answers that a program cannot forge."""

from ragen2.sandbox.isolation import Demand, Isolation, best_isolation
from ragen2.sandbox.read_values import Members, Opaque, Pairs
from ragen2.sandbox.run import Given, Probe, ProgramOutcome, ResourceLimits, Sandbox, Status

__all__ = [
    "Demand",
    "Given",
    "Isolation",
    "Members",
    "Opaque",
    "Pairs",
    "Probe",
    "ProgramOutcome",
    "ResourceLimits",
    "Sandbox",
    "Status",
    "best_isolation",
]
