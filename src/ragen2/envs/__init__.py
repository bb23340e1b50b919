"""Environments: the index of what there is. ``make("FrozenLake", size=6)`` builds one."""

from typing import Any

from ragen2.envs.bandit import Bandit
from ragen2.envs.base import Env, Episode, Step
from ragen2.envs.check import check_env
from ragen2.envs.frozen_lake import FrozenLake

__all__ = ["Bandit", "Env", "Episode", "FrozenLake", "Step", "check_env", "make"]


def make(kind: str, **settings: Any) -> Env:
    """Build the environment called ``kind``; settings are checked, unknown names suggest others."""
    return Env.from_dict({"kind": kind, **settings}, path=kind)
