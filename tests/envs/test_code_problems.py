"""Our own programming problems: many, solvable, well tested, and the same everywhere."""

import ast
import hashlib
import itertools
import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.envs.deepcoder.answers import Problem, grade
from ragen2.envs.deepcoder.problems import own_problem
from ragen2.envs.deepcoder.problems.generate import GRAMMAR, ProblemPlan, draw_plan, read_grammar
from ragen2.envs.deepcoder.problems.parts import EDGES, FilledPart, draw_arguments, draw_part
from ragen2.sandbox import Sandbox
from ragen2.seeding import stream

TRAINING = range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + 120)
HELD_OUT = range(60)
SHORTCUTS = {
    "stdin": ("print()", "print(0)", "print(input())", "print(1)", "print(-1)"),
    "call": ("return []", "return 0", "return args[0]", "return 1", "return len(args[0])"),
}


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return [own_problem(seed) for seed in (*TRAINING, *HELD_OUT)]


def _ratios(programs: list[tuple[Problem, str]]) -> list[float]:
    """Share of tests that each program passes, two programs at a time."""
    sandbox = Sandbox()
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda pair: grade(pair[1], pair[0].cases, sandbox).ratio, programs))


def _num_distinct(found: list[Problem]) -> int:
    """Problems that differ in what is asked and in what is computed (that is in the name)."""
    asked = {problem.statement.partition("\nExample")[0] for problem in found}
    return min(len(asked), len({problem.name for problem in found}))


def test_nearly_all_seeds_give_problems_of_their_own(problems: list[Problem]) -> None:
    assert _num_distinct(problems) >= 0.85 * len(problems)


@pytest.mark.slow
def test_ten_thousand_seeds_give_thousands_of_problems() -> None:
    seeds = range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + 10_000)
    assert _num_distinct([own_problem.__wrapped__(seed) for seed in seeds]) >= 6_000


def test_all_levels_and_both_forms_occur(problems: list[Problem]) -> None:
    assert set(Counter(problem.level for problem in problems)) == {1, 2, 3, 4, 5}
    assert min(Counter(problem.form for problem in problems).values()) >= 60


def test_harder_levels_take_longer_programs(problems: list[Problem]) -> None:
    def mean_lines(level: int) -> float:
        sizes = [p.solution.count("\n") for p in problems if p.level == level]
        return sum(sizes) / len(sizes)

    assert mean_lines(1) < mean_lines(3) < mean_lines(5)


def test_every_problem_has_at_least_eight_different_hidden_tests(problems: list[Problem]) -> None:
    for problem in problems:
        inputs = {repr(case.given) for case in problem.cases}
        assert len(inputs) == len(problem.cases) >= 8, problem.name


def test_shown_examples_are_not_among_the_hidden_tests(problems: list[Problem]) -> None:
    for problem in problems:
        assert problem.statement.count("Example") >= 2, problem.name
        for case in problem.cases:
            if problem.form == "stdin":
                assert f"Example input:\n{case.given.stdin}Example" not in problem.statement
            else:
                name, arguments = case.given.call or ("", [])
                call = f"{name}({', '.join(map(repr, arguments))})"
                assert f"Example: {call} ==" not in problem.statement


def test_reference_solutions_pass_all_their_tests_in_the_sandbox(problems: list[Problem]) -> None:
    chosen = problems[::4]
    ratios = _ratios([(problem, problem.solution) for problem in chosen])
    assert [p.name for p, ratio in zip(chosen, ratios, strict=True) if ratio < 1] == []


def test_no_shortcut_gets_much_of_the_reward(problems: list[Problem]) -> None:
    chosen = problems[1::4]
    programs = []
    for index, problem in enumerate(chosen):
        body = SHORTCUTS[problem.form][index % 5]
        programs.append(body if problem.form == "stdin" else f"def solve(*args):\n    {body}")
    ratios = _ratios(list(zip(chosen, programs, strict=True)))
    assert max(ratios) <= 0.7
    assert sum(ratios) / len(ratios) < 0.2


class _Mutate(ast.NodeTransformer):
    """Changes the one comparison, number or operation that has the given index."""

    SWAPS = {
        ast.Lt: ast.LtE,
        ast.LtE: ast.Lt,
        ast.Gt: ast.GtE,
        ast.GtE: ast.Gt,
        ast.Eq: ast.NotEq,
    } | {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Mod: ast.FloorDiv}

    def __init__(self, index: int) -> None:
        self.left = index

    def generic_visit(self, node: ast.AST) -> ast.AST:
        is_number = isinstance(node, ast.Constant) and type(node.value) is int
        if is_number or type(node) in self.SWAPS:
            self.left -= 1
            if self.left == -1:
                return ast.Constant(node.value + 1) if is_number else self.SWAPS[type(node)]()
        return super().generic_visit(node)


def _mutants(source: str) -> list[str]:
    found = []
    for index in itertools.count():
        mutate = _Mutate(index)
        tree = ast.fix_missing_locations(mutate.visit(ast.parse(source)))
        if mutate.left >= 0:
            return found
        found.append(ast.unparse(tree))


