"""Programming problems from files, in the formats of their publishers.

MBPP (plain, sanitized), HumanEval, TACO and APPS, PrimeIntellect, LiveCodeBench, DeepCoder, CodeContests,
P3 and Exercism records are told apart by their fields; ``ragen2.envs.toolkit.records`` reads the files.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import pickletools
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ragen2.envs.deepcoder.answers import Case, Problem, parse_literal
from ragen2.envs.deepcoder.hidden_tests import (
    api_of,
    check_of_asserts,
    check_of_candidate,
    check_of_puzzle,
    checks_of_unittest,
    first_call,
    is_judgeable,
    is_python,
)
from ragen2.envs.toolkit.records import Record, TaskSet, read_records, separate_tasks, split_tasks
from ragen2.errors import EnvError
from ragen2.sandbox import Given

_log = logging.getLogger(__name__)
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
    is_call = any(case.given.call for case in cases)
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
        return Case(Given(call=(name, arguments)), (parse_literal(expected), expected))
    wrapped = isinstance(expected, list) and len(expected) == 1
    accepted = (expected, expected[0]) if wrapped else (expected,)
    return Case(Given(call=(name, arguments)), accepted)


def _text(value: Any) -> str:
    """Standard input or output; some files keep it as a list of lines."""
    if isinstance(value, list):
        return "\n".join(map(str, value)) + "\n"
    return str(value)


HELD_OUT_SPLITS = ("test", "validation", "valid", "val", "dev", "eval")
_LEVELS = {
    **{"introductory": 1, "easy": 2, "medium": 3, "medium_hard": 4},
    **{"interview": 3, "hard": 4, "very_hard": 5, "competition": 5},
}
_PRELUDE = (
    "import bisect, collections, functools, heapq, itertools, math, operator, random, re, string\n"
    "from bisect import *\nfrom collections import *\nfrom functools import *\n"
    "from heapq import *\nfrom itertools import *\nfrom math import *\nfrom typing import *\n"
    "from builtins import pow\n"
)
"""What LeetCode-style starter code takes for granted; math's ``pow`` knows no modulus."""
_PYTHON3 = 3
"""CodeContests' number for the language."""


@lru_cache(maxsize=8)
def problems_of(
    data: str, held_out_data: str = "", *, max_tests: int = 0, held_out_ratio: float = 0.2
) -> TaskSet[Problem]:
    """Problems in two parts: two files, or one as its own splits say, or by a fixed draw."""
    problems = _read_file(data, max_tests)
    if held_out_data:
        return separate_tasks(problems, _read_file(held_out_data, max_tests), _names)
    held_out = [problem for problem in problems if problem.split in HELD_OUT_SPLITS]
    training = [problem for problem in problems if problem.split not in HELD_OUT_SPLITS]
    if held_out and training:
        return separate_tasks(training, held_out, _names)
    return split_tasks(problems, _names, held_out_ratio)


def _read_file(source: str, max_tests: int) -> list[Problem]:
    read = [_problem(record, number) for number, record in enumerate(read_records(source))]
    problems = [_limited(problem, max_tests) for problem in read if problem.cases]
    if num_left_out := sum(problem.num_left_out for problem in read):
        _log.warning(
            "%s: %d of %d tests are left out (the program's own objects would decide, they reach into its "
            "process, or are no methods of a TestCase), and %d of %d problems, which have no other tests",
            source,
            num_left_out,
            num_left_out + sum(len(problem.cases) for problem in read),
            len(read) - len(problems),
            len(read),
        )
    if not problems:
        raise EnvError(
            f"{source} holds no problem with tests; see the page of DeepCoder for formats"
        )
    return problems


def read_problems(records: Iterable[Record]) -> list[Problem]:
    """Problems of all records that have tests; ``EnvError`` names one that cannot be read."""
    problems = (_problem(record, number) for number, record in enumerate(records))
    return [problem for problem in problems if problem.cases]


