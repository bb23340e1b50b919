"""From the JSON text of ``write_values`` back to values of exact types, without trusting who wrote it.

Used inside the sandbox by both ends of a remote call, and outside, with other kinds of sets and dicts, by
``read_values``. Inside, imports slow down every start: they stand where they are needed.
"""

from __future__ import annotations

import builtins
from _json import make_scanner

from ragen2.sandbox.write_values import FIELDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

MAX_NUMBER_BITS = 1 << 16
MAX_DECIMAL_DIGITS = 10_000
"""Reducing a fraction and comparing a decimal take more than linear time."""
_LIBRARY = {"Fraction": "fractions", "range": "builtins"}
"""Where the types of ``FIELDS`` are, unless it is datetime."""


def revive(data: bytes, kinds: Mapping[str, Callable[[Any], Any]]) -> Any:
    """The value that ``data`` stands for; ``ValueError`` when it is none or is nested too deep.

    ``kinds`` makes a value of each named type from its parts, which are revived already.
    """
    try:
        return _revived(_parsed(data.decode()), kinds)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a value: {error}") from error
    except (RecursionError, ArithmeticError) as error:
        raise ValueError(f"not a plain value: {type(error).__name__}") from error


class _JsonRules:
    """What the scanner of Python's JSON package asks for; the package itself takes long to import."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_int, parse_float, parse_constant = int, float, float


def _parsed(text: str) -> Any:
    rules: Any = _JsonRules
    try:
        parsed, end = make_scanner(rules)(text, 0)
    except StopIteration as error:
        raise ValueError(f"it breaks off at {error.value}") from error
    if end != len(text):
        raise ValueError(f"there is more after {end}")
    return parsed


def _revived(item: Any, kinds: Mapping[str, Callable[[Any], Any]]) -> Any:
    if isinstance(item, str):
        return bytes.fromhex(item).decode("utf-8", "surrogatepass")
    if isinstance(item, list):
        return [_revived(part, kinds) for part in item]
    if not isinstance(item, dict):
        return item
    ((kind, content),) = item.items()
    if kind in _SCALARS:
        return _SCALARS[kind](content)
    return kinds[kind](_revived(content, kinds))


def _complex(parts: Any) -> complex:
    real, imaginary = parts
    return complex(float.fromhex(real), float.fromhex(imaginary))


def _decimal(digits: str) -> Any:
    from decimal import Decimal

    if type(digits) is not str or len(digits) > MAX_DECIMAL_DIGITS:
        raise ValueError("a decimal number of unreasonable size")
    return Decimal(digits)


def _library_type(name: str) -> Callable[[Any], Any]:
    def make(parts: Any) -> Any:
        for part in parts:
            if type(part) is not int or part.bit_length() > MAX_NUMBER_BITS:
                raise ValueError(f"a part of a {name} is no integer of reasonable size")
        module = __import__(_LIBRARY.get(name, "datetime"))
        return getattr(module, name)(*parts)

    return make


def _builtin_type(name: Any) -> Any:
    found = getattr(builtins, name, None)
    if not isinstance(found, type):
        raise ValueError(f"no type {name!r}")  # noqa: TRY004 - of the data
    return found


def _collection(name: str, *, is_mapping: bool = True) -> Callable[[Any], Any]:
    def make(content: Any) -> Any:
        import collections

        kind = getattr(collections, name)
        return kind(dict(content)) if is_mapping else kind(*content)

    return make


def _bytearray(content: Any) -> bytearray:
    if type(content) is not bytes:  # a number would reserve that much memory
        raise ValueError("a bytearray of no bytes")
    return bytearray(content)


def _aware(parts: Any) -> Any:
    from datetime import timezone

    moment, offset = parts
    return moment.replace(tzinfo=timezone(offset))


def _array(content: Any) -> Any:
    from array import array

    typecode, items = content
    return array(typecode, items)


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "int": lambda content: int(content, 16),
    "float": float.fromhex,
    "bytes": bytes.fromhex,
    "complex": _complex,
}
PLAIN: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "dict": dict,
    "set": set,
    "frozenset": frozenset,
    "keys": lambda parts: dict.fromkeys(parts).keys(),
    "values": lambda parts: dict(enumerate(parts)).values(),
    "items": lambda parts: dict(parts).items(),
    "Counter": _collection("Counter"),
    "OrderedDict": _collection("OrderedDict"),
    "defaultdict": _collection("defaultdict", is_mapping=False),
    "deque": _collection("deque", is_mapping=False),
    "bytearray": _bytearray,
    "aware": _aware,
    "array": _array,
    "decimal": _decimal,
    "type": _builtin_type,
    **{name: _library_type(name) for name in FIELDS},
}
"""Each kind as what it was."""
