"""Python values as JSON text, written by the process that ran a program; ``read_values`` reads it.

Only plain data survives: None, booleans, numbers, text, bytes and containers of them. Text travels
as hexadecimal UTF-8, so that writing needs no JSON package inside the sandbox; what JSON lacks is
an object with one key that names its type: ``{"tuple": [...]}``. Any other object is only named.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing costs more than all the rest of this file
if TYPE_CHECKING:
    from typing import Any

_EXACT_INTEGERS = 1 << 53


def write(value: Any) -> str:
    """``value`` as JSON text. Depth and size are bounded by the process's own limits."""
    kind = type(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return str(value) if abs(value) < _EXACT_INTEGERS else f'{{"int":"{value:x}"}}'
    if kind is float:
        return f'{{"float":"{value.hex()}"}}'
    if kind is list:
        return _sequence(value)
    return _write_rarer(value)


def _sequence(items: Any) -> str:
    return "[" + ",".join(map(write, items)) + "]"


def _text(value: str) -> str:
    return '"' + str.encode(value, "utf-8", "surrogatepass").hex() + '"'


def _write_rarer(value: Any) -> str:
    """Text, containers, and subclasses of plain types."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, tuple):
        return f'{{"tuple":{_sequence(value)}}}'
    if isinstance(value, dict):
        pairs = (f"[{write(key)},{write(item)}]" for key, item in value.items())
        return '{"dict":[' + ",".join(pairs) + "]}"
    if isinstance(value, (set, frozenset)):
        return f'{{"set":{_sequence(value)}}}'
    return _write_subclass(value)


def _write_subclass(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return f'{{"bytes":"{bytes(value).hex()}"}}'
    if isinstance(value, complex):
        return f'{{"complex":["{value.real.hex()}","{value.imag.hex()}"]}}'
    if isinstance(value, list):
        return _sequence(value)
    if isinstance(value, int):
        return write(int(value))
    if isinstance(value, float):
        return write(float(value))
    return _write_library_type(value)


def _write_library_type(value: Any) -> str:
    name = type(value).__name__
    if name in ("deque", "array"):
        return _sequence(value)
    if name == "Fraction":
        return f'{{"fraction":[{write(value.numerator)},{write(value.denominator)}]}}'
    if name == "Decimal":
        return f'{{"decimal":{_text(str(value))}}}'
    return f'{{"opaque":{_text(name)}}}'
