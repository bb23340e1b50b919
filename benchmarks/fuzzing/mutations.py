"""Damaged and hostile variants of good files: bytes, and the values that JSON, TOML and tables hold.

A form says how bytes become a value and back. Most variants change the value, so that what reads it gets past
the parser; the others change the bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tomli_w

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, -(2**31) - 1, 2**63, 10**30, 10**400),
    *(0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"), float("-inf")),
    *(
        "",
        " ",
        "0",
        "-1",
        "1e999",
        "nan",
        "null",
        "true",
        "x",
        "é",
        "\ud800",
        "\x00",
        "\u2028",
        "\n",
    ),
    *("../../etc/passwd", "/dev/zero", "</script>", "<think>", "%s%n{0}", "a" * 5000),
    *([], {}, [[]], [None], [{}], {"": None}, [1, "a", None], {"kind": "none"}),
)
"""What stands where something else should."""
TOKENS = (
    *(
        b"\x00",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\n",
        b"\r\n",
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b"\\",
        b",",
    ),
    *(b"[" * 100_000, b'{"":' * 20_000, b"9" * 5000, b"1e999", b"-", b"NaN", b"\\ud800", b"null"),
    *(b"\xff" * 8, b"\x80\x00\x00\x00", b"\x7f" + b"\xff" * 7, b"=", b"%", b"\x1f\x8b"),
)


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """One to four small damages."""
    for _ in range(rng.randint(1, 4)):
        data = rng.choice(_DAMAGES)(data, rng)
    return data


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return data
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randint(0, len(data))]


def _remove(data: bytes, rng: random.Random) -> bytes:
    start = rng.randint(0, len(data))
    return data[:start] + data[start + rng.randint(1, 40) :]


def _insert(data: bytes, rng: random.Random) -> bytes:
    place = rng.randint(0, len(data))
    return data[:place] + rng.choice(TOKENS) + data[place:]


def _overwrite(data: bytes, rng: random.Random) -> bytes:
    """Near the start as often as anywhere: binary files have their counts there."""
    token = rng.choice(TOKENS)[:16]
    place = rng.randint(0, min(len(data), rng.choice((32, 512, len(data)))))
    return data[:place] + token + data[place + len(token) :]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    start = rng.randint(0, len(data))
    return (
        data[:start] + data[start : start + rng.randint(1, 200)] * rng.randint(2, 30) + data[start:]
    )


_DAMAGES = (_flip, _cut, _remove, _insert, _overwrite, _repeat)


def mutate_value(value: Any, rng: random.Random) -> Any:
    """A copy with one to four places changed."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.randint(1, 4)):
        places = list(_places(value))
        if not places:
            return odd_value(rng)
        holder, key = rng.choice(places)
        rng.choice(_CHANGES)(holder, key, rng)
    return value


def odd_value(rng: random.Random) -> Any:
    """One of ``ODD``, or lists in lists."""
    if rng.random() > 0.02:
        return json.loads(json.dumps(rng.choice(ODD)))
    return json.loads("[" * 200 + "]" * 200)


def _places(value: Any) -> Any:
    """Every (holder, key) below ``value``; of long lists some."""
    if isinstance(value, dict):
        keys: list[Any] = list(value)
    elif isinstance(value, list):
        keys = list(range(min(len(value), 50)))
    else:
        return
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _replace(holder: Any, key: Any, rng: random.Random) -> None:
    holder[key] = odd_value(rng)


def _drop(holder: Any, key: Any, rng: random.Random) -> None:
    del rng
    del holder[key]


def _rename(holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder, dict):
        holder[rng.choice(("", "kind", "x", str(key).upper(), f"{key}s"))] = holder.pop(key)
    else:
        holder.append(holder[key])


def _wrap(holder: Any, key: Any, rng: random.Random) -> None:
    held = holder[key]
    holder[key] = rng.choice(([held], {"value": held}, str(held), [held] * 3))


def _unwrap(holder: Any, key: Any, rng: random.Random) -> None:
    held = holder[key]
    inner = list(held.values()) if isinstance(held, dict) else held
    if isinstance(inner, list) and inner:
        holder[key] = rng.choice(inner)
    elif isinstance(held, int | float):
        holder[key] = rng.choice((-held, held + 1, held * 10**9 if abs(held) < 10**30 else 0))


def _swap(holder: Any, key: Any, rng: random.Random) -> None:
    other = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]


_CHANGES = (_replace, _replace, _replace, _drop, _rename, _wrap, _unwrap, _swap)


@dataclass(frozen=True, slots=True)
class Form:
    """How bytes become a value that can be changed, and back; without these, bytes are changed."""

    parse: Callable[[bytes], Any] | None = None
    pack: Callable[[Any], bytes] | None = None

    def mutate(self, data: bytes, rng: random.Random) -> bytes:
        """One variant of a good file."""
        if self.parse is None or self.pack is None or rng.random() < 0.25:
            return mutate_bytes(data, rng)
        try:
            packed = self.pack(mutate_value(self.parse(data), rng))
        except (ValueError, TypeError, OverflowError, AttributeError, RecursionError):
            return mutate_bytes(data, rng)  # this form cannot hold such a value
        return mutate_bytes(packed, rng) if rng.random() < 0.05 else packed


def _json_lines(rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _toml(value: Any) -> bytes:
    return tomli_w.dumps(value).encode("utf-8", "surrogatepass")


def _parquet(rows: Any) -> bytes:
    import pyarrow
    import pyarrow.parquet

    file = io.BytesIO()
    try:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    except pyarrow.ArrowException as error:
        raise ValueError(str(error)) from error
    return file.getvalue()


def _rows_of_parquet(data: bytes) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist()


def safetensors(file: bytes) -> Form:
    """The head of a file of weights, before these weights."""
    (size,) = struct.unpack("<Q", file[:8])

    def pack(head: Any) -> bytes:
        text = json.dumps(head).encode()
        return struct.pack("<Q", len(text)) + text + file[8 + size :]

    return Form(lambda data: json.loads(data[8 : 8 + size]), pack)


def packed(form: Form) -> Form:
    """The same under gzip."""
    if form.parse is None or form.pack is None:
        return BYTES
    parse, pack = form.parse, form.pack
    return Form(
        lambda data: parse(gzip.decompress(data)),
        lambda value: gzip.compress(pack(value), compresslevel=1),
    )


BYTES = Form()
JSON = Form(json.loads, lambda value: json.dumps(value).encode())
JSON_LINES = Form(lambda data: [json.loads(line) for line in data.splitlines()], _json_lines)
TOML = Form(lambda data: tomllib.loads(data.decode()), _toml)
PARQUET = Form(_rows_of_parquet, _parquet)