def _passes(program: str, problem: Problem) -> bool:
    space: dict = {}
    exec(program, space)  # noqa: S102 - our own solution with one change
    try:
        for case in problem.cases:
            (_, arguments) = case.given.call
            if space["solve"](*json.loads(json.dumps(arguments))) != case.accepted[0]:
                return False
    except Exception:  # noqa: BLE001 - a mutant may fail in any way
        return False
    return True


def test_hidden_tests_refuse_nearly_all_mutants_of_the_solution() -> None:
    """Some mutants compute the same, as ``best`` that starts at 1 before the first value is 1."""
    killed = total = 0
    for seed in range(200_000, 200_050):
        problem = own_problem(seed, form="call")
        assert _passes(problem.solution, problem)
        mutants = [m for m in _mutants(problem.solution) if "while" not in m]
        killed += sum(not _passes(mutant, problem) for mutant in mutants)
        total += len(mutants)
    assert total > 200
    assert killed / total >= 0.9


def test_plans_that_are_wrong_by_one_step_are_told_apart() -> None:
    rng = stream("test")
    plans = [plan for plan in (draw_plan(rng, 4) for _ in range(60)) if plan is not None]
    others = [len(list(plan.neighbours())) for plan in plans]
    assert min(others) >= 1
    assert all(other != plan for plan in plans for other in plan.neighbours())


def test_every_part_of_the_grammar_runs_on_the_edges() -> None:
    rng = stream("parts")
    for start in GRAMMAR.starts:
        plans = list(_plans_with_every_part(start, rng))
        for plan in plans:
            function = plan.compiled()
            for arguments in (*EDGES[start.takes], draw_arguments(rng, start.takes, 9)):
                before = json.dumps(arguments)
                json.dumps(function(*arguments))
                assert json.dumps(arguments) == before, plan.source()


def _plans_with_every_part(start, rng):
    def fill(part, kind):
        return draw_part(rng, part, kind, GRAMMAR)

    def goal_of(kind):
        return next(fill(part, kind) for part in GRAMMAR.goals if kind in part.takes.split())

    kind = start.gives
    first = fill(start, "ints")
    for part in GRAMMAR.steps:
        if kind in part.takes.split():
            yield ProblemPlan(first, (fill(part, kind),), goal_of(part.gives or kind))
    for part in GRAMMAR.goals:
        if kind in part.takes.split():
            yield ProblemPlan(first, (), fill(part, kind))


def _subsequences(values, least=0):
    sizes = range(least, len(values) + 1)
    return (c for size in sizes for c in itertools.combinations(range(len(values)), size))


def _rises(values):
    return all(x < y for x, y in itertools.pairwise(values))


def _chains(v):
    return [[v[i] for i in chosen] for chosen in _subsequences(v) if _rises([v[i] for i in chosen])]


def _groups(v):
    labels = list(range(len(v)))
    for _ in v:
        for i, j in itertools.combinations(range(len(v)), 2):
            if v[i] < v[j]:
                labels = [labels[i] if label == labels[j] else label for label in labels]
    return Counter(labels)


def _jumps(v):
    paths = [c for c in _subsequences(v, 1) if c[0] == 0 and c[-1] == len(v) - 1]
    return min((len(c) - 1 for c in paths if _rises([v[i] for i in c])), default=-1)


def _cuts(v):
    """All ways to cut a list into blocks."""
    for size in range(len(v)):
        for places in itertools.combinations(range(1, len(v)), size):
            bounds = (0, *places, len(v))
            yield [v[a:b] for a, b in itertools.pairwise(bounds)]


def _paths(m):
    rows, columns = len(m), len(m[0])
    for downs in itertools.combinations(range(rows + columns - 2), rows - 1):
        i = j = 0
        path = [m[0][0]]
        for step in range(rows + columns - 2):
            i, j = (i + 1, j) if step in downs else (i, j + 1)
            path.append(m[i][j])
        yield path


def _matchings(a, b):
    sizes = range(min(len(a), len(b)) + 1)
    for size in sizes:
        for left in itertools.combinations(a, size):
            for right in itertools.combinations(b, size):
                yield list(zip(left, right, strict=True))


def _costs(v, reach):
    for chosen in _subsequences(v, 1):
        steps = list(itertools.pairwise(chosen))
        if chosen[0] == 0 and chosen[-1] == len(v) - 1 and all(j - i <= reach for i, j in steps):
            yield sum(abs(v[i] - v[j]) for i, j in steps)


