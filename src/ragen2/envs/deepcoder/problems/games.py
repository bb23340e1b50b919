"""Problems about games and counters."""

from __future__ import annotations

import itertools

from ragen2.envs.deepcoder.problems.draws import integer, integers, word
from ragen2.envs.deepcoder.problems.family import Family


def _winner(rows: list[str]) -> str:
    lines = [*rows, *("".join(column) for column in zip(*rows, strict=True))]
    lines += [rows[0][0] + rows[1][1] + rows[2][2], rows[0][2] + rows[1][1] + rows[2][0]]
    for mark in "XO":
        if mark * 3 in lines:
            return mark
    return "open" if any("." in row for row in rows) else "draw"


def _survivor(people: int, step: int) -> int:
    circle, place = list(range(people)), 0
    while len(circle) > 1:
        place = (place + step - 1) % len(circle)
        circle.pop(place)
    return circle[0]


def _wrap(words: list[str], width: int) -> list[str]:
    """Recursively: as many words as fit, then the rest."""
    if not words:
        return []
    count = max(
        [n for n in range(1, len(words) + 1) if len(" ".join(words[:n])) <= width], default=1
    )
    return [" ".join(words[:count]), *_wrap(words[count:], width)]


def _both_win(rows: list[str]) -> bool:
    return {_winner(rows), _winner([row.translate(str.maketrans("XO", "OX")) for row in rows])} == {
        "X"
    }


def _said(text: str, times: int) -> str:
    for _ in range(times):
        said, start = "", 0
        for place in range(1, len(text) + 1):
            if place == len(text) or text[place] != text[start]:
                said += f"{place - start}{text[start]}"
                start = place
        text = said
    return text


