"""ragen2: keep LLM agents honest while they learn with reinforcement learning.

Public names are imported on first use, so ``import ragen2`` costs next to nothing and never needs torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ragen2.algorithms import Algorithm
    from ragen2.config import RunConfig, load_run
    from ragen2.diagnostics import Diagnostic, measure, regime
    from ragen2.envs import Env, Episode, Step, check_env, make
    from ragen2.errors import RagenError
    from ragen2.filtering import Filter, select
    from ragen2.types import Group, ScoreMatrix, Selection, Trajectory

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Diagnostic",
    "Env",
    "Episode",
    "Filter",
    "Group",
    "RagenError",
    "RunConfig",
    "ScoreMatrix",
    "Selection",
    "Step",
    "Trajectory",
    "check_env",
    "load_run",
    "make",
    "measure",
    "regime",
    "select",
]

_HOMES = {
    "ragen2.algorithms": ("Algorithm",),
    "ragen2.config": ("RunConfig", "load_run"),
    "ragen2.diagnostics": ("Diagnostic", "measure", "regime"),
    "ragen2.envs": ("Env", "Episode", "Step", "check_env", "make"),
    "ragen2.errors": ("RagenError",),
    "ragen2.filtering": ("Filter", "select"),
    "ragen2.types": ("Group", "ScoreMatrix", "Selection", "Trajectory"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'ragen2' has no attribute {name!r}")
