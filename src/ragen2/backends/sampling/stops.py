"""Stop strings as an automaton over tokens, so that a device can follow them without reading text.

A stop string may begin and end inside tokens. Each sequence carries one small number, how much of some stop
string its text ends with; a table gives the next number for every token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_OTHER = 0
"""The class of every character that no stop string holds."""


@dataclass(frozen=True, slots=True, eq=False)
class StopTable:
    """``next_SV[state, token]``; sequences start in state 0 and have stopped in state ``stopped``."""

    next_SV: npt.NDArray[np.int32]

    @property
    def stopped(self) -> int:
        """The state that is never left: a stop string was written."""
        return len(self.next_SV) - 1

    @classmethod
    def of(cls, stop: Sequence[str], texts: Sequence[str]) -> StopTable:
        """The table for tokens of these texts."""
        alphabet = {char: n for n, char in enumerate(sorted(set("".join(stop))), start=1)}
        steps_SC = _automaton([text for text in stop if text], alphabet)
        width = max((len(text) for text in texts), default=0)
        classes_VT = np.full((len(texts), width), -1, dtype=np.int16)
        for row, text in enumerate(texts):
            classes_VT[row, : len(text)] = [alphabet.get(char, _OTHER) for char in text]
        states_SV = np.repeat(np.arange(len(steps_SC), dtype=np.int32)[:, None], len(texts), axis=1)
        for column in range(width):
            at = np.flatnonzero(classes_VT[:, column] >= 0)
            states_SV[:, at] = steps_SC[states_SV[:, at], classes_VT[at, column]]
        return cls(states_SV)


def token_texts(tokenizer: Any, vocabulary: int) -> list[str]:
    """The text each token adds when it follows other text; empty for special tokens.

    Decoded after another token, because some tokenizers drop a leading space at the start of a text.
    """
    special = set(tokenizer.all_special_ids)
    known = [n for n in range(min(vocabulary, len(tokenizer))) if n not in special]
    before = tokenizer.encode("a", add_special_tokens=False)[-1:]
    start = len(_decode(tokenizer, [before])[0])
    texts = [""] * vocabulary
    for token, text in zip(known, _decode(tokenizer, [[*before, n] for n in known]), strict=True):
        texts[token] = text[start:]
    return texts


def _decode(tokenizer: Any, rows: list[list[int]]) -> list[str]:
    texts: list[str] = tokenizer.batch_decode(
        rows, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return texts


def _automaton(stop: Sequence[str], alphabet: dict[str, int]) -> npt.NDArray[np.int32]:
    """States are beginnings of stop strings, the last one is "stopped"; columns are character classes."""
    prefixes = sorted({text[:n] for text in stop for n in range(len(text))} | {""}, key=len)
    number = {prefix: n for n, prefix in enumerate(prefixes)}
    stopped = len(prefixes)
    steps_SC = np.zeros((stopped + 1, len(alphabet) + 1), dtype=np.int32)
    steps_SC[stopped] = stopped
    pending = deque(prefixes)
    while pending:
        prefix = pending.popleft()
        for char, column in alphabet.items():
            text = prefix + char
            if any(text.endswith(one) for one in stop):
                steps_SC[number[prefix], column] = stopped
            else:
                longest = next(text[n:] for n in range(len(text) + 1) if text[n:] in number)
                steps_SC[number[prefix], column] = number[longest]
    return steps_SC
