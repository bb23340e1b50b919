"""Calls between two processes that share no memory: a program in one, the tests of it in the other.

Plain data crosses as data (``write_values``, ``revive``). What is no plain data stays where it is, and the
other side gets a number for it: tests can call a function or hand an object back, and see nothing else of it.
A message is a list: ``call``, ``get``, ``set`` and ``next`` ask, ``value``, ``error`` and ``end`` answer.
While one side waits for an answer it serves what the other asks, so a function may be an argument.

Containers are lent: what a call does to those in its arguments is done to the caller's own, each of which
both sides know by its place in the message.
"""

from __future__ import annotations

import builtins
import os
from _collections import deque  # type: ignore[import-not-found]  # its package takes long to import

from ragen2.sandbox.revive import PLAIN, revive
from ragen2.sandbox.write_values import PROGRAM, SUBCLASSED, write, write_plain

TYPE_CHECKING = False  # importing typing would slow down every start of the sandbox
if TYPE_CHECKING:
    from typing import Any

_ENDS_LOOPS = (StopIteration, StopAsyncIteration, GeneratorExit)
"""Raised by a function that a loop calls, these would end the loop before it has tested anything."""

_OF_MESSAGE = 3
"""Containers that every call has: its arguments, those with names, and the list of both."""


class GoneError(BaseException):
    """The other side has ended, or writes what is no message."""


