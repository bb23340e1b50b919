"""Problems about texts with a structure: runs, brackets, nesting, expressions."""

from __future__ import annotations

import itertools
import re

from ragen2.envs.deepcoder.problems.draws import integer, word
from ragen2.envs.deepcoder.problems.family import Family


def _is_balanced(text: str, pairs: str) -> bool:
    """By deleting adjacent pairs until none is left."""
    kept = "".join(mark for mark in text if mark in pairs)
    while True:
        shorter = kept
        for index in range(0, len(pairs), 2):
            shorter = shorter.replace(pairs[index : index + 2], "")
        if shorter == kept:
            return not kept
        kept = shorter


def _runs(text: str) -> list[tuple[str, int]]:
    return [(mark, len(list(group))) for mark, group in itertools.groupby(text)]


def _edit_distance(left: str, right: str) -> int:
    """Row by row over all prefixes."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, start=1):
        before, row[0] = row[0], i
        for j, b in enumerate(right, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


def _unfold(text: str) -> str:
    """Innermost brackets first, until none is left."""
    while "[" in text:
        text = re.sub(r"(\d)\[([a-z]*)\]", lambda found: int(found[1]) * found[2], text)
    return text


def _nested(marks: str) -> str:
    """A folded text: each ``<`` opens a bracket, which is closed two marks later or at the end."""
    text = ""
    open_at: list[int] = []
    for index, mark in enumerate(marks):
        while open_at and open_at[-1] + 2 < index:
            open_at.pop()
            text += "]"
        if mark == "<":
            text += f"{1 + index % 3}["
            open_at.append(index)
        else:
            text += mark
    return text + "]" * len(open_at)


def _expression(marks: str) -> str:
    """An expression: operators between small numbers, brackets closed at the end."""
    text, depth = "3", 0
    for index, mark in enumerate(marks):
        if mark in "+-*":
            text += f" {mark} {index % 12}"
        elif mark == "(" and depth < 4:
            text += f" + ({index % 7}"
            depth += 1
        elif depth and mark == "a":
            text += ")"
            depth -= 1
    return text + ")" * depth


def _reduce(text: str) -> int:
    """By rewriting: innermost brackets, then products, then sums. ``~`` is a minus sign."""
    while "(" in text:
        text = re.sub(r"\(([^()]*)\)", lambda found: str(_reduce(found[1])).replace("-", "~"), text)
    while "*" in text:
        text = re.sub(
            r"([~\d]+)\*([~\d]+)",
            lambda found: str(_signed(found[1]) * _signed(found[2])).replace("-", "~"),
            text,
            count=1,
        )
    return sum(
        _signed(part) * (-1 if sign == "-" else 1)
        for sign, part in re.findall(r"([+-]?)([~\d]+)", text)
    )


def _signed(text: str) -> int:
    return int(text.replace("~", "-"))


FAMILIES = (
    Family(
        name="run_lengths",
        level=2,
        takes=(("s", "text"),),
        gives="text",
        wanted="s with each run of equal letters written as the letter and the run's length",
        solution="""
def run_lengths(s):
    result = ""
    i = 0
    while i < len(s):
        j = i
        while j < len(s) and s[j] == s[i]:
            j += 1
        result += s[i] + str(j - i)
        i = j
    return result
""",
        answer=lambda s: "".join(f"{mark}{count}" for mark, count in _runs(s)),
        draw=lambda rng, size: ("".join(c * integer(rng, 1, 12) for c in word(rng, size, "abc")),),
        edges=(("",), ("a",), ("aaaaaaaaaaaa",), ("abab",), ("zzzyyx",)),
        idea="walk along, counting while the letter stays the same",
    ),
    Family(
        name="expand_runs",
        level=2,
        takes=(("s", "text"),),
        gives="text",
        wanted="the text that s encodes, where a letter and a number stand for that many of the "
        "letter",
        solution="""
import re

def expand_runs(s):
    return "".join(c * int(n) for c, n in re.findall(r"([a-z])([0-9]+)", s))
""",
        answer=lambda s: "".join(
            s[i] * int("".join(itertools.takewhile(str.isdigit, s[i + 1 :])))
            for i in range(len(s))
            if s[i].isalpha()
        ),
        draw=lambda rng, size: (
            "".join(f"{c}{integer(rng, 1, 14)}" for c in word(rng, size, "abcz")),
        ),
        edges=(("a1",), ("b12",), ("a1b1a1",), ("x10y0z2",), ("q100",)),
        idea="split into letters and numbers of any length",
    ),
    Family(
        name="is_balanced",
        level=2,
        takes=(("s", "text"),),
        gives="bool",
        wanted="True if the brackets $pairs in s are closed in the right order, else False",
        note="Other characters do not count.",
        variants=({"pairs": "()"}, {"pairs": "()[]"}, {"pairs": "()[]{}"}),
        solution="""
def is_balanced(s):
    opener = {")": "(", "]": "[", "}": "{"}
    stack = []
    for c in s:
        if c not in "$pairs":
            continue
        if c not in opener:
            stack.append(c)
        elif not stack or stack.pop() != opener[c]:
            return False
    return not stack
""",
        answer=_is_balanced,
        draw=lambda rng, size: (
            (w := word(rng, size, "([{a"))
            + "".join({"(": ")", "[": "]", "{": "}"}.get(c, c) for c in w[::-1])[
                integer(rng, 0, 1) :
            ],
        ),
        edges=(("",), ("(",), (")(",), ("([)]",), ("{[()()]}",), ("a)b(c",)),
        idea="push openers on a stack and match every closer with the top",
    ),
    Family(
        name="longest_distinct",
        level=3,
        takes=(("s", "text"),),
        gives="int",
        wanted="the length of the longest stretch of s in which no character occurs twice",
        solution="""