BY_TRYING = {
    "the greatest length of a choice": lambda v: max(map(len, _chains(v))),
    "the smallest number of {items} to remove": lambda v: len(v) - max(map(len, _chains(v))),
    "the greatest total of a choice": lambda v: max(sum(c) for c in _chains(v)),
    "the number of ways, modulo 1000007, to choose one or more": lambda v: len(_chains(v)) - 1,
    "the number of groups": lambda v: len(_groups(v)),
    "the size of the largest group": lambda v: max(_groups(v).values(), default=0),
    "the smallest number of jumps": _jumps,
    "the smallest number of consecutive blocks": lambda v: min(
        (len(cut) for cut in _cuts(v) if all(map(_rises, cut))), default=0
    ),
    "the length of the longest block of consecutive": lambda v: max(
        (b - a for a in range(len(v)) for b in range(a + 1, len(v) + 1) if _rises(v[a:b])),
        default=0,
    ),
    "the greatest sum of chosen values": lambda v: max(
        sum(v[i] for i in c)
        for c in _subsequences(v)
        if all(j - i >= 2 for i, j in itertools.pairwise(c))
    ),
    "the greatest sum of a block": lambda v: max(
        (sum(v[a:b]) for a in range(len(v)) for b in range(a + 2, len(v) + 1)), default=0
    ),
    "the number of ways, modulo 1000007, to choose positions": lambda v: sum(
        sum(v[i] for i in c) % 3 == 0 for c in _subsequences(v)
    ),
    "the smallest number of positions with positive": lambda v: min(
        (
            len(c)
            for c in _subsequences(v)
            if all(v[i] > 0 for i in c) and sum(v[i] for i in c) == 8
        ),
        default=-1,
    ),
    "the smallest total cost": lambda v: min(_costs(v, 2), default=0),
    "the number of blocks of one": lambda v: sum(
        sum(v[a:b]) % 2 == 0 for a in range(len(v)) for b in range(a + 1, len(v) + 1)
    ),
    "the length of the longest block (0": lambda v: max(
        (b - a for a in range(len(v)) for b in range(a + 1, len(v) + 1) if sum(v[a:b]) % 2 == 0),
        default=0,
    ),
    "the greatest sum of the values on a path": lambda m: max(map(sum, _paths(m))),
    "the smallest sum of the values on a path": lambda m: min(map(sum, _paths(m))),
    "the number, modulo 1000007, of paths": lambda m: sum(
        all(x % 2 == 0 for x in path) for path in _paths(m)
    ),
    "the greatest number of pairs": lambda a, b: max(
        len(pairs) for pairs in _matchings(a, b) if all(x < y for x, y in pairs)
    ),
    "the smallest cost of turning": lambda a, b: min(
        sum(abs(x - y) for x, y in pairs) + 2 * (len(a) + len(b) - 2 * len(pairs))
        for pairs in _matchings(a, b)
    ),
}
"""Goals with a clever solution, and the answer found by trying everything. Where a goal has
numbers, they are the first of their choices; its condition is ``x is even``, its relation
``x < y``, its quantity ``x``."""


def _first_filling(part, kind):
    identity = read_grammar(
        "== map of ints\n0 :: x :: x\n== starts\n== steps\n== goals\n"
    ).expressions["ints", "map"][0]
    values = {}
    filled = draw_part(stream("first"), part, kind, GRAMMAR)
    for name, value in filled.values:
        if name in part.choices:
            values[name] = part.choices[name][0]
        elif name == "key":
            values[name] = FilledPart(identity, kind)
        else:
            values[name] = FilledPart(GRAMMAR.expressions["ints", name][0], "ints")
        assert type(value) is type(values[name])
    return FilledPart(part, kind, tuple(values.items()))


@pytest.mark.parametrize("text", BY_TRYING)
def test_clever_solutions_agree_with_trying_everything(text: str) -> None:
    (part,) = [part for part in GRAMMAR.goals if part.text.startswith(text)]
    kind = part.takes.split()[0]
    start = next(start for start in GRAMMAR.starts if start.gives == kind)
    plan = ProblemPlan(FilledPart(start, kind), (), _first_filling(part, kind))
    rng = stream("by trying", text)
    sizes = (3, 4, 5, 5) if kind == "pair" else (3, 4, 6, 8)
    drawn = [draw_arguments(rng, start.takes, size) for size in sizes for _ in range(8)]
    found = [plan.compiled()(*arguments) for arguments in drawn]
    assert found == [BY_TRYING[text](*arguments) for arguments in drawn]
    assert len(set(found)) >= 2


def test_statements_are_short_enough_for_a_small_context(problems: list[Problem]) -> None:
    assert max(len(problem.statement) for problem in problems) <= 800


def test_texts_have_no_unfilled_hole_and_no_separator(problems: list[Problem]) -> None:
    for problem in problems:
        text = problem.statement + problem.idea + problem.summary
        assert not set("{}") & set(text), problem.name
        assert "||" not in text, problem.name
        assert problem.summary in problem.statement


def test_what_computes_the_same_is_on_one_side_under_all_settings() -> None:
    settings = [("any", (1, 5)), ("stdin", (1, 2)), ("call", (1, 1))]
    sides = [
        {own_problem(seed, 0.2, *chosen).name for chosen in settings for seed in seeds}
        for seeds in (range(60), range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + 60))
    ]
    assert sides[0].isdisjoint(sides[1])


def _digest() -> str:
    found = [own_problem(seed) for seed in (*TRAINING[:15], *HELD_OUT[:5])]
    cases = [[repr(problem.cases), problem.statement, problem.solution] for problem in found]
    return hashlib.sha256(json.dumps(cases).encode()).hexdigest()


def test_problems_are_the_same_in_another_process() -> None:
    code = "import test_code_problems; print(test_code_problems._digest())"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == _digest()
