"""Problems about integers: digits, divisors, primes and powers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ragen2.envs.deepcoder.problems.draws import integer, integers, long_integer
from ragen2.envs.deepcoder.problems.family import Family


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % other for other in range(2, math.isqrt(number) + 1))


def _digits(number: int, base: int) -> list[int]:
    return [*_digits(number // base, base), number % base] if number >= base else [number]


def _fibonacci(index: int, modulus: int) -> int:
    """By powers of a 2x2 matrix."""
    result: tuple[int, ...] = (1, 0, 0, 1)
    power: tuple[int, ...] = (1, 1, 1, 0)
    while index:
        if index % 2:
            result = _times(result, power, modulus)
        power = _times(power, power, modulus)
        index //= 2
    return result[1]


def _times(left: tuple[int, ...], right: tuple[int, ...], modulus: int) -> tuple[int, ...]:
    a, b, c, d = left
    e, f, g, h = right
    return tuple(
        value % modulus for value in (a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h)
    )


def _collatz(number: int) -> Iterator[int]:
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        yield number


def _power(base: int, exponent: int, modulus: int) -> int:
    """From the top bit of the exponent down."""
    value = 1
    for bit in bin(exponent)[2:]:
        value = value * value * (base if bit == "1" else 1) % modulus
    return value


def _divisor_class(number: int) -> str:
    total = sum(value for value in range(1, number // 2 + 1) if number % value == 0)
    return {True: "abundant", False: "deficient"}[total > number] if total != number else "perfect"


def _root_by_digits(number: int, power: int) -> int:
    """Bit by bit from the top."""
    root = 0
    for bit in range(number.bit_length() // power + 1, -1, -1):
        if (root | 1 << bit) ** power <= number:
            root |= 1 << bit
    return root


FAMILIES = (
    Family(
        name="sum_of_multiples",
        level=1,
        takes=(("n", "int"),),
        gives="int",
        wanted="the sum of all integers from 1 to n that are divisible by $k",
        variants=({"k": 3}, {"k": 4}, {"k": 7}),
        solution="""
def sum_of_multiples(n):
    count = max(n, 0) // $k
    return $k * count * (count + 1) // 2
""",
        answer=lambda n, k: sum(value for value in range(1, n + 1) if value % k == 0),
        draw=lambda rng, size: (integer(rng, 1, size**3),),
        edges=((0,), (1,), (-5,), (84,)),
        idea="there are n // $k multiples, and they sum to $k times a triangle number",
    ),
    Family(
        name="count_divisors",
        level=2,
        takes=(("n", "int"),),
        gives="int",
        wanted="how many positive divisors of n are at least $k",
        variants=({"k": 1}, {"k": 3}, {"k": 10}),
        solution="""
