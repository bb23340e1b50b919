"""Problems that dynamic programming solves: sums, coins, loads, chains."""

from __future__ import annotations

import itertools
from functools import cache

from ragen2.envs.deepcoder.problems.draws import integer, integers, word
from ragen2.envs.deepcoder.problems.family import Family


def _fewest_coins(coins: list[int], amount: int) -> int:
    """Amounts reachable with one coin more each round."""
    reached, rounds = {0}, 0
    while amount not in reached:
        more = {total + coin for total in reached for coin in coins if total + coin <= amount}
        if more <= reached:
            return -1
        reached, rounds = reached | more, rounds + 1
    return rounds


def _ways_to_pay(coins: list[int], amount: int) -> int:
    @cache
    def ways(index: int, left: int) -> int:
        if left == 0:
            return 1
        if left < 0 or index == len(coins):
            return 0
        return ways(index, left - coins[index]) + ways(index + 1, left)

    return ways(0, amount)


def _common_length(left: str, right: str) -> int:
    @cache
    def length(i: int, j: int) -> int:
        if i == len(left) or j == len(right):
            return 0
        if left[i] == right[j]:
            return 1 + length(i + 1, j + 1)
        return max(length(i + 1, j), length(i, j + 1))

    return length(0, 0)


def _multiplications(sizes: list[int]) -> int:
    @cache
    def cost(first: int, last: int) -> int:
        if last - first < 2:
            return 0
        return min(
            cost(first, cut) + cost(cut, last) + sizes[first] * sizes[cut] * sizes[last]
            for cut in range(first + 1, last)
        )

    return cost(0, len(sizes) - 1)


def _subset_sums(values: list[int]) -> set[int]:
    sums = {0}
    for value in values:
        sums |= {total + value for total in sums}
    return sums


def _stairs(stairs: int, longest: int) -> int:
    @cache
    def ways(left: int) -> int:
        return (
            1 if left == 0 else sum(ways(left - step) for step in range(1, min(left, longest) + 1))
        )

    return ways(stairs)


