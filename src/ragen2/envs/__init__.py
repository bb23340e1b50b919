"""Environments: the index of what there is. ``make("FrozenLake", size=6)`` builds one."""

from typing import Any

from ragen2.envs.bandit import Bandit
from ragen2.envs.base import Env, Episode, Step
from ragen2.envs.check import check_env
from ragen2.envs.countdown import Countdown
from ragen2.envs.deepcoder import DeepCoder
from ragen2.envs.frozen_lake import FrozenLake
from ragen2.envs.game_2048 import Game2048
from ragen2.envs.metamathqa import MetaMathQA
from ragen2.envs.rubiks_cube import RubiksCube
from ragen2.envs.search_qa import SearchQA
from ragen2.envs.sokoban import Sokoban
from ragen2.envs.sudoku import Sudoku
from ragen2.envs.webshop import WebShop

__all__ = [
    "Bandit",
    "Countdown",
    "DeepCoder",
    "Env",
    "Episode",
    "FrozenLake",
    "Game2048",
    "MetaMathQA",
    "RubiksCube",
    "SearchQA",
    "Sokoban",
    "Step",
    "Sudoku",
    "WebShop",
    "check_env",
    "make",
]


def make(kind: str, **settings: Any) -> Env:
    """Build the environment called ``kind``; settings are checked, unknown names suggest others."""
    return Env.from_dict({"kind": kind, **settings}, path=kind)
