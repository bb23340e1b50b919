"""Problems about maps of dots and # characters."""

from __future__ import annotations

import numpy as np

from ragen2.envs.deepcoder.problems.draws import grid, integer
from ragen2.envs.deepcoder.problems.family import Family

_SIDES = (3, 4, 5, 6, 8, 10, 12)


def _neighbours(row: int, column: int, count: int) -> list[tuple[int, int]]:
    steps = [(-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]
    return [(row + down, column + right) for down, right in steps[:count]]


def _labels(rows: list[str], mark: str, count: int) -> dict[tuple[int, int], tuple[int, int]]:
    """Each cell with ``mark``, with the least cell of its region: spread until nothing changes."""
    label = {
        (i, j): (i, j) for i, row in enumerate(rows) for j, cell in enumerate(row) if cell == mark
    }
    changed = True
    while changed:
        changed = False
        for cell, own in list(label.items()):
            label[cell] = min([own, *(label.get(near, own) for near in _neighbours(*cell, count))])
            changed |= label[cell] != own
    return label


def _distance(rows: list[str]) -> int:
    """By relaxing all cells until nothing changes."""
    far = 10**9
    last = (len(rows) - 1, len(rows[0]) - 1)
    free = {(i, j) for i, row in enumerate(rows) for j, cell in enumerate(row) if cell == "."}
    cost = dict.fromkeys(free, far)
    if (0, 0) in free:
        cost[0, 0] = 0
    changed = True
    while changed:
        changed = False
        for cell in free:
            best = min([cost[cell], *(cost.get(near, far) + 1 for near in _neighbours(*cell, 4))])
            changed |= best < cost[cell]
            cost[cell] = best
    return cost.get(last, far) if cost.get(last, far) < far else -1


def _life(rows: list[str], steps: int) -> list[str]:
    board = np.array([[cell == "#" for cell in row] for row in rows], dtype=int)
    for _ in range(steps):
        padded = np.pad(board, 1)
        height, width = board.shape
        around = sum(
            padded[1 + i : 1 + i + height, 1 + j : 1 + j + width]
            for i in (-1, 0, 1)
            for j in (-1, 0, 1)
            if i or j
        )
        board = ((around == 3) | ((board == 1) & (around == 2))).astype(int)
    return ["".join("#" if cell else "." for cell in row) for row in board]


def _count_ways(rows: list[str], modulus: int) -> int:
    """From the end back to the start."""
    ways = {(len(rows) - 1, len(rows[0]) - 1): 1}
    for i in range(len(rows) - 1, -1, -1):
        for j in range(len(rows[0]) - 1, -1, -1):
            onward = (
                ways.get((i + 1, j), 0)
                + ways.get((i, j + 1), 0)
                + ways.get((i, j), 0) * (i == len(rows) - 1 and j == len(rows[0]) - 1)
            )
            ways[i, j] = onward if rows[i][j] == "." else 0
    return ways[0, 0] % modulus


FAMILIES = (
    Family(
        name="count_islands",
        level=3,
        takes=(("rows", "lines"),),
        gives="int",
        wanted="how many regions of # there are, where cells belong together if they touch $how",
        note="Other cells are dots.",
        variants=({"how": "by a side", "near": 4}, {"how": "by a side or a corner", "near": 8}),
        solution="""
def count_islands(rows):
    steps = [(-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)][:$near]
    land = {(i, j) for i, row in enumerate(rows) for j, cell in enumerate(row) if cell == "#"}
    count = 0
    while land:
        count += 1
        todo = [land.pop()]
        while todo:
            i, j = todo.pop()
            for di, dj in steps:
                if (i + di, j + dj) in land:
                    land.remove((i + di, j + dj))
                    todo.append((i + di, j + dj))
    return count
""",
        answer=lambda rows, how, near: len(set(_labels(rows, "#", near).values())),
        draw=lambda rng, size: (grid(rng, size, size + integer(rng, 0, 2), 0.45),),
        edges=((["."],), (["#"],), (["#.", ".#"],), (["###", "#.#", "###"],), (["#.#.#"],)),
        idea="take a # cell, remove everything connected to it, and count how often that goes",
        sizes=_SIDES,
    ),
    Family(
        name="largest_region",
        level=3,
        takes=(("rows", "lines"),),
        gives="int",
        wanted="the number of cells in the largest region of dots connected by sides",
        note="Other cells are #.",
        solution="""
def largest_region(rows):
    free = {(i, j) for i, row in enumerate(rows) for j, cell in enumerate(row) if cell == "."}
    best = 0
    while free:
        todo = [free.pop()]
        size = 0
        while todo:
            i, j = todo.pop()
            size += 1
            for cell in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)):
                if cell in free:
                    free.remove(cell)
                    todo.append(cell)
        best = max(best, size)
    return best
""",
        answer=lambda rows: max(
            (
                list(_labels(rows, ".", 4).values()).count(name)
                for name in set(_labels(rows, ".", 4).values())
            ),
            default=0,
        ),
        draw=lambda rng, size: (grid(rng, size, size, 0.5),),
        edges=((["#"],), (["."],), (["..", ".."],), (["#.#", "...", "#.#"],), ([".#."],)),
        idea="flood each region once and remember the largest size",
        sizes=(3, 4, 5, 6, 7, 8, 9),
    ),
    Family(
        name="grid_distance",
        level=3,
        takes=(("rows", "lines"),),
        gives="int",
        wanted="the least number of moves from the top left to the bottom right cell over dots, "
        "or -1",
        note="A move goes one cell up, down, left or right; # cannot be entered, not even as "
        "first or last cell.",
        solution="""
from collections import deque

def grid_distance(rows):
    goal = (len(rows) - 1, len(rows[0]) - 1)
    if rows[0][0] == "#":
        return -1
    steps = {(0, 0): 0}
    queue = deque([(0, 0)])
    while queue:
        i, j = queue.popleft()
        if (i, j) == goal:
            return steps[i, j]
        for a, b in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)):
            inside = 0 <= a < len(rows) and 0 <= b < len(rows[0])
            if inside and rows[a][b] == "." and (a, b) not in steps:
                steps[a, b] = steps[i, j] + 1
                queue.append((a, b))
    return -1
""",
        answer=_distance,
        draw=lambda rng, size: (
            ["." + (r := grid(rng, size, size, 0.25))[0][1:], *r[1:-1], r[-1][:-1] + "."],
        ),
        edges=((["."],), (["#"],), ([".#", "#."],), (["...", "##.", "..."],), ([".#.", "..."],)),
        idea="search breadth first from the start",
        sizes=_SIDES,
    ),
    Family(
        name="life",
        level=3,
        takes=(("rows", "lines"),),
        gives="lines",
        wanted="the board of # (alive) and dots after $steps of Conway's game of life",
        note="A living cell with 2 or 3 of 8 living neighbours lives on, a dead one with 3 "
        "comes alive; outside all is dead.",
        variants=({"steps": "1 step", "k": 1}, {"steps": "3 steps", "k": 3}),
        solution="""
def life(rows):
    for _ in range($k):
        alive = {(i, j) for i, row in enumerate(rows) for j, c in enumerate(row) if c == "#"}
        around = lambda i, j: sum(
            (i + a, j + b) in alive for a in (-1, 0, 1) for b in (-1, 0, 1) if a or b
        )
        rows = [
            "".join(
                "#" if around(i, j) == 3 or (around(i, j) == 2 and (i, j) in alive) else "."
                for j in range(len(rows[0]))
            )
            for i in range(len(rows))
        ]
    return rows
""",
        answer=lambda rows, steps, k: _life(rows, k),
        draw=lambda rng, size: (grid(rng, size, size, 0.4),),
        edges=((["#"],), (["###"],), (["##", "##"],), ([".#.", ".#.", ".#."],), (["...", "..."],)),
        idea="count the eight neighbours of every cell on the old board",
        sizes=(3, 4, 5, 6, 7, 8, 12),
    ),
    Family(
        name="grid_ways",
        level=3,
        takes=(("rows", "lines"),),
        gives="int",
        wanted="in how many ways one can go from the top left to the bottom right cell over "
        "dots, moving only right or down, modulo $m",
        variants=({"m": 1000}, {"m": 1000003}),
        solution="""
def grid_ways(rows):
    ways = [0] * len(rows[0])
    ways[0] = 1
    for row in rows:
        for j, cell in enumerate(row):
            if cell == "#":
                ways[j] = 0
            elif j:
                ways[j] = (ways[j] + ways[j - 1]) % $m
    return ways[-1]
""",
        answer=_count_ways,
        draw=lambda rng, size: (grid(rng, size, size, 0.12),),
        edges=((["."],), (["#"],), (["..", ".."],), ([".#", "#."],), (["." * 12] * 12,)),
        idea="the ways to a cell are those from above plus those from the left",
        sizes=_SIDES,
    ),
)
