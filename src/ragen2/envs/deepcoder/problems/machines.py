"""Problems that simulate a machine: robots, stacks, caches, automata."""

from __future__ import annotations

from ragen2.envs.deepcoder.problems.draws import integer, integers, word
from ragen2.envs.deepcoder.problems.family import Family


def _walk(commands: str) -> list[int]:
    """With complex numbers: turning is multiplying."""
    place, heading = 0j, 1j
    for command in commands:
        if command == "F":
            place += heading
        else:
            heading *= 1j if command == "L" else -1j
    return [int(place.real), int(place.imag)]


def _stack_machine(lines: list[str]) -> list[int]:
    stack: list[int] = []
    for line in lines:
        name, *numbers = line.split()
        if name == "push":
            stack = [*stack, int(numbers[0])]
        elif name == "dup":
            stack = [*stack, stack[-1]]
        elif name == "swap":
            stack = [*stack[:-2], stack[-1], stack[-2]]
        else:
            left, right = stack[-2:]
            stack = [
                *stack[:-2],
                {"add": left + right, "sub": left - right, "mul": left * right}[name],
            ]
    return stack


def _machine_program(numbers: list[int]) -> list[str]:
    """A program that never takes from too small a stack."""
    lines, depth = ["push 2"], 1
    for number in numbers:
        if depth < 2 or number < 0:
            lines.append(f"push {number}" if number % 4 else "dup")
            depth += 1
        elif number % 4 == 3:
            lines.append("swap")
        else:
            lines.append(("add", "sub", "mul")[number % 3])
            depth -= 1
    return lines


def _cache_hits(keys: list[int], size: int) -> int:
    """A key is still there if fewer than ``size`` other keys came since its last use."""
    hits = 0
    for index, key in enumerate(keys):
        earlier = [place for place in range(index) if keys[place] == key]
        hits += bool(earlier) and len(set(keys[earlier[-1] + 1 : index])) < size
    return hits


def _automaton(cells: str, rule: int, steps: int) -> str:
    table = {f"{i:03b}": str(rule >> i & 1) for i in range(8)}
    for _ in range(steps):
        padded = f"0{cells}0"
        cells = "".join(table[padded[i : i + 3]] for i in range(len(cells)))
    return cells


FAMILIES = (
    Family(
        name="robot_walk",
        level=2,
        takes=(("commands", "text"),),
        gives="ints",
        wanted="the x and y at which a robot ends that starts at 0 0 looking north (up, y grows)",
        note="F is one step ahead, L and R turn it a quarter to the left and right.",
        solution="""
def robot_walk(commands):
    x, y, dx, dy = 0, 0, 0, 1
    for c in commands:
        if c == "F":
            x, y = x + dx, y + dy
        elif c == "L":
            dx, dy = -dy, dx
        else:
            dx, dy = dy, -dx
    return [x, y]
""",
        answer=_walk,
        draw=lambda rng, size: (word(rng, size + 2, "FFFLR"),),
        edges=(("F",), ("LF",), ("RF",), ("FLFLFLFL",), ("RRFF",)),
        idea="keep a position and a direction; a left turn maps (dx, dy) to (-dy, dx)",
    ),
    Family(
        name="stack_machine",
        level=3,
        takes=(("program", "lines"),),
        gives="ints",
        wanted="the stack, bottom first, after a program of the commands push n, dup, swap, "
        "add, sub and mul",
        note="sub takes the top number from the one below it.",
        solution="""
def stack_machine(program):
    stack = []
    for line in program:
        parts = line.split()
        if parts[0] == "push":
            stack.append(int(parts[1]))
        elif parts[0] == "dup":
            stack.append(stack[-1])
        else:
            b, a = stack.pop(), stack.pop()
            if parts[0] == "swap":
                stack += [b, a]
            elif parts[0] == "add":
                stack.append(a + b)
            elif parts[0] == "sub":
                stack.append(a - b)
            else:
                stack.append(a * b)
    return stack
""",
        answer=_stack_machine,
        draw=lambda rng, size: (_machine_program(integers(rng, size + 1, -9, 9)),),
        edges=(
            (["push 5"],),
            (["push 5", "push 3", "sub"],),
            (["push -2", "dup", "mul"],),
            (["push 1", "push 2", "swap"],),
            (["push 10", "push 20", "push 30", "add", "sub"],),
        ),
        idea="follow the commands on a list",
    ),
    Family(
        name="cache_hits",
        level=3,
        takes=(("keys", "ints"),),
        gives="int",
        wanted="how many of the keys, looked up in order, are found in a cache of $size that "
        "drops the least recently used key when full",
        note="A key that is not found is put in.",
        variants=({"size": 2}, {"size": 3}, {"size": 5}),
        solution="""
def cache_hits(keys):
    cache = {}
    hits = 0
    for key in keys:
        if key in cache:
            hits += 1
            del cache[key]
        elif len(cache) == $size:
            del cache[next(iter(cache))]
        cache[key] = True
    return hits
""",
        answer=_cache_hits,
        draw=lambda rng, size: (integers(rng, 2 * size, 1, 6),),
        edges=(([],), ([1, 1, 1],), ([1, 2, 3, 1, 2, 3],), ([1, 2, 1, 3, 1],), ([4],)),
        idea="a dict keeps the order; move a found key to its end",
    ),
    Family(
        name="automaton",
        level=3,
        takes=(("cells", "text"), ("steps", "int")),
        gives="text",
        wanted="the row of 0 and 1 after that many steps of elementary cellular automaton $rule",
        note="A cell becomes bit 4*left + 2*itself + right of $rule; beyond the ends there are "
        "zeros.",
        variants=({"rule": 30}, {"rule": 90}, {"rule": 110}),
        solution="""
def automaton(cells, steps):
    row = [int(c) for c in cells]
    for _ in range(steps):
        wide = [0] + row + [0]
        row = [$rule >> (4 * wide[i] + 2 * wide[i + 1] + wide[i + 2]) & 1 for i in range(len(row))]
    return "".join(map(str, row))
""",
        answer=lambda cells, steps, rule: _automaton(cells, rule, steps),
        draw=lambda rng, size: (word(rng, size + 3, "01"), integer(rng, 0, size)),
        edges=(("1", 1), ("00100", 2), ("111", 0), ("0000", 3), ("1010101", 1)),
        idea="look up the bit of $rule for every three neighbours of the old row",
        sizes=(3, 5, 8, 12, 16, 20, 30),
    ),
)
