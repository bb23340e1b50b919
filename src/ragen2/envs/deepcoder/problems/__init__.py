"""Programming problems of our own: thousands of different ones, each with a reference solution."""

from ragen2.envs.deepcoder.problems.generate import own_problem

__all__ = ["own_problem"]
