"""Python values as JSON text, written in the process that holds them; ``read_values`` reads it.

Only plain data survives: None, booleans, numbers, text, bytes, dates and containers of them. Text travels
as hexadecimal UTF-8, so that writing needs no JSON package inside the sandbox; what JSON lacks is
an object with one key that names its type: ``{"tuple": [...]}``. Any other object is only named.
"""

from __future__ import annotations

import builtins

TYPE_CHECKING = False  # importing typing costs more than all the rest of this file
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PROGRAM = "program"
"""The module that a program is, when it is not run as a script."""
_EXACT_INTEGERS = 1 << 53
_VIEWS = {"dict_keys": "keys", "dict_values": "values", "dict_items": "items"}
_LIBRARY = ("array", "builtins", "collections", "datetime", "decimal", "fractions")
SUBCLASSED = (str, tuple, dict, set, frozenset, bytes, bytearray, complex, list, int, float)
"""Plain types that a program's own class may be made of."""
FIELDS: dict[str, tuple[str, ...]] = {
    "Fraction": ("numerator", "denominator"),
    "range": ("start", "stop", "step"),
    "date": ("year", "month", "day"),
    "time": ("hour", "minute", "second", "microsecond"),
    "datetime": ("year", "month", "day", "hour", "minute", "second", "microsecond"),
    "timedelta": ("days", "seconds", "microseconds"),
}
"""Library types that a few integers make up, in the order in which the type takes them."""


def write(value: Any, other: Callable[[Any], str] | None = None) -> str:
    """``value`` as JSON text, with ``other`` for what is no plain data or is of the program's own classes.

    Without it the latter count as the data they hold, and any other object is only named. Depth and size are
    bounded by the process's own limits.
    """
    kind = type(value)
    if value is None or kind is bool:
        return "null" if value is None else "true" if value else "false"
    if kind is int:
        return str(value) if abs(value) < _EXACT_INTEGERS else f'{{"int":"{value:x}"}}'
    if kind is float:
        return f'{{"float":"{value.hex()}"}}'
    if kind is str:
        return _text(value)
    if kind is list:
        return _sequence(value, other)
    if other is not None and kind.__module__ == PROGRAM:
        return other(value)
    if kind.__module__ == "collections":
        return _write_collection(value, other)
    return write_plain(value, other)


def write_plain(value: Any, other: Callable[[Any], str] | None) -> str:
    """Text, containers and numbers, also where they are of a subclass."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (list, tuple)):
        text = _sequence(value, other)
        return text if isinstance(value, list) else f'{{"tuple":{text}}}'
    if isinstance(value, dict):
        return f'{{"dict":{_pairs(value, other)}}}'
    if isinstance(value, (set, frozenset)):
        kind = "set" if isinstance(value, set) else "frozenset"
        return f'{{"{kind}":{_sequence(value, other)}}}'
    if isinstance(value, (bytes, bytearray)):
        text = f'{{"bytes":"{bytes(value).hex()}"}}'
        return text if isinstance(value, bytes) else f'{{"bytearray":{text}}}'
    if isinstance(value, complex):
        return f'{{"complex":["{value.real.hex()}","{value.imag.hex()}"]}}'
    if isinstance(value, (int, float)):
        return write(int(value) if isinstance(value, int) else float(value))
    return _write_library_type(value, other)


def _sequence(items: Any, other: Callable[[Any], str] | None) -> str:
    return "[" + ",".join([write(item, other) for item in items]) + "]"


def _pairs(value: Any, other: Callable[[Any], str] | None) -> str:
    pairs = [f"[{write(key, other)},{write(item, other)}]" for key, item in value.items()]
    return "[" + ",".join(pairs) + "]"


def _text(value: str) -> str:
    return '"' + str.encode(value, "utf-8", "surrogatepass").hex() + '"'


def _write_collection(value: Any, other: Callable[[Any], str] | None) -> str:
    name = type(value).__name__
    if name in ("Counter", "OrderedDict"):
        return f'{{"{name}":{_pairs(value, other)}}}'
    if name == "defaultdict":
        return f'{{"defaultdict":[{write(value.default_factory, other)},{_pairs(value, other)}]}}'
    if name == "deque":
        return f'{{"deque":[{_sequence(value, other)},{write(value.maxlen)}]}}'
    return write_plain(value, other)


def _write_library_type(value: Any, other: Callable[[Any], str] | None) -> str:
    kind = type(value)
    name = kind.__name__
    is_builtin = isinstance(value, type) and vars(builtins).get(value.__name__) is value
    if is_builtin:
        return f'{{"type":{_text(value.__name__)}}}'
    if kind.__module__ in _LIBRARY:
        zone = getattr(value, "tzinfo", None)
        if name == "datetime" and str(type(zone)) == "<class 'datetime.timezone'>":
            moment = write(value.replace(tzinfo=None))
            return f'{{"aware":[{moment},{write(value.utcoffset())}]}}'
        if name in FIELDS and zone is None:
            parts = [getattr(value, part) for part in FIELDS[name]]
            return f'{{"{name}":{_sequence(parts, other)}}}'
        if name in _VIEWS:
            return f'{{"{_VIEWS[name]}":{_sequence(value, other)}}}'
        if name == "array":
            return f'{{"array":[{_text(value.typecode)},{_sequence(value, other)}]}}'
        if name == "Decimal":
            return f'{{"decimal":{_text(str(value))}}}'
    return other(value) if other else f'{{"opaque":{_text(name)}}}'
