"""Values that a program's process wrote, read without trusting them: data only, bounded, unhashed.

Sets and dicts come back as ``Members`` and ``Pairs``, plain tuples of what they held: a program
could choose members whose hashes collide, and building the set would then take us minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ragen2.sandbox.revive import PLAIN, revive


@dataclass(frozen=True, slots=True)
class Members:
    """What a set held, in any order."""

    items: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"{{{', '.join(map(repr, self.items))}}}" if self.items else "set()"


@dataclass(frozen=True, slots=True)
class Pairs:
    """What a dict held, key and value."""

    items: tuple[tuple[Any, Any], ...]

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{key!r}: {value!r}' for key, value in self.items)}}}"


@dataclass(frozen=True, slots=True)
class Opaque:
    """An object that is not plain data, by the name of its type."""

    type_name: str


def read(text: bytes) -> Any:
    """The value that ``text`` stands for; ``ValueError`` when it is none or is nested too deep."""
    return revive(text, _KINDS)


def _pairs(parts: Any) -> Pairs:
    return Pairs(tuple((key, value) for key, value in parts))


def _members(parts: Any) -> Members:
    return Members(tuple(parts))


_KINDS: dict[str, Callable[[Any], Any]] = {
    **PLAIN,
    "dict": _pairs,
    "set": _members,
    "frozenset": _members,
    **dict.fromkeys(("Counter", "OrderedDict"), _pairs),
    "defaultdict": lambda content: _pairs(content[1]),
    "deque": lambda content: list(content[0]),
    "bytearray": lambda content: bytes(PLAIN["bytearray"](content)),
    "array": lambda content: list(content[1]),
    **dict.fromkeys(("keys", "values", "items", "range", "type"), lambda parts: Opaque("view")),
    "opaque": Opaque,
}
