"""Problems about lists of integers: counting, ordering, rearranging."""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections import Counter

from ragen2.envs.deepcoder.problems.draws import integer, integers
from ragen2.envs.deepcoder.problems.family import Family


def _dedupe(values: list[int], which: str) -> list[int]:
    found: list[int] = []
    for index, value in enumerate(values):
        others = values[:index] if which == "first" else values[index + 1 :]
        if value not in others:
            found.append(value)
    return found


def _pairs(values: list[int], target: int) -> int:
    """From counts alone: ordered pairs, less those of a number with itself, halved."""
    counts = Counter(values)
    ordered = sum(times * counts[target - value] for value, times in list(counts.items()))
    return (ordered - (counts[target // 2] if target % 2 == 0 else 0)) // 2


def _union(spans: list[list[int]]) -> list[list[int]]:
    """By marking half steps, so that 1-2 and 3-4 stay apart while 1-2 and 2-3 join."""
    marks = {place for start, end in spans for place in range(2 * start, 2 * end + 1)}
    found: list[list[int]] = []
    for place in sorted(marks):
        if place - 1 in marks:
            found[-1][1] = place // 2
        else:
            found.append([place // 2, place // 2])
    return found


def _inversions(values: list[int]) -> int:
    """By keeping what was seen sorted."""
    seen: list[int] = []
    total = 0
    for value in values:
        place = bisect.bisect_right(seen, value)
        total += len(seen) - place
        seen.insert(place, value)
    return total


FAMILIES = (
    Family(
        name="kth_largest",
        level=1,
        takes=(("a", "ints"),),
        gives="int",
        wanted="the $ordinal largest of the different values in a",
        note="If a has fewer different values, the answer is None.",
        variants=({"ordinal": "second", "k": 2}, {"ordinal": "third", "k": 3}),
        solution="""
def kth_largest(a):
    values = sorted(set(a), reverse=True)
    return values[$k - 1] if len(values) >= $k else None
""",
        answer=lambda a, ordinal, k: next(
            (value for value in a if len({other for other in a if other > value}) == k - 1), None
        ),
        draw=lambda rng, size: (integers(rng, size, -20, 20),),
        edges=(([],), ([5, 5, 5],), ([-1, -2],), ([3, 1, 2],), ([7, 7, 3, 3, -9],)),
        idea="drop repeats, sort downwards and take number $k",
    ),
    Family(
        name="rotate",
        level=1,
        takes=(("a", "ints"), ("k", "int")),
        gives="ints",
        wanted="the list a rotated k places to the $side",
        note="k may be larger than the list.",
        variants=({"side": "left"}, {"side": "right"}),
        solution="""
def rotate(a, k):
    if not a:
        return []
    k %= len(a)
    if "$side" == "right":
        k = len(a) - k
    return a[k:] + a[:k]
""",
        answer=lambda a, k, side: [
            a[(i + (k if side == "left" else -k)) % len(a)] for i in range(len(a))
        ],
        draw=lambda rng, size: (integers(rng, size, 0, 99), integer(rng, 0, 3 * size)),
        edges=(([], 3), ([1], 5), ([1, 2, 3], 0), ([1, 2, 3], 3), ([1, 2, 3], 10**9)),
        idea="cut the list at k modulo its length and swap the parts",
    ),
    Family(
        name="pairs_with_sum",
        level=2,
        takes=(("a", "ints"), ("target", "int")),
        gives="int",
        wanted="how many pairs of positions i < j have a[i] + a[j] equal to target",
        solution="""
def pairs_with_sum(a, target):
    seen = {}
    count = 0
    for value in a:
        count += seen.get(target - value, 0)
        seen[value] = seen.get(value, 0) + 1
    return count
""",
        answer=_pairs,
        draw=lambda rng, size: (integers(rng, size, -9, 9), integer(rng, -9, 9)),
        edges=(([], 0), ([4], 8), ([4, 4, 4], 8), ([1, -1, 1], 0), ([0] * 200, 0)),
        idea="count for each number how many earlier ones complete it",
        sizes=(3, 5, 8, 12, 20, 60, 20000),
    ),
    Family(
        name="frequent",
        level=2,
        takes=(("a", "ints"),),
        gives="int",
        wanted="the smallest number that fills more than 1/$k of the list a, or None",
        variants=({"k": 2}, {"k": 3}, {"k": 4}),
        solution="""
def frequent(a):
    counts = {}
    for value in a:
        counts[value] = counts.get(value, 0) + 1
    return min((value for value, n in counts.items() if n * $k > len(a)), default=None)
""",
        answer=lambda a, k: next((v for v in sorted(a) if a.count(v) * k > len(a)), None),
        draw=lambda rng, size: (integers(rng, size, 1, 3),),
        edges=(([],), ([9],), ([1, 2],), ([1, 1, 2, 2],), ([5, 5, 5, 2, 1, 0],)),
        idea="count every number and compare $k times its count with the length",
        sizes=(3, 5, 8, 12, 20, 60, 900),
    ),
    Family(
        name="merge_intervals",
        level=3,
        takes=(("spans", "rows"),),
        gives="rows",
        wanted="the union of the closed intervals [start, end] as intervals in ascending order "
        "that neither overlap nor touch",
        solution="""
def merge_intervals(spans):
    merged = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged
""",
        answer=_union,
        draw=lambda rng, size: (
            [[s, s + integer(rng, 0, 9)] for s in integers(rng, size, 0, 8 * size)],
        ),
        edges=(
            ([[1, 1]],),
            ([[1, 4], [4, 6]],),
            ([[1, 9], [2, 3]],),
            ([[5, 6], [1, 2]],),
            ([[1, 2], [3, 4], [2, 3]],),
        ),
        idea="sort by start and extend the last interval while the next one begins inside it",
    ),
    Family(
        name="inversions",
        level=4,
        takes=(("a", "ints"),),
        gives="int",
        wanted="how many pairs of positions i < j have a[i] > a[j]",
        note="The list may hold 3000 numbers and more.",
        solution="""
def inversions(a):
    def sort(values):
        if len(values) < 2:
            return values, 0
        middle = len(values) // 2
        left, count_left = sort(values[:middle])
        right, count_right = sort(values[middle:])
        merged, count, i = [], count_left + count_right, 0
        for value in right:
            while i < len(left) and left[i] <= value:
                merged.append(left[i])
                i += 1
            count += len(left) - i
            merged.append(value)
        return merged + left[i:], count

    return sort(a)[1]
""",
        answer=_inversions,
        draw=lambda rng, size: (integers(rng, size, 0, 3 * size),),
        edges=(([],), ([1],), ([2, 1],), ([1, 1, 1],), (list(range(200, 0, -1)),)),
        idea="count them while merge sorting: what is left of the left half is larger",
        sizes=(3, 5, 8, 12, 20, 60, 3000),
    ),
    Family(
        name="closest_pair",
        level=2,
        takes=(("a", "ints"),),
        gives="int",
        wanted="the smallest difference between two numbers of a at different positions",
        solution="""
def closest_pair(a):
    values = sorted(a)
    return min(y - x for x, y in zip(values, values[1:]))
""",
        answer=lambda a: min(abs(x - y) for x, y in itertools.combinations(a, 2)),
        draw=lambda rng, size: (integers(rng, size + 1, -10 * size, 10 * size),),
        edges=(([1, 1],), ([5, -5],), ([10, 4, 7, 1],), ([0, 100, 200],), ([-3, -8, -9],)),
        idea="after sorting only neighbours matter",
        sizes=(3, 5, 8, 12, 20, 60, 400),
    ),
    Family(
        name="drop_repeats",
        level=1,
        takes=(("a", "ints"),),
        gives="ints",
        wanted="the list a with only the $which occurrence of every number, in the old order",
        variants=({"which": "first"}, {"which": "last"}),
        solution="""
def drop_repeats(a):
    order = a if "$which" == "first" else a[::-1]
    kept = list(dict.fromkeys(order))
    return kept if "$which" == "first" else kept[::-1]
""",
        answer=_dedupe,
        draw=lambda rng, size: (integers(rng, size + 2, 0, size),),
        edges=(([1],), ([2, 2, 2],), ([1, 2, 1],), ([3, 1, 3, 2, 1],), ([-1, 1, -1],)),
        idea="remember what was seen; for the last occurrence go backwards",
        sizes=(3, 5, 8, 12, 20, 60, 900),
    ),
    Family(
        name="h_index",
        level=2,
        takes=(("citations", "ints"),),
        gives="int",
        wanted="the greatest h such that at least h of the numbers are at least h",
        solution="""
def h_index(citations):
    ranked = sorted(citations, reverse=True)
    h = 0
    while h < len(ranked) and ranked[h] > h:
        h += 1
    return h
""",
        answer=lambda citations: max(
            h for h in range(len(citations) + 1) if sum(c >= h for c in citations) >= h
        ),
        draw=lambda rng, size: (integers(rng, size, 0, size + 3),),
        edges=(([],), ([0],), ([100],), ([1, 1, 1],), ([4, 4, 4, 4],)),
        idea="sort downwards and count while the number exceeds its rank",
        sizes=(3, 5, 8, 12, 20, 60, 300),
    ),
    Family(
        name="twice_the_median",
        level=2,
        takes=(("a", "ints"), ("b", "ints")),
        gives="int",
        wanted="twice the median of all numbers of the two sorted lists together",
        note="They are not both empty.",
        solution="""
def twice_the_median(a, b):
    both = sorted(a + b)
    return both[len(both) // 2] + both[(len(both) - 1) // 2]
""",
        answer=lambda a, b: int(2 * statistics.median(a + b)),
        draw=lambda rng, size: (
            sorted(integers(rng, size, -30, 30)),
            sorted(integers(rng, integer(rng, 0, size), -30, 30)),
        ),
        edges=(([], [1]), ([1, 2], []), ([1, 3], [2]), ([5, 5], [5]), ([-9, 0], [4, 8])),
        idea="merge them; the median is the middle number or the mean of the two middle ones",
    ),
)
