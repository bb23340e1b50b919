"""Problems about choosing well: intervals, jumps, trades, sequences."""

from __future__ import annotations

import itertools

from ragen2.envs.deepcoder.problems.draws import integer, integers, word, words
from ragen2.envs.deepcoder.problems.family import Family

_FAR = 10**9


def _best_rise(values: list[int], strict: bool) -> int:
    best: list[int] = []
    for index, value in enumerate(values):
        before = [
            best[other]
            for other in range(index)
            if values[other] < value or (not strict and values[other] == value)
        ]
        best.append(1 + max(before, default=0))
    return max(best, default=0)


def _profit(prices: list[int], trades: int) -> int:
    """Best money at every price after so many trades, holding or not."""
    idle, holding = [0] * (trades + 1), [-_FAR] * (trades + 1)
    for price in prices:
        for used in range(trades, 0, -1):
            idle[used] = max(idle[used], holding[used] + price)
            holding[used] = max(holding[used], idle[used - 1] - price)
    return max(idle)


def _cut_text(vocabulary: list[str], picks: list[int]) -> tuple[str, list[str]]:
    """A text made of words, and all of them but one, which may have been needed."""
    return "".join(vocabulary[pick] for pick in picks), vocabulary[1:]


def _can_split(text: str, vocabulary: tuple[str, ...]) -> bool:
    """Follow all places reached, one word further each time."""
    reached, fresh = {0}, {0}
    while fresh:
        fresh = {
            place + len(part)
            for place in fresh
            for part in vocabulary
            if text.startswith(part, place)
        } - reached
        reached |= fresh
    return len(text) in reached


def _most_apart(spans: list[list[int]]) -> int:
    best: list[int] = []
    for start, end in spans:
        before = [
            best[other]
            for other in range(len(best))
            if spans[other][1] <= start and spans[other] != [start, end]
        ]
        best.append(1 + max(before, default=0))
    return max(best, default=0)


def _jumps(reach: list[int]) -> int:
    """Breadth first over places."""
    places, jumps, seen = {0}, 0, {0}
    while places:
        if len(reach) - 1 in places:
            return jumps
        places = {
            to
            for place in places
            for to in range(place, min(place + reach[place], len(reach) - 1) + 1)
        } - seen
        seen |= places
        jumps += 1
    return -1


