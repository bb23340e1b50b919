"""Problems about neighbours and stretches of a list."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from ragen2.envs.deepcoder.problems.draws import integer, integers
from ragen2.envs.deepcoder.problems.family import Family

_PICK: dict[str, Callable[..., Any]] = {"max": max, "min": min}
_LARGE = (3, 5, 8, 12, 20, 60, 4000)


def _water(heights: list[int]) -> int:
    total = 0
    for index, height in enumerate(heights):
        level = min(max(heights[: index + 1]), max(heights[index:]))
        total += level - height
    return total


def _next_greater(values: list[int]) -> list[int]:
    return [
        next((later for later in values[index + 1 :] if later > value), -1)
        for index, value in enumerate(values)
    ]


def _product(values: list[int]) -> int:
    result = 1
    for value in values:
        result *= value
    return result


FAMILIES = (
    Family(
        name="running_best",
        level=1,
        takes=(("a", "ints"),),
        gives="ints",
        wanted="a list whose entry i is the $word of the first i + 1 numbers of a",
        variants=({"word": "largest", "pick": "max"}, {"word": "smallest", "pick": "min"}),
        solution="""
def running_best(a):
    result = []
    for value in a:
        result.append($pick(result[-1], value) if result else value)
    return result
""",
        answer=lambda a, word, pick: [_PICK[pick](a[: i + 1]) for i in range(len(a))],
        draw=lambda rng, size: (integers(rng, size, -50, 50),),
        edges=(([4],), ([3, 2, 1],), ([1, 2, 3],), ([-5, -5],), ([0, -1, 1, 0],)),
        idea="keep the $word so far while going along",
        sizes=(3, 5, 8, 12, 20, 60, 1500),
    ),
    Family(
        name="best_stretch",
        level=3,
        takes=(("a", "ints"),),
        gives="int",
        wanted="the $word sum of a non-empty stretch of neighbouring numbers of a",
        variants=({"word": "largest", "pick": "max"}, {"word": "smallest", "pick": "min"}),
        solution="""
def best_stretch(a):
    best = here = a[0]
    for value in a[1:]:
        here = $pick(value, here + value)
        best = $pick(best, here)
    return best
""",
        answer=lambda a, word, pick: _PICK[pick](
            total for i in range(len(a)) for total in itertools.accumulate(a[i:])
        ),
        draw=lambda rng, size: (integers(rng, size, -20, 20),),
        edges=(([-3],), ([-3, -1, -2],), ([5, -9, 6],), ([0, 0],), ([2, 3, 4],)),
        idea="the $word sum that ends here is the number alone or added to the one before",
        sizes=(3, 5, 8, 12, 20, 60, 700),
    ),
    Family(
        name="longest_run",
        level=1,
        takes=(("a", "ints"),),
        gives="int",
        wanted="the length of the longest run of equal neighbours in a",
        solution="""
def longest_run(a):
    best = run = 0
    last = None
    for value in a:
        run = run + 1 if value == last else 1
        last = value
        best = max(best, run)
    return best
""",
        answer=lambda a: max((len(list(group)) for _, group in itertools.groupby(a)), default=0),
        draw=lambda rng, size: (integers(rng, 2 * size, 0, 2),),
        edges=(([],), ([7],), ([1, 1, 2, 2, 2],), ([3, 3, 3],), ([1, 2, 1, 2],)),
        idea="count on while the number stays the same",
        sizes=_LARGE,
    ),
    Family(
        name="window_maxima",
        level=3,
        takes=(("a", "ints"),),
        gives="ints",
        wanted="the largest number of every stretch of $k neighbours of a, from left to right",
        note="a has at least $k numbers.",
        variants=({"k": 2}, {"k": 3}, {"k": 4}),
        solution="""
from collections import deque

def window_maxima(a):
    queue, result = deque(), []
    for i, value in enumerate(a):
        while queue and a[queue[-1]] <= value:
            queue.pop()
        queue.append(i)
        if queue[0] <= i - $k:
            queue.popleft()
        if i >= $k - 1:
            result.append(a[queue[0]])
    return result
""",
        answer=lambda a, k: [max(a[i : i + k]) for i in range(len(a) - k + 1)],
        draw=lambda rng, size: (integers(rng, size + 4, -30, 30),),
        edges=(([4, 3, 2, 1],), ([1, 2, 3, 4],), ([5, 5, 5, 5],), ([-1, -2, -3, -4, -5],)),
        idea="keep a queue of positions whose numbers only fall",
        sizes=_LARGE,
    ),
    Family(
        name="trapped_water",
        level=4,
        takes=(("heights", "ints"),),
        gives="int",
        wanted="how much water stays on a row of walls of these heights, each one wide, after rain",
        solution="""
