"""The process that runs a test's own Python: no line of the program is in it, only calls go there.

The module under test is a stand-in whose names are remote calls. Results are plain data of exact types, so
``==``, ``in``, ``isinstance`` and every assertion mean here what Python says, whatever the program did to its
own process. The program's objects answer to the attributes and operators that the test may use; never to
comparisons or ``in``, which would let the program decide a verdict. Nor can it hold up the failure of a test.
"""

from __future__ import annotations

import sys

from ragen2.sandbox.remote import Channel, Function, Iterator, Reference, builtin_error
from ragen2.sandbox.revive import PLAIN

TYPE_CHECKING = False  # importing typing would slow down every start of the sandbox
if TYPE_CHECKING:
    from typing import Any

_UNARY = (
    "abs call ceil complex enter float floor index int invert iter len neg pos repr round str trunc"
)
_ITEMS = "delitem getitem setitem"
_BINARY = "add and divmod floordiv lshift matmul mod mul or pow rshift sub truediv xor"


class _ThingType(type):
    """A class of the program: calling it makes an object there."""

    _allowed: frozenset[str]
    _function: Function

    def remote_number(cls) -> int:
        return cls._function.remote_number()

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        return cls._function(*arguments, **named)

    def __getattr__(cls, name: str) -> Any:
        return _attribute(cls._function.channel, cls._function.remote_number(), cls._allowed, name)


class Thing(metaclass=_ThingType):
    """An object of a class of the program."""

    __slots__ = ("_remote",)
    __contains__ = None
    """Python would look through its items, and the program could make all there are."""
    _remote: tuple[Channel, int]

    def remote_number(self) -> int:
        """Its number in the program's process."""
        return self._remote[1]

    def __getattr__(self, name: str) -> Any:
        channel, number = self._remote
        return _attribute(channel, number, type(self)._allowed, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in type(self)._allowed:
            raise AttributeError(f"the test may not set {name}")
        self._remote[0].ask("set", self._remote[1], name, value)


def _attribute(channel: Channel, number: int, allowed: frozenset[str], name: str) -> Any:
    if name not in allowed:
        raise AttributeError(f"the test may not use {name}")
    return channel.ask("get", number, name)


def _operators(allowed: frozenset[str]) -> dict[str, Any]:
    """Methods of a thing for the allowed operators."""
    plain = {f"__{name}__" for name in f"{_UNARY} {_ITEMS}".split()}
    binary = {f"__{side}{name}__" for name in _BINARY.split() for side in ("", "r")}
    found = {name: _operator(name) for name in plain & allowed}
    found |= {name: _between_things(name) for name in binary & allowed}
    if "__exit__" in allowed:
        found["__exit__"] = _without_result(_operator("__exit__"))
    if "__next__" in allowed:
        found["__next__"] = lambda thing: thing._remote[0].ask("next", thing._remote[1])
    return found


def _operator(name: str) -> Any:
    def operate(self: Thing, *arguments: Any) -> Any:
        channel, number = self._remote
        return channel.ask("call", number, name, list(arguments), {})

    return operate


def _between_things(name: str) -> Any:
    """Not with plain values: one that a test subtracts, to allow for rounding, is the expected answer."""
    operate = _operator(name)
    return lambda self, other: operate(self, other) if isinstance(other, Thing) else NotImplemented


def _without_result(operate: Any) -> Any:
    """Of ``__exit__`` it would say that no error has happened, which is not for the program to say."""

    def leave(self: Thing, *error: Any) -> None:
        operate(self, *error)

    return leave


def _type_from_program(name: Any) -> Any:
    found = PLAIN["type"](name)
    return builtin_error(name) if issubclass(found, BaseException) else found


class Judge(Channel):
    """One test, with what it may use of the program."""

    def __init__(self, check: dict[str, Any], descriptors: tuple[int, int], max_bytes: int) -> None:
        super().__init__(descriptors, max_bytes)
        self.kinds["type"] = _type_from_program
        self.check = check
        allowed = frozenset(check["attributes"])
        self.root = _ThingType("Thing", (Thing,), {"_allowed": allowed, **_operators(allowed)})
        self.failed: BaseException | None = None

    def verdict(self) -> str:
        """``p`` when the test ends well, else ``f`` (an assertion) or ``e`` (an error) and its text."""
        module = type(sys)(self.check["module"])
        module.__dict__["__getattr__"] = self._name
        sys.modules[module.__name__] = module
        tests = type(sys)("tests")
        sys.modules["tests"] = tests
        try:
            code = compile(self.check["source"], "<test>", "exec", dont_inherit=True)
            exec(code, tests.__dict__)  # noqa: S102 - of a data set; this process is locked up
        except AssertionError as error:
            return f"f{error}"
        except BaseException as error:  # noqa: BLE001 - a test that does not end well is not passed
            return f"e{type(error).__name__}: {error}"
        if self.gone:
            return "ethe program ended before its test"
        return "p" if self.failed is None else f"f{self.failed}"

    def _name(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.ask("get", 0, name)

    def ask(self, *question: Any) -> Any:
        """Asked while an assertion of the test is on its way out, the program must not hold it up."""
        error = sys.exc_info()[1]
        if isinstance(error, AssertionError) and not hasattr(error, "comes_from_program"):
            self.failed = error
        return super().ask(*question)

    def serve(self, message: list[Any]) -> Any:
        """The program may call what it was lent, nothing else, and cannot swallow what goes wrong there."""
        target = self.ours(message[1])
        try:
            if message[0] == "next":
                return next(target)
            if message[0] != "call" or message[2] or not callable(target):
                raise PermissionError(f"a test does not answer {message[0]}")  # noqa: TRY301
            return target(*message[3], **message[4])
        except StopIteration:  # what was lent has come to its end
            raise
        except BaseException as error:
            self.failed = error
            raise

    def own_class(self, number: int, name: str, parents: tuple[Any, ...]) -> Any:
        """An error, or the class of things."""
        if parents and issubclass(parents[0], BaseException):
            return super().own_class(number, name, parents)
        return _ThingType(name, parents or (self.root,), {"_function": Function(self, number)})

    def proxy(self, number: int, kind: str, known: Any, *plain: Any) -> Any:
        """A thing, if it is of a class that the tests know, or else neither data nor there to be called."""
        is_thing = isinstance(known, _ThingType)
        is_asked_for = is_thing and known.__name__ in self.check["classes"]
        if plain and not is_asked_for:
            return plain[0]
        if kind == "class":
            return known or Function(self, number)
        if kind in ("iterator", "function") and not is_asked_for:
            return (Iterator if kind == "iterator" else Function)(self, number)
        if not is_thing:
            return Reference(self, number)
        thing = object.__new__(known)
        object.__setattr__(thing, "_remote", (self, number))
        return thing
