"""Turn ``assert f(2) == 4`` into a test whose expected part never enters the program's process.

The program's process evaluates only what needs the program; the comparison is made by us, or, where
it is more than an equation, by the judge.
"""

from __future__ import annotations

import ast
import builtins
import sys

from ragen2.envs.code_cases import Case
from ragen2.envs.sandbox import Given

_KNOWN = frozenset(dir(builtins))


def case_of(statement: str, setup: str = "") -> Case:
    """The case that one assert statement describes; ``ValueError`` when it is none."""
    try:
        (node,) = ast.parse(statement.strip()).body
        known = _KNOWN | _names_bound(setup) | set(sys.stdlib_module_names)
    except SyntaxError as error:
        raise ValueError(f"{statement!r} is not Python: {error}") from error
    if not isinstance(node, ast.Assert):
        raise ValueError(f"{statement!r} is not an assert statement")  # noqa: TRY004 - of a file
    return _equation(node.test, known, setup) or _judged(node.test, known, setup)


def first_call(statement: str) -> tuple[str, str]:
    """Name and text of the first call in ``statement`` of a function that is not Python's own."""
    for node in ast.walk(ast.parse(statement.strip())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.func.id
            if name not in _KNOWN:
                return name, ast.unparse(node)
    return "", ""


def _equation(test: ast.expr, known: frozenset[str], setup: str) -> Case | None:
    """``f(x) == literal``, ``f(x)`` or ``not f(x)``, which need no judge."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _truth(test.operand, False, known, setup)
    if not isinstance(test, ast.Compare):
        return _truth(test, True, known, setup)
    if len(test.ops) != 1 or not isinstance(test.ops[0], (ast.Eq, ast.Is)):
        return None
    for asked, literal in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
        try:
            expected = ast.literal_eval(literal)
        except ValueError:
            continue
        return Case(Given(probes=(ast.unparse(asked),), setup=setup), (expected,))
    return None


def _truth(test: ast.expr, expected: bool, known: frozenset[str], setup: str) -> Case | None:
    if not (isinstance(test, ast.Call) and _needs_program(test, known)):
        return None
    return Case(Given(probes=(f"bool({ast.unparse(test)})",), setup=setup), (expected,))


def _judged(test: ast.expr, known: frozenset[str], setup: str) -> Case:
    """Anything else: the program's part is asked for, the rest is for the judge."""
    taker = _TakeOut(known)
    judge = ast.unparse(taker.visit(test))
    modules = {
        node.id
        for node in ast.walk(test)
        if isinstance(node, ast.Name) and node.id in sys.stdlib_module_names
    }
    imports = "".join(f"import {name}\n" for name in sorted(modules))
    probes = tuple(taker.probes)
    return Case(Given(probes=probes, setup=setup), judge=judge, judge_setup=imports + setup)


class _TakeOut(ast.NodeTransformer):
    """Replaces every part that needs the program by ``answers[i]`` and remembers it."""

    def __init__(self, known: frozenset[str]) -> None:
        self.known = known
        self.probes: list[str] = []

    def visit(self, node: ast.AST) -> ast.AST:
        """Take a call, attribute, subscript or name that starts from the program's names."""
        chain = (ast.Call, ast.Attribute, ast.Subscript, ast.Name)
        if not (isinstance(node, chain) and _needs_program(node, self.known)):
            return self.generic_visit(node)
        self.probes.append(ast.unparse(node))
        return ast.parse(f"answers[{len(self.probes) - 1}]", mode="eval").body


def _needs_program(node: ast.expr, known: frozenset[str]) -> bool:
    """Whether the thing called or looked into is a name that only the program can define."""
    while isinstance(node, (ast.Call, ast.Attribute, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id not in known


def _names_bound(setup: str) -> set[str]:
    """Names that the setup code defines."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(setup)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(name.asname or name.name).partition(".")[0] for name in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found
