"""Programming problems of our own: unlimited in tests, each with a checked reference solution."""

from functools import lru_cache

from ragen2.envs.deepcoder.cases import Problem
from ragen2.envs.deepcoder.problems import (
    choices,
    games,
    graphs,
    grids,
    lists,
    machines,
    numbers,
    numerals,
    planning,
    stretches,
    tables,
    text_structure,
    texts,
)
from ragen2.envs.deepcoder.problems.family import Family

__all__ = ["FAMILIES", "Family", "own_problem", "problem_names"]

FAMILIES: tuple[Family, ...] = (
    *numbers.FAMILIES,
    *numerals.FAMILIES,
    *lists.FAMILIES,
    *stretches.FAMILIES,
    *texts.FAMILIES,
    *text_structure.FAMILIES,
    *grids.FAMILIES,
    *tables.FAMILIES,
    *graphs.FAMILIES,
    *planning.FAMILIES,
    *choices.FAMILIES,
    *machines.FAMILIES,
    *games.FAMILIES,
)


@lru_cache(maxsize=1)
def problem_names() -> dict[str, tuple[Family, int]]:
    """Every problem by name, with its family and variant."""
    return {
        family.variant_name(index): (family, index)
        for family in FAMILIES
        for index in range(len(family.variants))
    }


@lru_cache(maxsize=512)
def own_problem(name: str) -> Problem:
    """The problem called ``name``, with its tests."""
    family, index = problem_names()[name]
    return family.problem(index)
