"""Problems about ways of writing numbers: bases, Roman numerals, clocks, calendars."""

from __future__ import annotations

import datetime

from ragen2.envs.deepcoder.problems.draws import integer, long_integer
from ragen2.envs.deepcoder.problems.family import Family


def _digits(number: int, base: int) -> list[int]:
    return [*_digits(number // base, base), number % base] if number >= base else [number]


def _roman(number: int) -> str:
    """Place by place, from a table of the ten signs of each place."""
    places = ("I V X", "X L C", "C D M", "M ? ?")
    patterns = ("", "a", "aa", "aaa", "ab", "b", "ba", "baa", "baaa", "ac")
    text = ""
    for place, digit in enumerate(reversed(str(number))):
        signs = dict(zip("abc", places[place].split(), strict=True))
        text = "".join(signs[mark] for mark in patterns[int(digit)]) + text
    return text


def _column(number: int) -> str:
    length, block = 1, 26
    number -= 1
    while number >= block:
        number -= block
        length, block = length + 1, block * 26
    return "".join(chr(65 + number // 26**place % 26) for place in range(length - 1, -1, -1))


FAMILIES = (
    Family(
        name="digit_sum",
        level=1,
        takes=(("n", "int"),),
        gives="int",
        wanted="the sum of the digits of n written in base $base",
        note="n may be negative; its sign does not count.",
        variants=({"base": 10}, {"base": 2}, {"base": 16}),
        solution="""
def digit_sum(n):
    n = abs(n)
    total = 0
    while n:
        total += n % $base
        n //= $base
    return total
""",
        answer=lambda n, base: sum(_digits(abs(n), base)),
        draw=lambda rng, size: (long_integer(rng, 1 + size // 2) * (1 - 2 * integer(rng, 0, 1)),),
        edges=((0,), (-987,), (1,), (255,), (10**30,)),
        idea="take off the last digit in base $base again and again",
    ),
    Family(
        name="to_base",
        level=2,
        takes=(("n", "int"),),
        gives="text",
        wanted="n written in base $base",
        note="A negative n starts with a minus sign.",
        variants=({"base": 2}, {"base": 3}, {"base": 5}, {"base": 7}),
        solution="""
def to_base(n):
    if n == 0:
        return "0"
    digits = ""
    rest = abs(n)
    while rest:
        digits = str(rest % $base) + digits
        rest //= $base
    return "-" + digits if n < 0 else digits
""",
        answer=lambda n, base: ("-" if n < 0 else "") + "".join(map(str, _digits(abs(n), base))),
        draw=lambda rng, size: (integer(rng, -(size**3), size**6),),
        edges=((0,), (1,), (-1,), (-343,), (10**18,)),
        idea="divide by $base again and again and collect the remainders backwards",
    ),
    Family(
        name="leap_years",
        level=2,
        takes=(("a", "int"), ("b", "int")),
        gives="int",
        wanted="how many years from a to b (both included) are leap years in the Gregorian "
        "calendar",
        note="If a is greater than b, the answer is 0.",
        solution="""
def leap_years(a, b):
    def up_to(year):
        return year // 4 - year // 100 + year // 400

    return max(0, up_to(b) - up_to(a - 1)) if a <= b else 0
""",
        answer=lambda a, b: sum(
            (datetime.date(year, 3, 1) - datetime.timedelta(days=1)).day == 29
            for year in range(a, b + 1)
        ),
        draw=lambda rng, size: (integer(rng, 1500, 2000), integer(rng, 1900, 2000 + 10 * size)),
        edges=((1900, 1900), (2000, 2000), (2004, 2003), (1600, 2400), (1, 9998)),
        idea="count multiples of 4, not of 100, but of 400",
    ),
    Family(
        name="to_roman",
        level=2,
        takes=(("n", "int"),),
        gives="text",
        wanted="n (from 1 to 3999) as a Roman numeral",
        solution="""
def to_roman(n):
    signs = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"),
             (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
    text = ""
    for value, sign in signs:
        while n >= value:
            text += sign
            n -= value
    return text
""",
        answer=_roman,
        draw=lambda rng, size: (integer(rng, 1, min(3999, 40 * size)),),
        edges=((1,), (4,), (49,), (944,), (3999,)),
        idea="take the greatest sign that fits, with CM, XL and so on as signs of their own",
    ),
    Family(
        name="from_roman",
        level=2,
        takes=(("s", "text"),),
        gives="int",
        wanted="the value of the Roman numeral s",
        solution="""
def from_roman(s):
    values = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
    total = 0
    for here, after in zip(s, s[1:] + " "):
        value = values[here]
        total += -value if values.get(after, 0) > value else value
    return total
""",
        answer=lambda s: next(value for value in range(1, 4000) if _roman(value) == s),
        draw=lambda rng, size: (_roman(integer(rng, 1, min(3999, 40 * size))),),
        edges=(("I",), ("IV",), ("MCMXCIV",), ("XLIX",), ("MMMCMXCIX",)),
        idea="a sign before a greater one counts negative",
    ),
    Family(
        name="clock_text",
        level=1,
        takes=(("seconds", "int"),),
        gives="text",
        wanted="the duration of that many seconds as h:mm:ss, with minutes and seconds in two "
        "digits",
        solution="""
def clock_text(seconds):
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02d}:{second:02d}"
""",
        answer=lambda seconds: (
            f"{seconds // 3600}:{str(seconds // 60 % 60).zfill(2)}:{str(seconds % 60).zfill(2)}"
        ),
        draw=lambda rng, size: (integer(rng, 0, size**4),),
        edges=((0,), (59,), (60,), (3599,), (3600,), (360000,)),
        idea="divide by 60 twice and pad with zeros",
    ),
    Family(
        name="ones_up_to",
        level=3,
        takes=(("n", "int"),),
        gives="int",
        wanted="how many digits 1 there are in all numbers from 1 to n together, written in "
        "base $base",
        variants=({"base": 2}, {"base": 10}),
        solution="""
def ones_up_to(n):
    total = 0
    place = 1
    while place <= n:
        left, here = divmod(n // place, $base)
        total += left * place
        if here > 1:
            total += place
        elif here == 1:
            total += n % place + 1
        place *= $base
    return total
""",
        answer=lambda n, base: sum(_digits(value, base).count(1) for value in range(1, n + 1)),
        draw=lambda rng, size: (integer(rng, 1, 4 * size**2),),
        edges=((0,), (1,), (2,), (111,), (16383,)),
        idea="count place by place how often the digit is 1",
    ),
    Family(
        name="column_name",
        level=3,
        takes=(("n", "int"),),
        gives="text",
        wanted="the name of column n of a spreadsheet: A is 1, Z is 26, AA is 27",
        solution="""
def column_name(n):
    name = ""
    while n:
        n, rest = divmod(n - 1, 26)
        name = chr(65 + rest) + name
    return name
""",
        answer=_column,
        draw=lambda rng, size: (integer(rng, 1, size**4),),
        edges=((1,), (26,), (27,), (702,), (703,), (10**15,)),
        idea="divide n - 1 by 26, since there is no digit zero",
    ),
)