def count_divisors(n):
    count = 0
    d = 1
    while d * d <= n:
        if n % d == 0:
            count += (d >= $k) + (n // d >= $k and n // d != d)
        d += 1
    return count
""",
        answer=lambda n, k: sum(n % value == 0 for value in range(k, n + 1)),
        draw=lambda rng, size: (integer(rng, 1, 12 * size**2),),
        edges=((1,), (2,), (49,), (97,), (40320,)),
        idea="try every d up to the square root of n and count d and n // d",
    ),
    Family(
        name="collatz_steps",
        level=1,
        takes=(("n", "int"),),
        gives="int",
        wanted="how many steps it takes from n to 1, where an even x becomes x / 2 and an odd x "
        "becomes 3x + 1",
        solution="""
def collatz_steps(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps
""",
        answer=lambda n: sum(1 for _ in _collatz(n)),
        draw=lambda rng, size: (integer(rng, 1, size**3),),
        edges=((1,), (2,), (27,), (2**60,), (837799,)),
        idea="follow the rule and count until 1 is reached",
    ),
    Family(
        name="power_mod",
        level=2,
        takes=(("b", "int"), ("e", "int")),
        gives="int",
        wanted="the remainder of b to the power e on division by $m (e is at least 0)",
        variants=({"m": 97}, {"m": 1009}, {"m": 1000007}),
        solution="""
def power_mod(b, e):
    return pow(b, e, $m)
""",
        answer=_power,
        draw=lambda rng, size: (integer(rng, -(size**2), size**3), integer(rng, 0, size**8)),
        edges=((5, 0), (0, 0), (0, 7), (-2, 3), (123456789, 10**18)),
        idea="square and multiply modulo $m, which pow does",
    ),
    Family(
        name="count_primes",
        level=2,
        takes=(("n", "int"),),
        gives="int",
        wanted="how many primes p up to n (n included) leave remainder $r on division by 4",
        variants=({"r": 1}, {"r": 3}),
        solution="""
def count_primes(n):
    sieve = [True] * (max(n, 1) + 1)
    count = 0
    for p in range(2, n + 1):
        if sieve[p]:
            count += p % 4 == $r
            for multiple in range(p * p, n + 1, p):
                sieve[multiple] = False
    return count
""",
        answer=lambda n, r: sum(_is_prime(value) for value in range(r, n + 1, 4)),
        draw=lambda rng, size: (integer(rng, 2, 4 * size**2),),
        edges=((0,), (1,), (3,), (5,), (30000,)),
        idea="sieve the numbers up to n and look at each prime modulo 4",
    ),
    Family(
        name="common_divisor",
        level=1,
        takes=(("a", "ints"),),
        gives="int",
        wanted="the greatest positive integer that divides every number of a",
        note="If a is empty or all zero, the answer is 0.",
        solution="""
def common_divisor(a):
    result = 0
    for value in a:
        value = abs(value)
        while value:
            result, value = value, result % value
    return result
""",
        answer=lambda a: math.gcd(*a),
        draw=lambda rng, size: (
            [integer(rng, 1, 9) * value for value in integers(rng, size, -30, 30)]
            if integer(rng, 0, 1)
            else [12 * value for value in integers(rng, size, 1, 50)],
        ),
        edges=(([],), ([0, 0],), ([0, -6],), ([7],), ([-4, -6],)),
        idea="fold Euclid's algorithm over the list",
    ),
    Family(
        name="common_multiple",
        level=2,
        takes=(("a", "ints"),),
        gives="int",
        wanted="the least positive integer that every number of a divides",
        note="All numbers are positive; for an empty list the answer is 1.",
        solution="""
def common_multiple(a):
    result = 1
    for value in a:
        x, y = result, value
        while y:
            x, y = y, x % y
        result = result // x * value
    return result
""",
        answer=lambda a: math.lcm(*a),
        draw=lambda rng, size: (integers(rng, size, 1, 30),),
        edges=(([],), ([1],), ([6, 4],), ([5, 5, 5],), (list(range(1, 60)),)),
        idea="fold x * y // gcd(x, y) over the list",
    ),
    Family(
        name="factorial_valuation",
        level=3,
        takes=(("n", "int"),),
        gives="int",
        wanted="the greatest x such that $p to the power x divides n! (n factorial)",
        variants=({"p": 2}, {"p": 3}, {"p": 5}),
        solution="""
def factorial_valuation(n):
    total = 0
    while n:
        n //= $p
        total += n
    return total
""",
        answer=lambda n, p: (n - sum(_digits(n, p))) // (p - 1),
        draw=lambda rng, size: (integer(rng, 0, size**5),),
        edges=((0,), (1,), (25,), (243,), (10**18,)),
        idea="add n // $p, n // $p^2 and so on",
    ),
    Family(
        name="fibonacci_tail",
        level=3,
        takes=(("n", "int"),),
        gives="int",
        wanted="the n-th Fibonacci number modulo $m, where number 0 is 0 and number 1 is 1",
        variants=({"m": 10}, {"m": 1000}, {"m": 1000003}),
        solution="""
def fibonacci_tail(n):
    def pair(k):
        if k == 0:
            return 0, 1
        a, b = pair(k // 2)
        c = a * (2 * b - a) % $m
        d = (a * a + b * b) % $m
        return (c, d) if k % 2 == 0 else (d, (c + d) % $m)

    return pair(n)[0]
""",
        answer=_fibonacci,
        draw=lambda rng, size: (integer(rng, 0, size**4),),
        edges=((0,), (1,), (2,), (100,), (10**15,)),
        idea="double the index: F(2k) and F(2k+1) follow from F(k) and F(k+1)",
    ),
    Family(
        name="integer_root",
        level=3,
        takes=(("n", "int"),),
        gives="int",
        wanted="the greatest integer x with x to the power $k at most n (n is at least 0, and "
        "may be huge)",
        variants=({"k": 2}, {"k": 3}, {"k": 5}),
        solution="""
def integer_root(n):
    low, high = 0, 1
    while high ** $k <= n:
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if middle ** $k <= n:
            low = middle
        else:
            high = middle
    return low
""",
        answer=_root_by_digits,
        draw=lambda rng, size: (long_integer(rng, size),),
        edges=((0,), (1,), (10**30 - 1,), (10**30,), (7**60 + 1,)),
        idea="halve an interval with exact integers; floats are too coarse",
        sizes=(2, 4, 8, 12, 20, 40, 60),
    ),
    Family(
        name="divisor_class",
        level=2,
        takes=(("n", "int"),),
        gives="text",
        wanted="perfect, abundant or deficient as the sum of the divisors of n below n equals, "
        "exceeds or is less than n",
        solution="""
def divisor_class(n):
    total = 1 if n > 1 else 0
    d = 2
    while d * d <= n:
        if n % d == 0:
            total += d
            if d != n // d:
                total += n // d
        d += 1
    if total == n:
        return "perfect"
    return "abundant" if total > n else "deficient"
""",
        answer=_divisor_class,
        draw=lambda rng, size: (integer(rng, 2, 5 * size**2),),
        edges=((1,), (6,), (12,), (28,), (16,), (8128,)),
        idea="add up the divisors below n in pairs and compare",
    ),
)
