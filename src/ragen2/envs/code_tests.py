"""Tests in the forms that public collections of programming problems use.

A list of ``{"input", "output", "testtype"}`` (LiveCodeBench, DeepCoder; ``type`` in files of
PrimeIntellect), an object of parallel lists ``{"inputs", "outputs", "fn_name"}`` (TACO, APPS;
``input`` and ``output`` in CodeContests), or a list of assert statements (MBPP); each perhaps as
JSON text, and LiveCodeBench's private tests as a compressed pickle of it, read without unpickling.
"""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import zlib
from collections.abc import Iterator
from typing import Any

from ragen2.envs.code_answers import parse_literal
from ragen2.envs.code_cases import Case
from ragen2.envs.sandbox import Given

_TEXT_OPCODES = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE")
_HARMLESS_OPCODES = ("PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP")


def read_tests(value: Any) -> list[Any]:
    """A field of tests as a list of objects with ``input`` and ``output``, or of assert texts."""
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return read_tests(_decoded(value))
    if isinstance(value, dict):
        return list(_parallel(value))
    return list(value)


def cases_of(tests: list[Any], entry: str) -> tuple[list[Case], str]:
    """Cases, and the function that they call (empty: they use standard input and output)."""
    cases: list[Case] = []
    for test in tests:
        name = _function(test) or entry
        if _is_call(test, name):
            entry = entry or name
            cases.append(_call_case(test, name))
        else:
            cases.append(Case(Given(stdin=_text(test["input"])), (_text(test["output"]),)))
    is_call = any(case.given.probes is not None for case in cases)
    return cases, entry if is_call else ""


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return json.loads(_pickled_text(zlib.decompress(base64.b64decode(text, validate=True))))
    except (ValueError, binascii.Error, zlib.error) as error:
        raise ValueError("tests are neither JSON nor a compressed pickle of it") from error


def _pickled_text(data: bytes) -> str:
    """The one text that a pickle holds; reading the opcodes runs none of them."""
    texts = []
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in _TEXT_OPCODES:
            texts.append(str(argument))
        elif opcode.name not in _HARMLESS_OPCODES:
            raise ValueError(f"the pickle does more than hold a text ({opcode.name})")
    if len(texts) != 1:
        raise ValueError(f"the pickle holds {len(texts)} texts, not one")
    return texts[0]


def _parallel(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "test_cases" in value:
        yield from read_tests(value["test_cases"])
        return
    inputs = value.get("inputs", value.get("input"))
    outputs = value.get("outputs", value.get("output"))
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        fields = ", ".join(sorted(value))
        raise ValueError(f"tests have {fields}, not inputs and outputs")  # noqa: TRY004 - of a file
    for given, expected in zip(inputs, outputs, strict=True):
        yield {"input": given, "output": expected, "fn_name": value.get("fn_name")}


def _function(test: dict[str, Any]) -> str:
    metadata = test.get("metadata") or {}
    if isinstance(metadata, str):
        metadata = json.loads(metadata)
    return str(test.get("fn_name") or metadata.get("func_name") or "")


def _is_call(test: dict[str, Any], name: str) -> bool:
    kind = str(test.get("testtype") or test.get("type") or "")
    if kind:
        return kind in ("functional", "function_call")
    return bool(test.get("fn_name")) or (bool(name) and not isinstance(test["input"], str))


def _call_case(test: dict[str, Any], name: str) -> Case:
    """Arguments one a line (LiveCodeBench) or as a list (TACO), where answers are often wrapped."""
    given, expected = test["input"], test["output"]
    if isinstance(given, str):
        arguments = [parse_literal(line) for line in given.split("\n") if line.strip()]
    else:
        arguments = list(given)
    if isinstance(expected, str):
        return Case(Given(probes=((name, arguments),)), (parse_literal(expected), expected))
    wrapped = isinstance(expected, list) and len(expected) == 1
    accepted = (expected, expected[0]) if wrapped else (expected,)
    return Case(Given(probes=((name, arguments),)), accepted)


def _text(value: Any) -> str:
    """Standard input or output; some files keep it as a list of lines."""
    if isinstance(value, list):
        return "\n".join(map(str, value)) + "\n"
    return str(value)
