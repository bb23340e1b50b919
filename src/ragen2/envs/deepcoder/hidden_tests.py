"""Tests that are Python (assert statements, ``check(candidate)``, ``unittest``, P3's ``sat``) as checks.

A check runs unchanged in a process without the program; see ``ragen2.sandbox.Check``. What it may use of the
program's objects is read off the reference solution: its classes, with their methods and attributes. A test
that asks the program's own objects whether they are equal, that tells them the answer by calculating with
them, or that replaces parts of the program's process cannot be judged from another one and is left out.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ragen2.envs.deepcoder.answers import Case
from ragen2.sandbox import Check, Given

MODULE = "program"
_BUILTINS = frozenset(dir(builtins))
_COMPARISONS = frozenset(
    ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__", "__bool__")
)
_CALCULATIONS = frozenset(
    (
        "__add__",
        "__sub__",
        "__mul__",
        "__truediv__",
        "__floordiv__",
        "__mod__",
        "__pow__",
        "__matmul__",
    )
)
_Method = ast.FunctionDef | ast.AsyncFunctionDef
_FIXTURES = ("setUpModule", "setUpClass", "setUp", "tearDown", "tearDownClass", "tearDownModule")
_PATCHING = frozenset(
    (
        *("mock", "patch", "stdout", "stdin", "open", "StringIO", "pytest", "monkeypatch"),
        *("assertLogs", "assertNoLogs", "assertWarns", "assertWarnsRegex"),
    )
)
"""Names by which a test reaches into the program's process in ways that a call does not."""


@dataclass(frozen=True, slots=True)
class Api:
    """What tests may use of a program, read off the code that solves the problem or starts it."""

    names: frozenset[str] = frozenset()
    """Everything that the code defines at its top."""
    imports: str = ""
    """Its imports: a test may rely on them."""
    classes: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    compares: bool = False
    """Whether its objects can be compared with each other, by rules of their own."""
    calculates: bool = False
    """Whether its objects can be calculated with."""