class Channel:
    """One end; ``serve`` does what the other side asks, ``proxy`` makes what stands for its objects here."""

    def __init__(self, descriptors: tuple[int, int], max_bytes: int) -> None:
        self._reader, self._writer = descriptors
        self._max_bytes = max_bytes
        self._ours: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._theirs: dict[int, Any] = {}
        self._classes: dict[int, Any] = {}
        self._lent: list[list[Any]] = []
        self.gone = False
        self.kinds = {
            **PLAIN,
            "theirs": self._for_their,
            "yours": self.ours,
            "lent": lambda number: self._lent[-1][number],
        }

    def serve(self, message: list[Any]) -> Any:
        """What the other side gets for its question."""
        raise NotImplementedError

    def proxy(self, number: int, kind: str, known: Any, *plain: Any) -> Any:
        """What stands for an object of class ``known``, if that is known; ``plain`` is the data it holds."""
        raise NotImplementedError

    def own_class(self, number: int, name: str, parents: tuple[Any, ...]) -> Any:
        """What stands here for a class of the other side, once for each."""
        del number
        return type(name, parents, {})

    def ask(self, *question: Any) -> Any:
        """What the other side answers; its error is raised here as the built-in error that it is."""
        message = list(question)
        self._lent.append(_containers(message[3:], []))
        try:
            self._send(message)
            while (answer := self._receive())[0] not in ("value", "error", "end"):
                self._answer(answer)
            if answer[0] == "end" and message[0] == "next":
                raise StopIteration
            return self._result(answer)
        finally:
            self._lent.pop()

    def serve_for_ever(self) -> None:
        """Answer until the other side ends."""
        while True:
            self._answer(self._receive())

    def offer(self, thing: Any) -> int:
        """The number under which the other side may ask for ``thing``."""
        number = self._numbers.get(id(thing))
        if number is None:
            number = self._numbers[id(thing)] = len(self._ours)
            self._ours.append(thing)  # kept alive, so that its id stays its own
        return number

    def ours(self, number: int) -> Any:
        """What was offered under ``number``."""
        if type(number) is not int or not 0 <= number < len(self._ours):
            raise ValueError(f"there is no object {number!r}")
        return self._ours[number]

    def _result(self, answer: list[Any]) -> Any:
        """The value of an answer, or its error raised, after what the call changed has changed here."""
        try:
            kind, changed, *rest = answer
            if changed is not None:
                for container, content in zip(self._lent[-1], changed, strict=True):
                    _refill(container, content)
            if kind == "value":
                (value,) = rest
                return value
            error = self._made(*rest)
        except (ValueError, TypeError) as problem:
            raise self._gone(str(problem)) from problem
        raise error

    def _answer(self, message: list[Any]) -> None:
        given = message[3:]
        lent = _containers(given, [])
        before = write(given, _same_reference) if len(lent) > _OF_MESSAGE else ""
        try:
            result = self.serve(message)
            same = (_Lent(number) for number, one in enumerate(lent) if one is result)
            reply = ["value", None, next(same, result)]
        except GoneError:
            raise
        except StopIteration as error:
            reply = ["end"] if message[0] == "next" else self._described(error)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
            reply = self._described(error)
        try:
            if before and write(given, _same_reference) != before:
                reply[1] = _contents(lent)
            self._send(reply)
        except RecursionError:
            self._send(["error", None, "RecursionError", ["nested too deep"]])

    def _send(self, message: list[Any]) -> None:
        data = write(message, self._reference).encode()
        data = len(data).to_bytes(8, "big") + data
        while data:
            try:
                data = data[os.write(self._writer, data) :]
            except OSError as error:
                raise self._gone("the other side has ended") from error

    def _receive(self) -> list[Any]:
        size = int.from_bytes(self._read(8), "big")
        if size > self._max_bytes:
            raise self._gone(f"a message of {size} bytes")
        try:
            message = revive(self._read(size), self.kinds)
        except ValueError as error:
            raise self._gone(str(error)) from error
        if type(message) is not list or not message or type(message[0]) is not str:
            raise self._gone("no message")
        return message

    def _read(self, size: int) -> bytes:
        chunks = []
        while size:
            chunk = os.read(self._reader, min(size, 1 << 20))
            if not chunk:
                raise self._gone("the other side has ended")
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def _gone(self, why: str) -> GoneError:
        """Remembered: what catches all errors must not take this one for the program's."""
        self.gone = True
        return GoneError(why)

    def _reference(self, value: Any) -> str:
        if type(value) is _Lent:
            return f'{{"lent":{value.number}}}'
        number = getattr(type(value), "remote_number", None)
        if number is not None:
            return f'{{"yours":{number(value)}}}'
        kind = _kind(value)
        described = self._describe(value if kind == "class" else type(value))
        parts = [write(part) for part in (self.offer(value), kind, described)]
        if isinstance(value, SUBCLASSED):
            parts.append(write_plain(value, self._reference))
        return f'{{"theirs":[{",".join(parts)}]}}'

    def _describe(self, kind: type) -> Any:
        """A class: number, name and bases of an own one, the name of a built-in error, nothing of others.

        Of an error's bases only those that its first built-in kind is a kind of: one made of several is not
        all of them.
        """
        error = _builtin_error(kind)
        if kind.__module__ == "builtins" or not (error or kind.__module__ == PROGRAM):
            return error
        bases = [self._describe(base) for base in kind.__bases__ if _may_inherit(kind, base)]
        return [self.offer(kind), kind.__name__, [base for base in bases if base]]

    def _described(self, error: BaseException) -> list[Any]:
        arguments = list(BaseException.args.__get__(error))  # type: ignore[attr-defined]
        return ["error", None, self._describe(type(error)), arguments]

    def _for_their(self, parts: Any) -> Any:
        number, kind, described, *plain = parts
        if number in self._theirs:
            return self._theirs[number]
        found = self.proxy(number, kind, self._class(described) if described else None, *plain)
        if not (plain and found is plain[0]):
            self._theirs[number] = found
        return found

    def _class(self, described: Any) -> Any:
        if type(described) is str:
            return builtin_error(described)
        number, name, bases = described
        if number not in self._classes:
            parents = tuple(self._class(base) for base in bases)
            found = self.own_class(number, name, parents)
            if not all(_may_inherit(found, parent) for parent in parents):
                raise ValueError(f"{name} is an error of several kinds")
            self._classes[number] = found
        return self._classes[number]

    def _made(self, described: Any, arguments: list[Any]) -> BaseException:
        kind = self._class(described)
        if not issubclass(kind, BaseException):
            raise TypeError(f"{described!r} is no error")
        if issubclass(kind, _ENDS_LOOPS):
            return RuntimeError(f"{kind.__name__} was raised")
        error: BaseException = kind.__new__(kind, *arguments)
        try:
            error.__init__(*arguments)  # type: ignore[misc]
        except (
            TypeError
        ):  # some kinds want arguments that are no plain data; the kind is what counts
            return error
        return error