def _problem(record: Record, number: int) -> Problem:
    name = str(record.get("id") or record.get("task_id") or number)
    for field, build in _FORMATS.items():
        if record.get(field):
            try:
                return build(record, name)
            except (ValueError, TypeError, LookupError, AttributeError, SyntaxError) as error:
                raise EnvError(
                    f"problem {name} cannot be read ({error}); correct or remove it"
                ) from error
    raise EnvError(
        f"problem {number} has the fields {', '.join(sorted(record))}, none of which holds tests; "
        f"known: {', '.join(_FORMATS)}"
    )


def _from_asserts(record: Record, name: str) -> Problem:
    """MBPP: a sentence and assert statements."""
    # Not the challenge tests: some contradict the sanitized solutions, and nobody else counts them.
    tests = record.get("test_list") or record["tests"]
    imports = (
        record.get("test_imports") or record.get("test_setup_code") or record.get("test_setup")
    )
    setup = "\n".join(imports) if isinstance(imports, list) else str(imports or "")
    entry, call = first_call(str(tests[0]))
    entry = str(record.get("entry_point") or entry)
    prompt = _first(record, "text", "prompt").strip()
    solution = str(record.get("code") or record.get("solution") or "")
    api = api_of(solution)
    judgeable = [str(test) for test in tests if is_judgeable(f"{setup}\n{test}", api)]
    return Problem(
        name=name,
        statement=f"{prompt}\nCall the function {entry}. Example call: {call}",
        form="call",
        cases=tuple(check_of_asserts(test, setup, api) for test in judgeable),
        solution=solution,
        summary=prompt,
        entry=entry,
        split=str(record.get("split") or _mbpp_split(record.get("task_id"))),
        num_left_out=len(tests) - len(judgeable),
    )


def _from_candidate_check(record: Record, name: str) -> Problem:
    """HumanEval: the start of a function, and a function that checks it as a whole."""
    start, entry, test = (str(record[field]) for field in ("prompt", "entry_point", "test"))
    solution = start + str(record.get("canonical_solution") or "")
    api = api_of(solution)
    judgeable = is_judgeable(test, api)
    given = _PRELUDE + next(text for text in (solution, start, "") if is_python(text))
    return Problem(
        name=name,
        statement=f"Write the whole program, with this function completed:\n{start.strip()}",
        form="call",
        cases=(check_of_candidate(test, entry, given, api),) if judgeable else (),
        solution=solution if record.get("canonical_solution") else "",
        summary=f"the function {entry}",
        entry=entry,
        prelude=_PRELUDE,
        split=str(record.get("split") or ""),
        num_left_out=int(not judgeable),
    )


def _from_tests(record: Record, name: str) -> Problem:
    """A statement and tests of input and output, under one of several field names."""
    tests = []
    for field in ("tests", "input_output", "verification_info", *_CONTEST_FIELDS):
        tests += read_tests(record.get(field))
    if tests and isinstance(tests[0], str):
        return _from_asserts({**record, "tests": tests}, name)
    starter = str(record.get("starter_code") or "")
    cases, entry = cases_of(tests, _entry(record, starter))
    prompt = _first(record, "problem", "question_content", "question", "prompt", "description")
    shown = f"\nUse this starter code:\n{starter.strip()}" if starter.strip() else ""
    ask = f"\nWrite the function {entry}." if entry and not shown else ""
    return Problem(
        name=name,
        statement=f"{prompt.strip()}{shown}{ask}",
        form="call" if entry else "stdin",
        cases=tuple(cases),
        solution=_solution(record),
        summary=_first_sentence(prompt),
        level=_level(record.get("difficulty")),
        entry=entry,
        prelude=_PRELUDE if "class Solution" in starter else "",
        split=str(record.get("split") or ""),
    )


def _from_puzzle(record: Record, name: str) -> Problem:
    """P3: any answer that makes ``sat`` true will do."""
    header = str(record["sol_header"])
    match = re.match(r"def (\w+)", header)
    entry = match[1] if match else "sol"
    sat = str(record["sat"])
    ask = (
        f"Write a function {header.removeprefix('def ').rstrip(': ')} whose result makes sat true."
    )
    explanation = str(record.get("docstring") or "").strip().strip('"')
    return Problem(
        name=name,
        statement=f"{ask}\n{sat}",
        form="call",
        cases=(check_of_puzzle(sat, entry),),
        solution=str(record.get("solution") or ""),
        summary=explanation or f"an answer that {name} accepts",
        entry=entry,
        prelude="from typing import *\n",
        split=str(record.get("split") or ""),
    )