def longest_distinct(s):
    last = {}
    start = best = 0
    for i, c in enumerate(s):
        if last.get(c, -1) >= start:
            start = last[c] + 1
        last[c] = i
        best = max(best, i - start + 1)
    return best
""",
        answer=lambda s: max(
            (
                j - i
                for i in range(len(s))
                for j in range(i + 1, min(len(s), i + 40) + 1)
                if len(set(s[i:j])) == j - i
            ),
            default=0,
        ),
        draw=lambda rng, size: (word(rng, 2 * size, "abcdefg"),),
        edges=(("",), ("aaaa",), ("abba",), ("tmmzuxt",), ("abcdefghij",)),
        idea="slide a window whose start jumps behind the last copy of a character",
        sizes=(3, 5, 8, 12, 20, 60, 400),
    ),
    Family(
        name="edit_distance",
        level=4,
        takes=(("s", "text"), ("t", "text")),
        gives="int",
        wanted="the least number of letters to insert, delete or replace that turns s into t",
        solution="""
from functools import lru_cache

def edit_distance(s, t):
    @lru_cache(maxsize=None)
    def cost(i, j):
        if i == 0 or j == 0:
            return i + j
        if s[i - 1] == t[j - 1]:
            return cost(i - 1, j - 1)
        return 1 + min(cost(i - 1, j - 1), cost(i - 1, j), cost(i, j - 1))

    return cost(len(s), len(t))
""",
        answer=_edit_distance,
        draw=lambda rng, size: (word(rng, size, "abcd"), word(rng, size + 1, "abcd")),
        edges=(("", ""), ("", "abc"), ("abc", "abc"), ("kitten", "sitting"), ("ab", "ba")),
        idea="compare prefixes: match, replace, insert or delete the last letters",
    ),
    Family(
        name="least_rotation",
        level=3,
        takes=(("s", "text"),),
        gives="text",
        wanted="the alphabetically first of all rotations of the non-empty s",
        solution="""
def least_rotation(s):
    return min(s[i:] + s[:i] for i in range(len(s)))
""",
        answer=lambda s: sorted((s + s)[i : i + len(s)] for i in range(len(s)))[0],
        draw=lambda rng, size: (word(rng, size, "abc"),),
        edges=(("a",), ("ba",), ("aaaa",), ("baca",), ("zab",)),
        idea="compare s[i:] + s[:i] for every i",
        sizes=(3, 5, 8, 12, 20, 60, 200),
    ),
    Family(
        name="unfold",
        level=4,
        takes=(("s", "text"),),
        gives="text",
        wanted="s with every d[text] replaced by d copies of the text, where d is one digit and "
        "texts may nest",
        solution="""
def unfold(s):
    stack, here = [], ""
    for c in s:
        if c.isdigit():
            stack.append((here, int(c)))
            here = ""
        elif c == "]":
            before, times = stack.pop()
            here = before + times * here
        elif c != "[":
            here += c
    return here
""",
        answer=_unfold,
        draw=lambda rng, size: (_nested(word(rng, min(size, 14), "xyz<<")),),
        edges=(("abc",), ("2[a]",), ("2[a3[b]]",), ("0[abc]d",), ("3[2[x]y]2[z]",)),
        idea="keep a stack of the text before each bracket and its number",
    ),
    Family(
        name="arithmetic",
        level=5,
        takes=(("s", "text"),),
        gives="int",
        wanted="the value of the expression s of integers, +, -, *, brackets and spaces",
        note="* binds more tightly; s is well formed and holds no sign before a number.",
        solution="""
def arithmetic(s):
    tokens = list(s.replace(" ", "")) + ["end"]
    place = 0

    def number():
        nonlocal place
        if tokens[place] == "(":
            place += 1
            value = total()
            place += 1
            return value
        value = 0
        while tokens[place].isdigit():
            value = 10 * value + int(tokens[place])
            place += 1
        return value

    def product():
        nonlocal place
        value = number()
        while tokens[place] == "*":
            place += 1
            value *= number()
        return value

    def total():
        nonlocal place
        value = product()
        while tokens[place] in ("+", "-"):
            sign = 1 if tokens[place] == "+" else -1
            place += 1
            value += sign * product()
        return value

    return total()
""",
        answer=lambda s: _reduce(s.replace(" ", "")),
        draw=lambda rng, size: (_expression(word(rng, min(size, 40), "+-*(ab")),),
        edges=(("7",), ("1 + 2 * 3",), ("(1 + 2) * 3",), ("10 - 4 - 3",), ("2*(3-(4-5))",)),
        idea="descend: a sum of products of numbers or bracketed sums",
    ),
    Family(
        name="distinct_substrings",
        level=3,
        takes=(("s", "text"),),
        gives="int",
        wanted="how many different non-empty texts occur in s as a stretch of neighbouring "
        "characters",
        solution="""
def distinct_substrings(s):
    return len({s[i:j] for i in range(len(s)) for j in range(i + 1, len(s) + 1)})
""",
        answer=lambda s: sum(
            len({s[i : i + n] for i in range(len(s) - n + 1)}) for n in range(1, len(s) + 1)
        ),
        draw=lambda rng, size: (word(rng, min(size, 50), "ab"),),
        edges=(("",), ("aaaa",), ("abc",), ("abab",), ("mississippi",)),
        idea="collect all slices in a set",
    ),
)
