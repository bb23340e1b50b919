"""WebShop: shopping in a simulated web shop. The parts, in the order of a visit."""

from ragen2.envs.webshop.catalogue import Catalogue, Product, read_catalogue
from ragen2.envs.webshop.env import ShopEpisode, WebShop
from ragen2.envs.webshop.generation import generated_catalogue
from ragen2.envs.webshop.goals import Goal, draw_goal, read_human_goals, synthetic_goals
from ragen2.envs.webshop.reward import PurchaseScore, score

__all__ = [
    "Catalogue",
    "Goal",
    "Product",
    "PurchaseScore",
    "ShopEpisode",
    "WebShop",
    "draw_goal",
    "generated_catalogue",
    "read_catalogue",
    "read_human_goals",
    "score",
    "synthetic_goals",
]
