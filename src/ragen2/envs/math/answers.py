"""Answers to math questions: find the final answer in a text, and tell whether two are the same.

Whether two are the same mathematics is decided by the package math-verify, in a process of its own. Short
texts can keep sympy busy for ever (``9^{9^{9}}``), some of them in C code that no signal interrupts, and its
own time limit works in the main thread alone; such a process is killed, and what it was asked counts as not
the same.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import logging
import os
import re
import select
import subprocess
import sys
import threading
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import IO, cast

from ragen2.errors import DependencyError, GradingError

MAX_LENGTH = 1000
"""Longest answer that is looked at; a longer one is no answer."""
MAX_TEXT = 20_000
"""Longest text in which a final answer is looked for."""
MAX_EXPONENT = 99

_ANNOUNCED = re.compile(r"####|\banswer\s*:|\banswer is\b", re.IGNORECASE)
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)")

_TEXT = re.compile(r"\\(?:text|mbox|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")
_MARKUP = re.compile(
    r"\\(?:left|right|displaystyle|[,;:! ])|\\[()\[\]]|\*\*|[`~°]|\^\s*\{?\s*\\circ\s*\}?"
)
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))", re.ASCII)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,|\{,\})\d{3})+(?![\d,])", re.ASCII)
_ASSIGNMENT = re.compile(r"^(?:(?:[a-z]\s*|[-\d\s.,+*/×÷()$%]+)=\s*)+", re.ASCII)
"""``x =`` or a sum worked out before the answer: ``24 + 48 = 72``."""
_NEEDLESS_SPACE = re.compile(r"(?<![^\W_]) | (?![^\W_])")
_VULGAR = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅛": "1/8"}
_CURRENCY = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee", "¢": "cent"}

_NUMBER = re.compile(
    r"""(?:(?P<sign>[-+])\s*)?
    (?: (?P<whole>\d+)(?:\ |\ ?(?=\())\(?(?P<part>\d+)\s*/\s*(?P<of>\d+)\)?     # 1 1/2
      | \(?(?P<top>[-+]?\d+(?:\.\d+)?)\s*/\s*(?P<bottom>\d+(?:\.\d+)?)\)?       # 3/4
      | (?P<plain>\d+\.?\d*|\.\d+)                                              # 12  1.5  .5
        (?: \s*(?:\*|×|\\times|\\cdot|x)\s*10\s*\^\s*\{?(?P<power>[-+]?\d+)\}?  # 2 x 10^3
          | e(?P<exponent>[-+]?\d+) )? )""",
    re.VERBOSE | re.ASCII,
)
_UNIT_POWER = re.compile(r"(?<=[a-z]) ?\^\{?[23]\}?|[²³]")
_WORD = re.compile(r"[^\W\d_]+(?:[-/'][^\W\d_]+)*")
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_SHORT_UNITS = {
    **{"mm": "millimeter", "cm": "centimeter", "m": "meter", "km": "kilometer", "ft": "feet"},
    **{"g": "gram", "kg": "kilogram", "lb": "pound", "lbs": "pound", "oz": "ounce", "l": "liter"},
    **{"s": "second", "sec": "second", "min": "minute", "h": "hour", "hr": "hour", "hrs": "hour"},
    **{"mph": "mile", "mi": "mile", "ml": "milliliter", "usd": "dollar", "eur": "euro"},
}
_SENSE_CHANGING = frozenset(
    {"pi", "sqrt", "sin", "cos", "tan", "log", "ln", "exp", "mod"}
    | {"or", "not", "no", "never", "isn't", "than", "least", "most"}
)
"""Words that make a number say something else; a text with one of them is compared as text."""


@dataclass(frozen=True, slots=True)
class MathAnswer:
    """An answer as it is compared."""

    text: str
    """In lower case and without markup; empty when there is no answer."""
    value: Fraction | None = None
    """Its exact number, where the answer is one number, with or without words around it."""
    units: frozenset[str] = frozenset()
    is_percent: bool = False


def final_answer(text: str) -> str:
    r"""The last answer a text announces: ``\boxed{..}``, else after ``####`` or ``answer is``.

    A text that announces nothing is its own answer.
    """
    boxes = [match.end() for match in _BOXED.finditer(text)]
    if boxes:
        return _braced(text, boxes[-1])
    announced = [match.end() for match in _ANNOUNCED.finditer(text)]
    if not announced:
        return text.strip()
    lines = text[announced[-1] :].lstrip(": \t\n").splitlines()
    return lines[0].strip() if lines else ""


def same_answer(first: str, second: str) -> bool:
    """Whether two texts give the same final answer; their order does not matter.

    Numbers are compared exactly, however they are written: ``1/2``, ``0.5`` and ``50%`` are the
    same, ``0.33`` and ``1/3`` are not. A percent sign also matches its bare number, ``50`` for
    ``50%``. Units count only where both have one. What is no number is compared as text.
    """
    a, b = read_answer(first), read_answer(second)
    if not a.text or not b.text:
        return False
    if a.value is None and b.value is None:
        return a.text == b.text or _same_lists(a.text, b.text)
    if a.value is None or b.value is None:
        return False
    if a.units and b.units and not a.units & b.units:
        return False
    if a.is_percent == b.is_percent:
        return a.value == b.value
    percent, bare = (a.value, b.value) if a.is_percent else (b.value, a.value)
    return bare in (percent, percent / 100)


def same_text(first: str, second: str) -> bool:
    """The reference's strict rule: equal but for case and white space."""
    a, b = ("".join(text.lower().split()) for text in (first, second))
    return bool(a) and a == b


@lru_cache(maxsize=8192)
def read_answer(text: str) -> MathAnswer:
    """Find the final answer of ``text`` and read it as a number, if it is one."""
    answer = final_answer(text) if len(text) <= MAX_TEXT else ""
    if len(answer) > MAX_LENGTH:
        return MathAnswer("")
    plain = _without_markup(answer)
    return _as_number(plain) or MathAnswer(_NEEDLESS_SPACE.sub("", plain))


def _without_markup(answer: str) -> str:
    """The answer in lower case without LaTeX markup, digit separators, ``x =``, outer brackets."""
    answer = answer.replace("−", "-").replace("\\$", "$").replace("\\%", "%")
    answer = _MARKUP.sub("", _TEXT.sub(r" \1 ", answer)).strip()
    while len(answer) > 1 and answer[0] == "$" == answer.rstrip(".")[-1:]:
        answer = answer.rstrip(".").strip("$").strip()  # $..$ marks mathematics, not money
    for sign, fraction in _VULGAR.items():
        answer = answer.replace(sign, f" {fraction}")
    answer = _FRACTION.sub(_slashed, answer)
    answer = _THOUSANDS.sub(lambda match: re.sub("[^0-9]", "", match[0]), answer)
    answer = " ".join(answer.lower().split()).rstrip(" .;")
    return _unbracketed(_ASSIGNMENT.sub("", answer))


def _slashed(fraction: re.Match[str]) -> str:
    return f"({fraction[1] or fraction[2] or ''}/{fraction[3] or fraction[4] or ''})"


def _unbracketed(answer: str) -> str:
    while answer[:1] + answer[-1:] in ("()", "{}") and not set(answer[1:-1]) & set("(){},"):
        answer = answer[1:-1].strip()
    return answer


def _as_number(plain: str) -> MathAnswer | None:
    """Read a text that holds one number and else only words; None if it is anything more."""
    text = re.sub(r"-\s*([$€£¥₹])", r"\1-", _UNIT_POWER.sub("", plain))
    matches = list(_NUMBER.finditer(text))
    if len(matches) != 1:
        return None
    value = _value(matches[0])
    before, after = text[: matches[0].start()], text[matches[0].end() :].replace("%", " percent ")
    if value is None or not _are_words(before, after):
        return None
    units = [_unit(word) for word in _WORD.findall(after)]
    for scale in units[:1]:
        value *= _SCALES.get(scale, 1)
    signs = [_CURRENCY[sign] for sign in before + after if sign in _CURRENCY]
    kept = frozenset([*units, *signs]) - _SCALES.keys() - {"percent"}
    return MathAnswer(plain, value, kept, is_percent=units[:1] == ["percent"])


def _value(match: re.Match[str]) -> Fraction | None:
    """The number of a match; None for a zero denominator or a power out of bounds."""
    part = match.groupdict()
    sign = -1 if part["sign"] == "-" else 1
    power = int((part["power"] or part["exponent"] or "0")[:6])
    if abs(power) > MAX_EXPONENT:
        return None
    try:
        if part["part"]:
            return sign * (int(part["whole"]) + Fraction(int(part["part"]), int(part["of"])))
        if part["top"]:
            return sign * Fraction(part["top"]) / Fraction(part["bottom"])
    except ZeroDivisionError:
        return None
    return sign * Fraction(part["plain"].rstrip(".")) * Fraction(10) ** power


def _are_words(before: str, after: str) -> bool:
    """Whether around a number stand only words that leave its sense alone, and no variables."""
    glued = _WORD.match(after)
    if before[-1:].isalpha() or (glued and len(glued[0]) == 1):
        return False
    if glued and glued[0] not in _SHORT_UNITS:
        return False
    spaced = re.sub(r"[$€£¥₹¢.,:;]", " ", f"{before} {after}")
    return all(
        _WORD.fullmatch(word)
        and word not in _SENSE_CHANGING
        and (len(word) > 1 or word in _SHORT_UNITS or word in ("a", "i"))
        for word in spaced.split()
    )


def _unit(word: str) -> str:
    word = _SHORT_UNITS.get(word, word)
    return word[:-1] if len(word) > 3 and word.endswith("s") else word


def _same_lists(first: str, second: str) -> bool:
    """Whether two lists in the same brackets, or without any, hold the same answers in order."""
    (brackets, ours), (other_brackets, theirs) = _listed(first), _listed(second)
    if brackets != other_brackets or len(ours) != len(theirs) or len(ours) < 2:
        return False
    return all(same_answer(a, b) for a, b in zip(ours, theirs, strict=True))


def _listed(text: str) -> tuple[str, list[str]]:
    brackets = text[:1] + text[-1:]
    if brackets not in ("()", "[]", "{}", "(]", "[)"):
        return "", text.split(",")
    return brackets, text[1:-1].split(",")


def _braced(text: str, start: int) -> str:
    """What stands between the brace at ``start`` and its partner, or the end of the text."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + 1 : place].strip()
    return text[start + 1 :].strip()


START_SECONDS = 120.0
ANSWER_SECONDS = 8.0
"""After this the process is killed; the three parts of a comparison have ``PART_SECONDS`` each."""
PART_SECONDS = 2
MEMORY_BYTES = 4 << 30
_WORDS = re.compile(r"[^\W\d_]{2,}(?:[\s-]+[^\W\d_]+)*")
"""Sympy would read a word as a product of letters, in which their order does not count."""


def require_math_verify() -> None:
    """Raise ``DependencyError`` where the package is not installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise DependencyError(
            'answer_rule = "math_verify" needs the package math-verify; '
            "pip install 'ragen2[math]', or set answer_rule to \"value\""
        )


@lru_cache(maxsize=8192)
def same_mathematics(answer: str, right: str) -> bool:
    """Whether ``answer`` has the value of ``right``, or math-verify finds them equal.

    It knows LaTeX, sets, intervals, matrices and expressions in any form, and takes numbers that are
    equal when rounded to six decimals. Words are compared by ``same_answer`` alone.
    """
    if same_answer(answer, right):
        return True
    texts = [final_answer(text).strip().strip("$").strip() for text in (answer, right)]
    is_comparable = all(0 < len(text) <= MAX_LENGTH for text in texts)
    if not is_comparable or any(_WORDS.fullmatch(text) for text in texts):
        return False
    return _PROCESS.ask(*texts)


class _VerifyProcess:
    """Another interpreter that compares answers, started when it is first asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, answer: str, right: str) -> bool:
        """What math-verify says; False where it does not answer in time."""
        with self._lock:
            reply = b""
            try:
                question = json.dumps([answer, right]).encode() + b"\n"
                reply = _exchange(self._running(), question, ANSWER_SECONDS)
            finally:
                # Too late, or interrupted: its answer would be read as that of the next question.
                if not reply:
                    self._end()
            return reply == b"true\n"

    def forget(self) -> None:
        """In a forked child: the process, and whoever asks it just now, are the parent's."""
        self._lock = threading.Lock()
        self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        cure = "try python -c 'import math_verify' in a shell"
        try:
            self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and our own call
                [sys.executable, "-c", f"from {__name__} import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # an interrupt from the terminal is for us alone
            )
        except OSError as error:
            raise GradingError(f"math-verify does not start ({error}); {cure}") from error
        if _exchange(self._process, b"", START_SECONDS) != b"ready\n":
            raise GradingError(f"math-verify does not start; {cure}")
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None


def _exchange(process: subprocess.Popen[bytes], question: bytes, seconds: float) -> bytes:
    """One line there, one line back; empty when none comes in time."""
    stdin, stdout = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
    with contextlib.suppress(BrokenPipeError):  # it has ended: the answer below is empty
        stdin.write(question)
        stdin.flush()
    ready, _, _ = select.select([stdout], [], [], seconds)
    return stdout.readline() if ready else b""


def main() -> None:
    """Answer questions until there are no more; called in the other process."""
    import resource  # not on every system, and of use in the other process only

    allowed = resource.getrlimit(resource.RLIMIT_AS)[1]
    memory = MEMORY_BYTES if allowed == resource.RLIM_INFINITY else min(MEMORY_BYTES, allowed)
    resource.setrlimit(resource.RLIMIT_AS, (memory, allowed))
    logging.disable()
    from math_verify import parse, verify

    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        answer, right = (
            parse(f"${text}$", parsing_timeout=PART_SECONDS) for text in json.loads(line)
        )
        same = verify(right, answer, timeout_seconds=PART_SECONDS)
        sys.stdout.write(f"{json.dumps(bool(same))}\n")
        sys.stdout.flush()


_PROCESS = _VerifyProcess()
atexit.register(_PROCESS._end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PROCESS.forget)
