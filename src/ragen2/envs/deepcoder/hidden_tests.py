"""Turn assert statements and ``unittest`` methods into tests whose expected values stay with us.

What a method does with the program becomes a script that collects answers; what it compares them
with is read here and never enters the program's process. Methods that do more than that (loops,
helpers, mocks) are left out.
"""

from __future__ import annotations

import ast
import builtins
import sys
from typing import Any

from ragen2.envs.deepcoder.answers import Case
from ragen2.sandbox import Given

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


_ANSWERS = "_answers"
_TRUTHS = {"assertTrue": True, "assertFalse": False}
_EQUATIONS = ("assertEqual", "assertIs", "assertListEqual", "assertDictEqual", "assertTupleEqual")


class NotConvertibleError(ValueError):
    """A test method does something that cannot be split into questions and answers."""


def cases_of_unittest(source: str, module: str) -> list[Case]:
    """One case for every test method of ``source`` that can be converted; ``module`` is tested."""
    tree = ast.parse(source)
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    lines = [line for node in imports for line in _import_lines(node, module)]
    shared = {name: value for node in tree.body for name, value in _literal_of(node, {}).items()}
    helpers = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    cases = []
    for owner in tree.body:
        for method in owner.body if isinstance(owner, ast.ClassDef) else ():
            if isinstance(method, ast.FunctionDef) and method.name.startswith("test"):
                try:
                    cases.append(_Method(lines, shared, helpers).convert(method))
                except NotConvertibleError:
                    continue
    return cases


class _Method:
    """One test method on its way to a script and a list of expected values."""

    def __init__(self, imports: list[str], literals: dict[str, Any], helpers: set[str]) -> None:
        self.helpers = helpers
        self.literals = dict(literals)
        self.lines = [*imports, f"{_ANSWERS} = []"]
        self.sent: set[str] = set()
        self.expected: list[Any] = []

    def convert(self, method: ast.FunctionDef) -> Case:
        for statement in method.body:
            self._add(statement)
        if not self.expected:
            raise NotConvertibleError(method.name)
        given = Given(probes=(_ANSWERS,), setup="\n".join(self.lines))
        return Case(given, (self.expected,))

    def _add(self, statement: ast.stmt) -> None:
        literal = _literal_of(statement, self.literals)
        if literal:
            self.literals.update(literal)
            self.sent -= set(literal)
        elif isinstance(statement, ast.With):
            self._add_raising(statement)
        elif isinstance(statement, ast.Expr) and _assertion(statement.value):
            self._add_assertion(_assertion(statement.value), statement.value)
        elif isinstance(statement, (ast.Assign, ast.AugAssign, ast.Expr)):
            self._say(statement)
        else:
            raise NotConvertibleError(type(statement).__name__)

    def _add_assertion(self, name: str, call: Any) -> None:
        arguments = [_without_context(argument) for argument in call.args]
        if name in _TRUTHS and len(arguments) == 1:
            self._ask(f"bool({ast.unparse(arguments[0])})", arguments[0], _TRUTHS[name])
        elif name == "assertIsNone" and len(arguments) == 1:
            self._ask(ast.unparse(arguments[0]), arguments[0], None)
        elif name in _EQUATIONS and len(arguments) >= 2:
            self._add_equation(arguments[0], arguments[1])
        else:
            raise NotConvertibleError(name)

    def _add_equation(self, asked: ast.expr, expected: ast.expr) -> None:
        for question, answer in ((asked, expected), (expected, asked)):
            if isinstance(answer, ast.Name) and _is_exception(answer.id):
                self._ask(f"({ast.unparse(question)}).__name__", question, answer.id)
                return
            try:
                value = _value(answer, self.literals)
            except ValueError:
                continue
            self._ask(ast.unparse(question), question, value)
            return
        raise NotConvertibleError("both sides need the program")

    def _add_raising(self, statement: ast.With) -> None:
        """``with self.assertRaises(Error) as name:`` becomes a ``try`` that remembers the error."""
        (item,) = statement.items if len(statement.items) == 1 else (None,)
        call = item.context_expr if item else None
        if not isinstance(call, ast.Call) or _assertion(call) != "assertRaises":
            raise NotConvertibleError("with")
        self.lines.append("_caught = None\ntry:")
        start = len(self.lines)
        for inner in statement.body:
            self._say(inner)
        self.lines[start:] = ["    " + line.replace("\n", "\n    ") for line in self.lines[start:]]
        self.lines.append("except BaseException as error:\n    _caught = error")
        self._ask(f"isinstance(_caught, {ast.unparse(call.args[0])})", call, True)

    def _ask(self, question: str, node: ast.AST, expected: Any) -> None:
        self._send_literals(node)
        self.lines.append(f"{_ANSWERS}.append({question})")
        self.expected.append(expected)

    def _say(self, statement: ast.stmt) -> None:
        if any(isinstance(node, ast.Name) and node.id == "self" for node in ast.walk(statement)):
            raise NotConvertibleError("self")
        self._send_literals(statement)
        self.lines.append(ast.unparse(_Caught().visit(statement)))

    def _send_literals(self, node: ast.AST) -> None:
        """Define the plain values that ``node`` uses, and only those: others may be answers."""
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        if names & self.helpers:
            raise NotConvertibleError("helper")
        for name in sorted(names):
            if name in self.literals and name not in self.sent:
                self.lines.append(f"{name} = {self.literals[name]!r}")
                self.sent.add(name)


def _import_lines(node: ast.Import | ast.ImportFrom, module: str) -> list[str]:
    """An import as the script needs it: the tested module is the program itself."""
    if isinstance(node, ast.ImportFrom):
        if node.module != module:
            return [] if node.module == "unittest" else [ast.unparse(node)]
        return [f"{a.asname} = {a.name}" for a in node.names if a.asname]
    lines = []
    for alias in node.names:
        name = "program" if alias.name == module else alias.name
        if name != "unittest":
            lines.append(f"import {name} as {alias.asname or alias.name}")
    return lines


def _literal_of(statement: ast.stmt, known: dict[str, Any]) -> dict[str, Any]:
    """The name and plain value that a statement defines, if that is all it does."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return {}
    try:
        return {statement.targets[0].id: _value(statement.value, known)}
    except ValueError:
        return {}


def _value(node: ast.expr, known: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    try:
        return ast.literal_eval(node)
    except (TypeError, SyntaxError, MemoryError) as error:
        raise ValueError(str(error)) from error


def _assertion(node: ast.expr) -> str:
    """The name of the ``self.assertSomething`` that is called, or nothing."""
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    if not is_method or not isinstance(node.func.value, ast.Name):  # type: ignore[attr-defined]
        return ""
    method = node.func  # type: ignore[attr-defined]
    return str(method.attr) if method.value.id == "self" else ""


def _is_exception(name: str) -> bool:
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, BaseException)


def _without_context(node: ast.expr) -> ast.expr:
    """Replace ``name.exception`` by the error that was caught."""
    return _Caught().visit(node)  # type: ignore[no-any-return]


class _Caught(ast.NodeTransformer):
    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if node.attr == "exception" and isinstance(node.value, ast.Name):
            return ast.Name("_caught", ast.Load())
        return self.generic_visit(node)