_stand_ins: dict[str, type[BaseException]] = {}


def builtin_error(name: str) -> type[BaseException]:
    """The built-in error ``name`` of the other side; of one that could catch an assertion, a kind of it.

    So no class that comes from a program catches what a test says of it.
    """
    found = getattr(builtins, name, None)
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        raise ValueError(f"no error {name!r}")  # noqa: TRY004 - of the message
    if not issubclass(AssertionError, found):
        return found
    return _stand_ins.setdefault(name, type(name, (found,), {"comes_from_program": True}))


def _builtin_error(kind: type) -> str:
    """The first built-in error among the ancestors of a class; nothing where there is none."""
    if not issubclass(kind, BaseException):
        return ""
    return next(base.__name__ for base in kind.__mro__ if base.__module__ == "builtins")


def _may_inherit(kind: type, base: type) -> bool:
    """Whether the first built-in error of ``kind`` is one of ``base`` too, or neither is an error."""
    error, inherited = _builtin_error(kind), _builtin_error(base)
    if not (error and inherited):
        return error == inherited
    return issubclass(getattr(builtins, error), getattr(builtins, inherited))


def _kind(value: Any) -> str:
    if isinstance(value, type):
        return "class"
    if hasattr(type(value), "__next__"):
        return "iterator"
    return "function" if callable(value) else "object"


class Reference:
    """Something of the other side that is no plain data: it can be handed back, and that is all."""

    __slots__ = ("_number", "channel")

    def __init__(self, channel: Channel, number: int) -> None:
        self.channel, self._number = channel, number

    def remote_number(self) -> int:
        """Its number on the other side."""
        return self._number


class Function(Reference):
    """A function of the other side: it can be called."""

    __slots__ = ()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What the other side's function returns."""
        return self.channel.ask("call", self._number, "", list(arguments), named)


class Iterator(Reference):
    """An iterator of the other side; every item is fetched once."""

    __slots__ = ()

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        return self.channel.ask("next", self._number)


class Program(Channel):
    """The program's end: does what the other side asks of ``module``, its number 0."""

    def __init__(self, module: Any, descriptors: tuple[int, int], max_bytes: int) -> None:
        super().__init__(descriptors, max_bytes)
        self.offer(module)

    def serve(self, message: list[Any]) -> Any:
        """Tests may ask for everything: the program has no secrets from them."""
        act, number, *rest = message
        target = self.ours(number)
        if act == "next":
            return next(target)
        if act == "set":
            return setattr(target, *rest)
        if rest[0]:
            target = getattr(target, rest[0])
        return target if act == "get" else target(*rest[1], **rest[2])

    def proxy(self, number: int, kind: str, known: Any, *plain: Any) -> Any:
        """A test lends functions and iterators."""
        del known, plain
        return (Iterator if kind == "iterator" else Function)(self, number)


class _Lent:
    """Stands, in what a call has changed, for a container that the other side has."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


def _containers(value: Any, found: list[Any]) -> list[Any]:
    """Everything within ``value`` that a call can change, in an order on which both sides agree."""
    if type(value).__module__ == PROGRAM:  # its own object, of which the other side has a number
        return found
    if isinstance(value, (list, dict, set, bytearray)) or type(value) is deque:
        found.append(value)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)) or type(value) is deque:
        for item in value:
            _containers(item, found)
    return found


def _contents(lent: list[Any]) -> list[Any]:
    """What lent containers hold now, with the lent ones among it by number."""
    numbers = {id(container): number for number, container in enumerate(lent)}

    def marked(value: Any) -> Any:
        if id(value) in numbers:
            return _Lent(numbers[id(value)])
        if type(value) is dict:
            return {key: marked(item) for key, item in value.items()}
        return type(value)(map(marked, value)) if type(value) in (list, tuple) else value

    return [
        [[key, marked(item)] for key, item in container.items()]
        if isinstance(container, dict)
        else [marked(item) for item in container]
        for container in lent
    ]


def _refill(container: Any, content: list[Any]) -> None:
    container.clear()
    if isinstance(container, dict):
        for key, item in content:
            container[key] = item
    else:
        (container.update if isinstance(container, set) else container.extend)(content)


def _same_reference(value: Any) -> str:
    return str(id(value))