def trapped_water(heights):
    total = 0
    left, right = 0, len(heights) - 1
    left_wall = right_wall = 0
    while left <= right:
        if left_wall <= right_wall:
            left_wall = max(left_wall, heights[left])
            total += left_wall - heights[left]
            left += 1
        else:
            right_wall = max(right_wall, heights[right])
            total += right_wall - heights[right]
            right -= 1
    return total
""",
        answer=_water,
        draw=lambda rng, size: (integers(rng, size, 0, 9),),
        edges=(([],), ([3],), ([3, 0, 3],), ([1, 2, 3],), ([5, 4, 1, 2],)),
        idea="move inwards from the lower side and fill up to the highest wall met",
        sizes=(4, 6, 8, 12, 20, 60, 500),
    ),
    Family(
        name="products_without_self",
        level=3,
        takes=(("a", "ints"),),
        gives="ints",
        wanted="a list whose entry i is the product of all numbers of a but a[i]",
        note="For a single number that is 1.",
        solution="""
def products_without_self(a):
    result = [1] * len(a)
    before = after = 1
    for i in range(len(a)):
        result[i] *= before
        before *= a[i]
        result[-1 - i] *= after
        after *= a[-1 - i]
    return result
""",
        answer=lambda a: [_product(a[:i] + a[i + 1 :]) for i in range(len(a))],
        draw=lambda rng, size: (integers(rng, size, -4, 9),),
        edges=(([7],), ([0, 5],), ([0, 0, 3],), ([-1, -1, -1],), ([2, 3, 4],)),
        idea="multiply what lies before by what lies after, without division",
        sizes=(3, 4, 6, 8, 12, 20, 30),
    ),
    Family(
        name="next_greater",
        level=3,
        takes=(("a", "ints"),),
        gives="ints",
        wanted="a list that holds for each number of a the first greater one to its right, or -1",
        solution="""
def next_greater(a):
    result = [-1] * len(a)
    waiting = []
    for i, value in enumerate(a):
        while waiting and a[waiting[-1]] < value:
            result[waiting.pop()] = value
        waiting.append(i)
    return result
""",
        answer=_next_greater,
        draw=lambda rng, size: (integers(rng, size, 0, 40),),
        edges=(([5],), ([3, 2, 1],), ([1, 2, 3],), ([2, 2, 3],), ([4, 4],)),
        idea="keep a stack of positions that still wait for a greater number",
        sizes=(3, 5, 8, 12, 20, 60, 600),
    ),
    Family(
        name="stretches_with_sum",
        level=4,
        takes=(("a", "ints"), ("target", "int")),
        gives="int",
        wanted="how many non-empty stretches of neighbouring numbers of a sum to target",
        solution="""
def stretches_with_sum(a, target):
    seen = {0: 1}
    total = count = 0
    for value in a:
        total += value
        count += seen.get(total - target, 0)
        seen[total] = seen.get(total, 0) + 1
    return count
""",
        answer=lambda a, target: sum(
            total == target for i in range(len(a)) for total in itertools.accumulate(a[i:])
        ),
        draw=lambda rng, size: (integers(rng, size, -4, 6), integer(rng, -3, 8)),
        edges=(([], 0), ([0, 0, 0], 0), ([1, -1, 1], 0), ([5], 5), ([3, 4, -7, 3], 3)),
        idea="a stretch is a difference of two prefix sums; count earlier prefixes",
        sizes=(3, 5, 8, 12, 20, 60, 700),
    ),
    Family(
        name="block_sums",
        level=1,
        takes=(("a", "ints"),),
        gives="ints",
        wanted="the sums of the blocks of $k numbers into which a is cut from the left",
        note="The last block may be shorter.",
        variants=({"k": 2}, {"k": 3}, {"k": 5}),
        solution="""
def block_sums(a):
    return [sum(a[i:i + $k]) for i in range(0, len(a), $k)]
""",
        answer=lambda a, k: [
            sum(value for place, value in enumerate(a) if place // k == block)
            for block in range((len(a) + k - 1) // k)
        ],
        draw=lambda rng, size: (integers(rng, size + 2, -20, 20),),
        edges=(([1],), ([1, 2, 3, 4, 5],), ([0] * 10,), ([-1] * 7,), ([9, -9, 9],)),
        idea="step through the list $k at a time",
    ),
)