FAMILIES = (
    Family(
        name="fewest_coins",
        level=4,
        takes=(("coins", "ints"), ("amount", "int")),
        gives="int",
        wanted="the least number of coins, each as often as wanted, that sum to amount, or -1",
        solution="""
def fewest_coins(coins, amount):
    best = [0] + [None] * amount
    for total in range(1, amount + 1):
        counts = [best[total - c] for c in coins if c <= total and best[total - c] is not None]
        best[total] = min(counts) + 1 if counts else None
    return -1 if best[amount] is None else best[amount]
""",
        answer=_fewest_coins,
        draw=lambda rng, size: (
            sorted(set(integers(rng, 3, 2, 12 + size))),
            integer(rng, 0, 10 * size),
        ),
        edges=(([1, 3, 4], 6), ([5], 0), ([2], 3), ([7, 11], 300), ([1, 15, 25], 30)),
        idea="solve every smaller amount first; taking the largest coin is not always best",
        sizes=(3, 4, 6, 8, 12, 20, 30),
    ),
    Family(
        name="ways_to_pay",
        level=4,
        takes=(("coins", "ints"), ("amount", "int")),
        gives="int",
        wanted="in how many ways amount is a sum of coins, where order does not matter and each "
        "coin may be used again",
        note="The coins are all different.",
        solution="""
def ways_to_pay(coins, amount):
    ways = [1] + [0] * amount
    for c in coins:
        for total in range(c, amount + 1):
            ways[total] += ways[total - c]
    return ways[amount]
""",
        answer=_ways_to_pay,
        draw=lambda rng, size: (
            sorted(set(integers(rng, 4, 1, 9 + size))),
            integer(rng, 1, 6 * size),
        ),
        edges=(([1, 2, 5], 5), ([3], 0), ([2], 3), ([5, 2, 1], 11), ([1], 40)),
        idea="add the coins one kind at a time to the ways of every amount",
        sizes=(3, 4, 6, 8, 12, 16, 24),
    ),
    Family(
        name="best_load",
        level=4,
        takes=(("weights", "ints"), ("values", "ints"), ("limit", "int")),
        gives="int",
        wanted="the greatest total value of things whose total weight is at most limit, each "
        "taken once at most",
        solution="""
def best_load(weights, values, limit):
    best = [0] * (limit + 1)
    for w, v in zip(weights, values):
        for room in range(limit, w - 1, -1):
            best[room] = max(best[room], best[room - w] + v)
    return best[limit]
""",
        answer=lambda weights, values, limit: max(
            sum(values[i] for i in chosen)
            for count in range(len(weights) + 1)
            for chosen in itertools.combinations(range(len(weights)), count)
            if sum(weights[i] for i in chosen) <= limit
        ),
        draw=lambda rng, size: (
            integers(rng, size, 1, 12),
            integers(rng, size, 1, 30),
            integer(rng, 5, 5 * size),
        ),
        edges=(
            ([], [], 10),
            ([5], [9], 4),
            ([5], [9], 5),
            ([3, 3, 4], [5, 5, 8], 6),
            ([1, 2, 3], [6, 10, 12], 5),
        ),
        idea="for each thing, from large room to small, take it or leave it",
        sizes=(3, 4, 5, 6, 8, 10, 13),
    ),
    Family(
        name="common_length",
        level=4,
        takes=(("s", "text"), ("t", "text")),
        gives="int",
        wanted="the length of the longest text that one gets from s and also from t by deleting "
        "letters",
        solution="""
def common_length(s, t):
    row = [0] * (len(t) + 1)
    for a in s:
        before = 0
        for j, b in enumerate(t, start=1):
            before, row[j] = row[j], before + 1 if a == b else max(row[j], row[j - 1])
    return row[-1]
""",
        answer=_common_length,
        draw=lambda rng, size: (word(rng, size + 1, "abc"), word(rng, size, "abcd")),
        edges=(("", "abc"), ("abc", "abc"), ("abc", "xyz"), ("abcb", "bdcab"), ("aa", "a")),
        idea="extend the best of two prefixes when their last letters agree",
    ),
    Family(
        name="stair_ways",
        level=2,
        takes=(("n", "int"),),
        gives="int",
        wanted="in how many ways one can climb n stairs, taking 1 to $k at a time, modulo 1000007",
        variants=({"k": 2}, {"k": 3}, {"k": 5}),
        solution="""
def stair_ways(n):
    ways = [1]
    for stair in range(1, n + 1):
        ways.append(sum(ways[-$k:]) % 1000007)
    return ways[n]
""",
        answer=lambda n, k: _stairs(n, k) % 1000007,
        draw=lambda rng, size: (integer(rng, 0, 3 * size),),
        edges=((0,), (1,), (2,), (6,), (300,)),
        idea="the last step came from one of the $k stairs below",
    ),
    Family(
        name="even_split",
        level=4,
        takes=(("a", "ints"),),
        gives="bool",
        wanted="True if the positive numbers of a can be put in two heaps of equal sum, else False",
        solution="""
def even_split(a):
    total = sum(a)
    sums = 1
    for value in a:
        sums |= sums << value
    return total % 2 == 0 and bool(sums >> total // 2 & 1)
""",
        answer=lambda a: sum(a) % 2 == 0 and sum(a) // 2 in _subset_sums(a),
        draw=lambda rng, size: (integers(rng, size, 1, 30),),
        edges=(([],), ([2],), ([1, 5, 11, 5],), ([1, 2, 5],), ([100, 1, 1, 98],)),
        idea="collect all sums of subsets and look for half the total",
        sizes=(3, 4, 5, 6, 8, 12, 30),
    ),
    Family(
        name="chain_product",
        level=5,
        takes=(("sizes", "ints"),),
        gives="int",
        wanted="the least number of multiplications that the product of a chain of matrices "
        "takes, where matrix i is sizes[i] x sizes[i+1] and a p x q times a q x r matrix "
        "takes p*q*r",
        solution="""
def chain_product(sizes):
    n = len(sizes)
    cost = [[0] * n for _ in range(n)]
    for length in range(2, n):
        for i in range(n - length):
            j = i + length
            cost[i][j] = min(
                cost[i][k] + cost[k][j] + sizes[i] * sizes[k] * sizes[j] for k in range(i + 1, j)
            )
    return cost[0][n - 1]
""",
        answer=_multiplications,
        draw=lambda rng, size: (integers(rng, size, 1, 20),),
        edges=(
            ([2, 3],),
            ([2, 3, 4],),
            ([10, 1, 10, 1],),
            ([1, 1, 1, 1],),
            ([40, 20, 30, 10, 30],),
        ),
        idea="try every last cut, with the best cost of all shorter chains",
        sizes=(3, 4, 5, 6, 8, 12, 20),
    ),
)