def _game(numbers: list[int], mean: int) -> list[int]:
    """A complete game whose pins follow ``numbers``; a greater mean gives more strikes."""
    rolls: list[int] = []
    source = iter(numbers)
    for frame in range(10):
        first = min(10, next(source) + mean // 3)
        second = min(10 - first, next(source))
        rolls += [first] if first == 10 else [first, second]
        if frame == 9 and first == 10:
            rolls += [next(source), 0]
        elif frame == 9 and first + second == 10:
            rolls.append(next(source))
    return rolls


def _bowling(rolls: list[int]) -> int:
    """Roll by roll, each counted as often as the rolls before it say."""
    score, weights, frame, first = 0, [1] * (len(rolls) + 3), 0, None
    for index, pins in enumerate(rolls):
        score += pins * weights[index]
        if frame < 9:
            if first is None and pins == 10:
                weights[index + 1] += 1
                weights[index + 2] += 1
                frame += 1
            elif first is None:
                first = pins
            else:
                weights[index + 1] += first + pins == 10
                frame, first = frame + 1, None
    return score


def _serves(bills: tuple[int, ...], single: int, double: int) -> bool:
    """Try every way to give change."""
    if single < 0 or double < 0:
        return False
    if not bills:
        return True
    bill, rest = bills[0], bills[1:]
    if bill == 1:
        return _serves(rest, single + 1, double)
    if bill == 2:
        return _serves(rest, single - 1, double + 1)
    if bill == 4:
        return _serves(rest, single - 1, double - 1) or _serves(rest, single - 3, double)
    return False


FAMILIES = (
    Family(
        name="winner",
        level=2,
        takes=(("board", "lines"),),
        gives="text",
        wanted="X or O, whoever has three in a line on the 3x3 board, else draw if it is full, "
        "else open",
        note="Free cells are dots, and at most one of them has a line.",
        solution="""
def winner(board):
    lines = list(board) + ["".join(column) for column in zip(*board)]
    lines.append("".join(board[i][i] for i in range(3)))
    lines.append("".join(board[i][2 - i] for i in range(3)))
    for mark in ("X", "O"):
        if mark * 3 in lines:
            return mark
    return "open" if "." in "".join(board) else "draw"
""",
        answer=_winner,
        draw=lambda rng, size: (
            next(
                rows
                for _ in itertools.count()
                if len({_winner(rows := [word(rng, 3, "XO.XO") for _ in range(3)])}) == 1
                and not ("XXX" in rows and "OOO" in rows)
                and not _both_win(rows)
            ),
        ),
        edges=(
            (["XXX", "OO.", "..."],),
            (["XOX", "XOO", "OXX"],),
            (["...", "...", "..."],),
            (["X.O", "XO.", "O.X"],),
            (["XO.", ".XO", "..X"],),
        ),
        idea="list the three rows, three columns and two diagonals",
    ),
    Family(
        name="survivor",
        level=2,
        takes=(("n", "int"),),
        gives="int",
        wanted="which of n people 0 to n - 1 in a circle is left last if every $ordinal one "
        "leaves, counting on from the gap",
        variants=(
            {"ordinal": "2nd", "k": 2},
            {"ordinal": "3rd", "k": 3},
            {"ordinal": "7th", "k": 7},
        ),
        solution="""
def survivor(n):
    place = 0
    for size in range(2, n + 1):
        place = (place + $k) % size
    return place
""",
        answer=lambda n, ordinal, k: _survivor(n, k),
        draw=lambda rng, size: (integer(rng, 1, 4 * size),),
        edges=((1,), (2,), (7,), (64,), (2000,)),
        idea="add one person at a time: the place moves on by $k modulo the size",
    ),
    Family(
        name="look_and_say",
        level=2,
        takes=(("s", "text"), ("n", "int")),
        gives="text",
        wanted="what becomes of the digits s if they are read aloud n times: each run of a "
        "digit turns into its length and the digit",
        solution="""
from itertools import groupby

def look_and_say(s, n):
    for _ in range(n):
        s = "".join(str(len(list(run))) + digit for digit, run in groupby(s))
    return s
""",
        answer=_said,
        draw=lambda rng, size: (word(rng, min(size, 20), "1233"), integer(rng, 0, 4)),
        edges=(("1", 0), ("1", 5), ("22", 10), ("3211", 1), ("1" * 12, 1)),
        idea="group equal digits and write count and digit, n times",
    ),
    Family(
        name="wrap_words",
        level=2,
        takes=(("words", "words"), ("width", "int")),
        gives="lines",
        wanted="the lines of the words joined by single spaces, as many to a line as fit into "
        "width characters",
        note="A word longer than that gets its own line.",
        solution="""
def wrap_words(words, width):
    lines = []
    for w in words:
        if lines and len(lines[-1]) + 1 + len(w) <= width:
            lines[-1] += " " + w
        else:
            lines.append(w)
    return lines
""",
        answer=_wrap,
        draw=lambda rng, size: (
            [word(rng, integer(rng, 1, 7)) for _ in range(size)],
            integer(rng, 5, 16),
        ),
        edges=(
            (["a"], 1),
            (["ab", "cd"], 5),
            (["ab", "cd"], 4),
            (["abcdefgh", "i", "j"], 3),
            (["a", "b", "c"], 3),
        ),
        idea="append to the last line while it fits",
    ),
    Family(
        name="bowling",
        level=4,
        takes=(("rolls", "ints"),),
        gives="int",
        wanted="the score of a complete game of ten-pin bowling with these rolls",
        note="A strike (10 at once) adds the next two rolls, a spare (10 in two) the next one; "
        "frame ten has its bonus rolls.",
        solution="""
def bowling(rolls):
    score = i = 0
    for frame in range(10):
        if rolls[i] == 10:
            score += sum(rolls[i:i + 3])
            i += 1
        elif rolls[i] + rolls[i + 1] == 10:
            score += sum(rolls[i:i + 3])
            i += 2
        else:
            score += rolls[i] + rolls[i + 1]
            i += 2
    return score
""",
        answer=_bowling,
        draw=lambda rng, size: (_game(integers(rng, 60, 0, 10), size),),
        edges=(
            ([10] * 12,),
            ([0] * 20,),
            ([5] * 21,),
            ([9, 0] * 10,),
            ([10, *[0] * 18],),
            ([*[0] * 18, 4, 6, 10],),
        ),
        idea="go frame by frame and add the rolls that a strike or spare earns",
        sizes=(4, 5, 6, 7, 8, 9, 10),
    ),
    Family(
        name="kiosk_change",
        level=2,
        takes=(("bills", "ints"),),
        gives="bool",
        wanted="True if a kiosk that starts without change can serve customers who pay 5 each "
        "with these notes in order, giving exact change, else False",
        note="Notes are 5, 10 and 20.",
        solution="""
def kiosk_change(bills):
    single = double = 0
    for bill in bills:
        if bill == 5:
            single += 1
        elif bill == 2 * 5:
            single, double = single - 1, double + 1
        elif double:
            single, double = single - 1, double - 1
        else:
            single -= 3
        if single < 0:
            return False
    return True
""",
        answer=lambda bills: _serves(tuple(bill // 5 for bill in bills), 0, 0),
        draw=lambda rng, size: (
            [5 * value for value in [1, 1, *((1, 1, 2, 4)[i] for i in integers(rng, size, 0, 3))]],
        ),
        edges=(([],), ([5],), ([10],), ([5, 10, 20],), ([5, 5, 5, 20],), ([5, 5, 10, 10, 20],)),
        idea="give a double note back before single ones",
    ),
)
