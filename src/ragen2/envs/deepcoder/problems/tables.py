"""Problems about tables of numbers."""

from __future__ import annotations

import numpy as np

from ragen2.envs.deepcoder.problems.draws import integer, matrix
from ragen2.envs.deepcoder.problems.family import Family


def _spiral(table: list[list[int]]) -> list[int]:
    """Peel off the first row and turn the rest."""
    found: list[int] = []
    while table:
        found += table[0]
        table = [list(column) for column in zip(*table[1:], strict=True)][::-1]
    return found


def _cheapest(table: list[list[int]], best: str) -> int:
    pick = min if best == "smallest" else max
    sums: list[list[int]] = []
    for i, row in enumerate(table):
        sums.append([])
        for j, value in enumerate(row):
            before = ([sums[i - 1][j]] if i else []) + ([sums[i][j - 1]] if j else [])
            sums[i].append(value + (pick(before) if before else 0))
    return sums[-1][-1]


FAMILIES = (
    Family(
        name="turn_table",
        level=2,
        takes=(("table", "rows"),),
        gives="rows",
        wanted="the table $what",
        variants=(
            {"what": "turned a quarter to the right", "how": "right"},
            {"what": "turned a quarter to the left", "how": "left"},
            {"what": "with rows and columns exchanged", "how": "transpose"},
        ),
        solution="""
def turn_table(table):
    if "$how" == "right":
        return [list(row) for row in zip(*table[::-1])]
    exchanged = [list(row) for row in zip(*table)]
    return exchanged if "$how" == "transpose" else exchanged[::-1]
""",
        answer=lambda table, what, how: {
            "right": np.rot90(np.array(table), -1),
            "left": np.rot90(np.array(table)),
            "transpose": np.array(table).T,
        }[how].tolist(),
        draw=lambda rng, size: (matrix(rng, size, size + integer(rng, -1, 2), 0, 99),),
        edges=(([[1]],), ([[1, 2, 3]],), ([[1], [2]],), ([[1, 2], [3, 4]],)),
        idea="zip exchanges rows and columns; reversing before or after turns",
        sizes=(2, 3, 3, 4, 5, 8, 12),
    ),
    Family(
        name="spiral",
        level=3,
        takes=(("table", "rows"),),
        gives="ints",
        wanted="the numbers of the table in spiral order: along the top row, down, back, up, "
        "and so on inwards",
        solution="""
def spiral(table):
    top, bottom, left, right = 0, len(table) - 1, 0, len(table[0]) - 1
    found = []
    while top <= bottom and left <= right:
        found += table[top][left:right + 1]
        found += [table[i][right] for i in range(top + 1, bottom + 1)]
        if top < bottom:
            found += [table[bottom][j] for j in range(right - 1, left - 1, -1)]
        if left < right:
            found += [table[i][left] for i in range(bottom - 1, top, -1)]
        top, bottom, left, right = top + 1, bottom - 1, left + 1, right - 1
    return found
""",
        answer=_spiral,
        draw=lambda rng, size: (matrix(rng, size, size + integer(rng, -1, 2), 0, 99),),
        edges=(([[5]],), ([[1, 2, 3]],), ([[1], [2], [3]],), ([[1, 2], [4, 3]],)),
        idea="walk the border of a shrinking rectangle",
        sizes=(2, 3, 4, 5, 6, 8, 12),
    ),
    Family(
        name="path_sum",
        level=3,
        takes=(("table", "rows"),),
        gives="int",
        wanted="the $best sum of numbers on a way from the top left to the bottom right, moving "
        "only right or down",
        variants=({"best": "smallest", "pick": "min"}, {"best": "largest", "pick": "max"}),
        solution="""
def path_sum(table):
    sums = []
    for i, row in enumerate(table):
        for j, value in enumerate(row):
            if i and j:
                value += $pick(sums[j], sums[j - 1])
            elif i:
                value += sums[j]
            elif j:
                value += sums[j - 1]
            if i:
                sums[j] = value
            else:
                sums.append(value)
    return sums[-1]
""",
        answer=lambda table, best, pick: _cheapest(table, best),
        draw=lambda rng, size: (matrix(rng, size, size + integer(rng, 0, 2), -9, 20),),
        edges=(
            ([[4]],),
            ([[1, 2, 3]],),
            ([[1], [2]],),
            ([[-1, -2], [-3, -4]],),
            ([[1, 9], [9, 1]],),
        ),
        idea="the best sum to a cell is its number plus the better of above and left",
        sizes=(2, 3, 4, 5, 6, 8, 20),
    ),
    Family(
        name="is_latin",
        level=2,
        takes=(("table", "rows"),),
        gives="bool",
        wanted="True if every row and every column of the square table holds each of 1 to n "
        "once, else False",
        note="n is the number of rows.",
        solution="""
def is_latin(table):
    wanted = set(range(1, len(table) + 1))
    return all(set(line) == wanted for line in [*table, *zip(*table)])
""",
        answer=lambda table: all(
            sorted(line) == list(range(1, len(table) + 1))
            for line in [*table, *map(list, zip(*table, strict=True))]
        ),
        draw=lambda rng, size: (
            [
                [
                    (i + j + (i * j % 3 if integer(rng, 0, 5) == 0 else 0)) % size + 1
                    for j in range(size)
                ]
                for i in range(size)
            ],
        ),
        edges=(
            ([[1]],),
            ([[2]],),
            ([[1, 2], [2, 1]],),
            ([[1, 2], [1, 2]],),
            ([[1, 1], [2, 2]],),
            ([[0, 1], [1, 0]],),
        ),
        idea="compare the set of every row and column with 1 to n",
        sizes=(2, 3, 3, 4, 4, 5, 6),
    ),
)