def api_of(*sources: str) -> Api:
    """The common interface of several pieces of code; one that is no Python adds nothing."""
    trees = [tree for source in sources if (tree := _parsed(source))]
    body = [node for tree in trees for node in tree.body]
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    imports = [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
    usable = [ast.unparse(node) for node in imports if not _foreign(node, "")]
    return Api(
        names=frozenset(_defined(body)),
        imports="\n".join(dict.fromkeys(usable)),
        classes=frozenset(node.name for node in classes),
        attributes=frozenset(name for node in classes for name in _attributes(node)),
        compares=any(_compares(node) for node in classes),
        calculates=any(_CALCULATIONS & set(_defined(node.body)) for node in classes),
    )


def check_of_asserts(statements: str, setup: str, api: Api) -> Case:
    """The case of assert statements that call the program's functions by name."""
    tree = _test(statements)
    if not any(isinstance(node, ast.Assert) for node in ast.walk(tree)):
        raise ValueError(f"{statements!r} is not an assert statement")
    source = f"{setup}\n{statements}\n"
    return _case(f"{_imports(source, api)}\n{source}", MODULE, api)


def check_of_candidate(source: str, entry: str, given: str, api: Api) -> Case:
    """HumanEval: a function ``check`` that takes the function under test.

    That function alone is the program's. Helpers are those of ``given``, the prompt with its imports: a
    program that may bring its own could make them say what it likes.
    """
    used, own = _names(_test(source)), set(_defined(ast.walk(_test(f"{given}\n{source}"))))
    lines = [f"import {name}" for name in sorted(used - own) if name in sys.stdlib_module_names]
    lines += [f"from {MODULE} import {name}" for name in sorted(_names(_test(entry)))]
    head = "\n".join(lines)
    return _case(f"{given}\n{head}\n{source}\ncheck({entry})\n", MODULE, api)


def check_of_puzzle(sat: str, entry: str) -> Case:
    """P3: any answer of the annotated type that makes ``sat`` true will do."""
    functions = [node for node in _test(sat).body if isinstance(node, ast.FunctionDef)]
    annotation = functions[-1].args.args[0].annotation if functions else None
    wanted = ast.unparse(annotation) if annotation else "Any"
    source = (
        f"from typing import *\n{_FITS}\n{sat}\nfrom {MODULE} import {entry} as _answer\n"
        f"_found = _answer()\nassert _fits(_found, {wanted})\nassert sat(_found) is True\n"
    )
    return Case(Given(check=Check(source)))


def checks_of_unittest(source: str, module: str, api: Api) -> tuple[list[Case], int]:
    """One case for every test method that can be judged, and how many tests cannot; ``module`` is tested."""
    tree = _test(source)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    lines = [line for owner in classes.values() if _is_case(line := _lineage(owner, classes))]
    seen = {method for line in lines for part in line for method in _tests(part.body)}
    num_left_out = len(set(_tests(ast.walk(tree))) - seen)
    cases = []
    for line in lines:
        methods = {node.name: node for part in reversed(line) for node in _tests(part.body)}
        for method in methods.values():
            if _is_judgeable(tree, line, method, module, api):
                one = f"{line[0].name}({method.name!r})"
                run = f"__import__('unittest').TestSuite([{one}]).debug()\n"
                cases.append(_case(f"{source}\n{run}", module, api))
            else:
                num_left_out += 1
    return cases, num_left_out or int(not cases)


def is_judgeable(source: str, api: Api) -> bool:
    """Whether a test without methods can be judged away from the program."""
    tree = _test(source)
    if any(_foreign(node, MODULE) for node in ast.walk(tree)) or _reaches_in([tree]):
        return False
    return not _asks_objects(tree, api.names, api)


def is_python(source: str) -> bool:
    """Whether ``source`` is a whole piece of Python."""
    return _parsed(source) is not None


def first_call(statement: str) -> tuple[str, str]:
    """Name and text of the first call in ``statement`` of a function that is not Python's own."""
    for node in ast.walk(ast.parse(statement.strip())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.func.id
            if name not in _BUILTINS:
                return name, ast.unparse(node)
    return "", ""


_FITS = '''
def _fits(value, kind):
    """Whether a value is of exactly this type, all through; what is not a number is no float."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is Union:
        return any(_fits(value, part) for part in parts)
    if type(value) is not (origin or kind):
        return False
    if origin and not parts:
        return True
    if origin is dict:
        return all(_fits(k, parts[0]) and _fits(v, parts[1]) for k, v in value.items())
    if origin is tuple and not parts[-1] is Ellipsis:
        return len(value) == len(parts) and all(map(_fits, value, parts))
    if origin:
        return all(_fits(item, parts[0]) for item in value)
    return value is None or value == value
'''


def _case(source: str, module: str, api: Api) -> Case:
    return Case(Given(check=Check(source, module, api.classes, api.attributes)))


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


def _test(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"{source!r} is not Python: {error}") from error


def _imports(source: str, api: Api) -> str:
    """Imports of what ``source`` uses and does not define: from the program, or as the solution does."""
    nodes = list(ast.walk(_test(source)))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    own = set(_defined(nodes))
    of_program = {
        name
        for name in used - own
        if name in api.names or not (name in _BUILTINS or name in sys.stdlib_module_names)
    }
    imported = _bound_by_imports(api.imports)
    modules = {name for name in used - own - of_program if name in sys.stdlib_module_names}
    lines = [f"import {name}" for name in sorted(modules - imported)]
    lines += [api.imports] if imported & used else []
    lines += [f"from {MODULE} import {name}" for name in sorted(of_program - imported)]
    return "\n".join(lines)


def _bound_by_imports(imports: str) -> set[str]:
    return {
        (name.asname or name.name).partition(".")[0]
        for node in ast.parse(imports).body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in node.names
    }


def _defined(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names that statements, arguments and targets among ``nodes`` bind."""
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((name.asname or name.name).partition(".")[0] for name in node.names)
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            yield from _defined(part for part in ast.walk(node) if isinstance(part, ast.Name))


def _attributes(owner: ast.ClassDef) -> Iterator[str]:
    """Methods and attributes that a class gives its objects."""
    yield from _defined(owner.body)
    for node in ast.walk(owner):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in ("self", "cls", owner.name):
                yield node.attr
        elif isinstance(node, ast.FunctionDef):
            yield node.name


def _compares(owner: ast.ClassDef) -> bool:
    decorators = {word for part in owner.decorator_list for word in _words(part)}
    return bool(_COMPARISONS & set(_defined(owner.body))) or "dataclass" in decorators


def _foreign(node: ast.AST, module: str) -> bool:
    """Whether a node imports what is neither Python's own nor the module under test by name."""
    if isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
        module = "" if node.names[0].name == "*" else module
    elif isinstance(node, ast.Import):
        names = [name.name for name in node.names]
    else:
        return False
    roots = {name.partition(".")[0] for name in names}
    return not roots <= {*sys.stdlib_module_names, module}


def _lineage(owner: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """A class and those of the file that it inherits from, its own first."""
    line = [owner]
    for part in line:
        names = {name for base in part.bases for name in _names(base)}
        line += [one for name, one in classes.items() if name in names and one not in line]
    return line


def _is_case(line: Iterable[ast.ClassDef]) -> bool:
    """Whether unittest would run a class of this lineage."""
    return any("TestCase" in word for part in line for base in part.bases for word in _words(base))


def _tests(nodes: Iterable[ast.AST]) -> list[_Method]:
    """Functions among ``nodes`` that are tests by their names."""
    methods = (node for node in nodes if isinstance(node, _Method))
    return [method for method in methods if method.name.startswith("test")]


def _is_judgeable(
    tree: ast.Module, line: list[ast.ClassDef], method: _Method, module: str, api: Api
) -> bool:
    decorated = method.decorator_list or any(part.decorator_list for part in line)
    if decorated or isinstance(method, ast.AsyncFunctionDef):
        return False
    parts = _with_helpers(tree, line, method)
    nodes = [node for part in parts for node in ast.walk(part)]
    if _reaches_in(parts) or any(_foreign(node, module) for node in (*tree.body, *nodes)):
        return False
    touched = {"self", *_of_module(tree, module)}
    return not any(_asks_objects(part, touched, api) for part in parts)


def _with_helpers(
    tree: ast.Module, line: list[ast.ClassDef], method: ast.FunctionDef
) -> list[ast.FunctionDef]:
    """The method and all functions and methods of the file that it uses, directly or not."""
    bodies = [*tree.body, *(node for owner in reversed(line) for node in owner.body)]
    known = {node.name: node for node in bodies if isinstance(node, ast.FunctionDef)}
    found = {method.name: method}
    found |= {name: known[name] for name in _FIXTURES if name in known}
    while True:
        used = {word for part in found.values() for word in _words(part)}
        more = {name: known[name] for name in used & set(known) if name not in found}
        if not more:
            return list(found.values())
        found |= more


def _words(tree: ast.AST) -> set[str]:
    nodes = list(ast.walk(tree))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def _reaches_in(parts: Iterable[ast.AST]) -> bool:
    return any(_PATCHING & (_words(part) - {"open"} | _names(part)) for part in parts)


def _asks_objects(test: ast.AST, of_program: Iterable[str], api: Api) -> bool:
    """Whether the program's own objects would decide, or be told the answer, if ``test`` were run.

    They decide where both sides of a comparison may be such objects; they are told where one side of a
    calculation may be one and the other is the test's own.
    """
    if not (api.compares or api.calculates):
        return False
    touched = {*of_program, *(node.arg for node in ast.walk(test) if isinstance(node, ast.arg))}
    flows = [flow for node in ast.walk(test) for flow in _flows(node)]
    while True:
        reached = (target for target, source in flows if _names(source) & touched)
        more = {name for target in reached for name in _names(target)}
        if more <= touched:
            break
        touched |= more
    sides = [pair for node in ast.walk(test) for pair in _sides(node)]
    terms = [pair for node in ast.walk(test) for pair in _terms(node)]
    decide = (all(_names(side) & touched for side in pair) for pair in sides)
    learn = (len([side for side in pair if _names(side) & touched]) == 1 for pair in terms)
    return (api.compares and any(decide)) or (api.calculates and any(learn))


def _of_module(tree: ast.Module, module: str) -> Iterator[str]:
    """Names that the file of tests has from the module under test."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == module:
            yield from _defined([node])
        elif isinstance(node, ast.Import):
            yield from (each.asname or each.name for each in node.names if each.name == module)


def _flows(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Where a value goes, and where it comes from."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, (ast.For, ast.comprehension)):
        yield node.target, node.iter
    elif isinstance(node, ast.withitem) and node.optional_vars:
        yield node.optional_vars, node.context_expr


def _sides(node: ast.AST) -> Iterator[tuple[ast.expr, ...]]:
    """The two sides of each comparison that ``node`` makes; of ``in``, the container alone."""
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        for index, operator in enumerate(node.ops):
            is_in = isinstance(operator, (ast.In, ast.NotIn))
            yield tuple(operands[index + is_in : index + 2])
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        if name.startswith("assert") and "Raises" not in name and len(node.args) > 1:
            yield tuple(node.args[name.endswith("In") : 2])


def _terms(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The two sides of the calculation that ``node`` makes."""
    if isinstance(node, ast.BinOp):
        yield node.left, node.right
    elif isinstance(node, ast.AugAssign):
        yield node.target, node.value


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
