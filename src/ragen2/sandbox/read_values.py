"""Values that a program's process wrote, read without trusting them: data only, bounded, unhashed.

Sets and dicts come back as ``Members`` and ``Pairs``, plain tuples of what they held: a program
could choose members whose hashes collide, and building the set would then take us minutes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

MAX_FRACTION_BITS = 1 << 16
MAX_DECIMAL_DIGITS = 10_000
"""Reducing a fraction and comparing a decimal take more than linear time."""


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
    try:
        return _revive(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a value: {error}") from error
    except (RecursionError, InvalidOperation, ZeroDivisionError) as error:
        raise ValueError(f"not a plain value: {type(error).__name__}") from error


def _revive(item: Any) -> Any:
    if isinstance(item, str):
        return _text(item)
    if isinstance(item, list):
        return [_revive(part) for part in item]
    if not isinstance(item, dict):
        return item
    ((kind, content),) = item.items()
    return _REVIVERS[kind](content)


def _text(content: str) -> str:
    return bytes.fromhex(content).decode("utf-8", "surrogatepass")


def _number(content: Any) -> int:
    number = _revive(content)
    if type(number) is not int or number.bit_length() > MAX_FRACTION_BITS:
        raise ValueError("a part of a fraction is no integer of reasonable size")
    return number


def _decimal(content: str) -> Decimal:
    digits = _text(content)
    if len(digits) > MAX_DECIMAL_DIGITS:
        raise ValueError("a decimal number of unreasonable size")
    return Decimal(digits)


_REVIVERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda content: int(content, 16),
    "float": float.fromhex,
    "tuple": lambda content: tuple(_revive(part) for part in content),
    "dict": lambda content: Pairs(tuple((_revive(key), _revive(item)) for key, item in content)),
    "set": lambda content: Members(tuple(_revive(part) for part in content)),
    "bytes": bytes.fromhex,
    "complex": lambda content: complex(*(float.fromhex(part) for part in content)),
    "fraction": lambda content: Fraction(*(_number(part) for part in content)),
    "decimal": _decimal,
    "opaque": lambda content: Opaque(_text(content)),
}