FAMILIES = (
    Family(
        name="best_apart",
        level=3,
        takes=(("a", "ints"),),
        gives="int",
        wanted="the greatest sum of numbers of a of which no two are neighbours",
        note="Taking none gives 0.",
        solution="""
def best_apart(a):
    without = taken = 0
    for value in a:
        without, taken = max(without, taken), without + value
    return max(without, taken, 0)
""",
        answer=lambda a: max(
            sum(value for value, take in zip(a, picks, strict=True) if take)
            for picks in itertools.product((0, 1), repeat=len(a))
            if not any(x and y for x, y in itertools.pairwise(picks))
        ),
        draw=lambda rng, size: (integers(rng, size, -5, 20),),
        edges=(([],), ([-4],), ([5, 1, 1, 5],), ([2, 7, 9, 3, 1],), ([3, 3, 3],)),
        idea="carry the best sum with and without the last number",
        sizes=(3, 4, 6, 8, 10, 12, 13),
    ),
    Family(
        name="can_split",
        level=3,
        takes=(("s", "text"), ("words", "words")),
        gives="bool",
        wanted="True if s can be cut into words of the list, each as often as wanted, else False",
        solution="""
def can_split(s, words):
    reached = [True] + [False] * len(s)
    for end in range(1, len(s) + 1):
        reached[end] = any(
            len(w) <= end and reached[end - len(w)] and s[end - len(w):end] == w for w in words
        )
    return reached[-1]
""",
        answer=lambda s, words: _can_split(s, tuple(words)),
        draw=lambda rng, size: _cut_text(words(rng, 5, 3, "ab"), integers(rng, size, 0, 4)),
        edges=(
            ("", ["a"]),
            ("ab", []),
            ("aaab", ["a", "aa"]),
            ("abab", ["ab"]),
            ("a" * 80 + "b", ["a", "aa", "aaa"]),
        ),
        idea="mark every end that a word reaches from a marked start",
    ),
    Family(
        name="longest_mirror",
        level=4,
        takes=(("s", "text"),),
        gives="int",
        wanted="the length of the longest stretch of s that reads the same backwards",
        solution="""
def longest_mirror(s):
    best = 0
    for middle in range(2 * len(s) - 1):
        left = middle // 2
        right = left + middle % 2
        while left >= 0 and right < len(s) and s[left] == s[right]:
            best = max(best, right - left + 1)
            left, right = left - 1, right + 1
    return best
""",
        answer=lambda s: max(
            (
                j - i
                for i in range(len(s))
                for j in range(i + 1, len(s) + 1)
                if s[i:j] == s[i:j][::-1]
            ),
            default=0,
        ),
        draw=lambda rng, size: (word(rng, size, "ab") + word(rng, size, "abc"),),
        edges=(("",), ("a",), ("abba",), ("abc",), ("aaaa",), ("xabax",)),
        idea="grow from each middle, on a letter or between two",
        sizes=(3, 5, 8, 12, 20, 40, 60),
    ),
    Family(
        name="best_trades",
        level=5,
        takes=(("prices", "ints"),),
        gives="int",
        wanted="the greatest profit from at most $k trades, each buying once and later selling "
        "once, one after the other",
        variants=({"k": 1}, {"k": 2}, {"k": 3}),
        solution="""
def best_trades(prices):
    best = [0] * len(prices)
    for _ in range($k):
        after, margin = [], None
        for day, price in enumerate(prices):
            before = best[day - 1] if day else 0
            margin = before - price if margin is None else max(margin, before - price)
            after.append(max(after[-1] if after else 0, price + margin))
        best = after
    return best[-1] if best else 0
""",
        answer=_profit,
        draw=lambda rng, size: (integers(rng, size + 2, 1, 50),),
        edges=(([],), ([5],), ([5, 4, 3],), ([1, 9],), ([3, 3, 5, 0, 0, 3, 1, 4],)),
        idea="repeat $k times: best profit up to each day, buying out of the profit before",
    ),
    Family(
        name="most_meetings",
        level=3,
        takes=(("spans", "rows"),),
        gives="int",
        wanted="the greatest number of the intervals start end of which no two overlap",
        note="One may start when another ends.",
        solution="""
def most_meetings(spans):
    count, free = 0, None
    for start, end in sorted(spans, key=lambda span: (span[1], span[0])):
        if free is None or start >= free:
            count += 1
            free = end
    return count
""",
        answer=lambda spans: _most_apart(sorted(spans)),
        draw=lambda rng, size: (
            [[s, s + integer(rng, 1, 8)] for s in integers(rng, size, 0, 3 * size)],
        ),
        edges=(
            ([[1, 2]],),
            ([[1, 3], [3, 5]],),
            ([[1, 10], [2, 3], [4, 5]],),
            ([[1, 4], [2, 5]],),
            ([[0, 6], [5, 7], [6, 9]],),
        ),
        idea="always take the interval that ends first",
        sizes=(3, 4, 6, 8, 12, 20, 60),
    ),
    Family(
        name="rooms_needed",
        level=3,
        takes=(("spans", "rows"),),
        gives="int",
        wanted="how many rooms meetings from start to end need if a room is free again at its end",
        solution="""
def rooms_needed(spans):
    changes = sorted([(s, 1) for s, e in spans] + [(e, -1) for s, e in spans])
    rooms = best = 0
    for _, change in changes:
        rooms += change
        best = max(best, rooms)
    return best
""",
        answer=lambda spans: max(
            (sum(s <= moment < e for s, e in spans) for moment, _ in spans), default=0
        ),
        draw=lambda rng, size: (
            [[s, s + integer(rng, 1, 9)] for s in integers(rng, size, 0, 2 * size)],
        ),
        edges=(
            ([[1, 2]],),
            ([[1, 3], [3, 5]],),
            ([[1, 9], [1, 9], [1, 9]],),
            ([[1, 4], [2, 5], [4, 6]],),
            ([[5, 6], [1, 2]],),
        ),
        idea="sort starts and ends, ends first on a tie, and count who is in",
        sizes=(3, 4, 6, 8, 12, 20, 80),
    ),
    Family(
        name="rising_length",
        level=4,
        takes=(("a", "ints"),),
        gives="int",
        wanted="the length of the longest $kind sequence left after deleting numbers from a",
        variants=({"kind": "rising", "side": "left"}, {"kind": "never falling", "side": "right"}),
        solution="""
import bisect

def rising_length(a):
    ends = []
    for value in a:
        place = bisect.bisect_$side(ends, value)
        ends[place:place + 1] = [value]
    return len(ends)
""",
        answer=lambda a, kind, side: _best_rise(a, side == "left"),
        draw=lambda rng, size: (integers(rng, size, 0, size),),
        edges=(([],), ([3, 3, 3],), ([3, 2, 1],), ([1, 3, 2, 4],), ([0, -1, 0, -1],)),
        idea="keep the least end of a sequence of every length and place each number by bisection",
        sizes=(3, 5, 8, 12, 20, 60, 400),
    ),
    Family(
        name="fewest_jumps",
        level=4,
        takes=(("a", "ints"),),
        gives="int",
        wanted="the least number of jumps from the first to the last place of a, where from "
        "place i one may jump up to a[i] places on, or -1",
        solution="""
def fewest_jumps(a):
    jumps = end = reach = 0
    for i in range(len(a) - 1):
        reach = max(reach, i + a[i])
        if i == end:
            if reach <= i:
                return -1
            jumps += 1
            end = reach
    return jumps
""",
        answer=_jumps,
        draw=lambda rng, size: (integers(rng, size, 0, 4),),
        edges=(([0],), ([1, 0],), ([0, 1],), ([2, 3, 1, 1, 4],), ([3, 2, 1, 0, 4],)),
        idea="widen the range reached with each jump",
        sizes=(3, 4, 6, 8, 12, 20, 60),
    ),
)
