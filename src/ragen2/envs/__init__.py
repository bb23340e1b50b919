"""Environments: the index of what there is. ``make("FrozenLake", size=6)`` builds one."""

from typing import Any

from ragen2.envs.bandit import Bandit
from ragen2.envs.base import Env, Episode, Step
from ragen2.envs.check.conformance import check_env
from ragen2.envs.deepcoder.env import DeepCoder
from ragen2.envs.frozen_lake import FrozenLake
from ragen2.envs.game_2048 import Game2048
from ragen2.envs.math.countdown import Countdown
from ragen2.envs.math.metamathqa import MetaMathQA
from ragen2.envs.rubiks_cube import RubiksCube
from ragen2.envs.search_qa.env import SearchQA
from ragen2.envs.sokoban.env import Sokoban
from ragen2.envs.sudoku import Sudoku
from ragen2.envs.webshop.env import WebShop

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