def _from_unittest(record: Record, name: str) -> Problem:
    """Exercism: a text, starter code and a unittest class."""
    module = str(record.get("solution_file") or "").removesuffix(".py")
    starter = str(record.get("starter_code") or "").strip()
    prompt = str(record.get("prompt") or "").strip()
    solution = str(record.get("solution") or "")
    api = api_of(starter, solution)
    cases, num_left_out = checks_of_unittest(str(record["test_code"]), module, api)
    return Problem(
        name=name,
        statement=f"{prompt}\nUse this starter code:\n{starter}",
        form="call",
        cases=tuple(cases),
        num_left_out=num_left_out,
        solution=solution,
        summary=_first_sentence(prompt.removeprefix("# Instructions")),
        level=_level(record.get("difficulty")),
        entry=_entry(record, starter),
        split=str(record.get("split") or ""),
    )


_CONTEST_FIELDS = (
    *("public_test_cases", "private_test_cases"),
    *("public_tests", "private_tests", "generated_tests"),
)
_FORMATS: dict[str, Callable[[Record, str], Problem]] = {
    "sat": _from_puzzle,
    "test_code": _from_unittest,
    "test_list": _from_asserts,
    "test": _from_candidate_check,
    **dict.fromkeys(("tests", "input_output", "verification_info", *_CONTEST_FIELDS), _from_tests),
}
"""How to read a record, by the field that holds its tests."""


def _first(record: Record, *fields: str) -> str:
    for field in fields:
        if record.get(field):
            return str(record[field])
    raise ValueError(f"it has none of the fields {', '.join(fields)}")


def _entry(record: Record, starter: str) -> str:
    """The function to write: as the metadata say, else the last one of the starter code."""
    metadata = record.get("metadata") or {}
    if isinstance(metadata, str):
        metadata = json.loads(metadata)
    if isinstance(metadata, dict) and metadata.get("func_name"):
        return str(metadata["func_name"])
    names = re.findall(r"def (\w+)\(", starter)
    return names[-1] if names else ""


def _solution(record: Record) -> str:
    """A reference solution in Python, where the record has one."""
    value = record.get("solution") or record.get("gold_standard_solution")
    value = value or record.get("solutions") or ""
    if isinstance(value, str) and value.startswith("["):
        value = json.loads(value)
    if isinstance(value, dict):
        pairs = zip(value["language"], value["solution"], strict=True)
        value = [text for language, text in pairs if language == _PYTHON3]
    if isinstance(value, list):
        value = value[0] if value else ""
    fenced = re.search(r"```(?:python)?\n(.*?)```", str(value), re.DOTALL)
    return fenced[1] if fenced else str(value)


def _level(difficulty: Any) -> int:
    if isinstance(difficulty, int):
        return min(5, max(1, difficulty))
    return _LEVELS.get(str(difficulty or "").lower(), 0)


def _mbpp_split(task_id: Any) -> str:
    """MBPP's parts by number, as its paper gives them."""
    if not isinstance(task_id, int):
        return ""
    return "test" if 11 <= task_id <= 510 else "validation" if 511 <= task_id <= 600 else "train"


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s|\n", text.strip(), maxsplit=1)[0][:160]


def _limited(problem: Problem, max_tests: int) -> Problem:
    """At most ``max_tests`` cases, spread over all of them."""
    count = len(problem.cases)
    if max_tests == 0 or count <= max_tests:
        return problem
    chosen = sorted({round(i * (count - 1) / max(1, max_tests - 1)) for i in range(max_tests)})
    return replace(problem, cases=tuple(problem.cases[index] for index in chosen))


def _names(problem: Problem) -> tuple[str, ...]:
    """Problems with the same statement are the same problem."""
    return (" ".join(problem.statement.split()),)
