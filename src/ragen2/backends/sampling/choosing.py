"""How a token is chosen and when a text ends: the same on every path that samples.

A draw is one uniform number per token and the same one gives the same token everywhere. Stop strings are an
automaton over tokens, so that a device can follow them without reading text: a stop string may begin and end
inside tokens, so each sequence carries one small number, how much of some stop string its text ends with, and
a table gives the next number for every token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.errors import RunError
from ragen2.policy import Request
from ragen2.seeding import stream
from ragen2.types import BoolArray, FloatArray

_OTHER = 0
"""The class of every character that no stop string holds."""


def uniforms(requests: Sequence[Request], tokens: int) -> FloatArray:
    """The uniform numbers, requests x tokens, that each request's own random stream gives."""
    return np.stack([stream(*request.key).random(tokens) for request in requests])


def cut(logp: torch.Tensor, *, top_k: int, top_p: float) -> torch.Tensor:
    """Probabilities after ``top_k`` and ``top_p``; not normalised again, the draw does that."""
    probabilities = logp.exp()
    if top_k and top_k < logp.shape[-1]:
        least = probabilities.topk(top_k, dim=-1).values[:, -1:]
        probabilities = probabilities.where(probabilities >= least, 0.0)
    if top_p < 1.0:
        ordered, tokens = probabilities.sort(dim=-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        kept = ordered.where(before < top_p * ordered.sum(-1, keepdim=True), 0.0)
        probabilities = torch.zeros_like(probabilities).scatter(-1, tokens, kept)
    return probabilities


def invert(cumulative: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """The token that each draw of [0, 1), one per row, lands on."""
    # A draw so near 1 that it rounds up must still land on a token that may be chosen.
    below = torch.nextafter(cumulative[:, -1:], torch.zeros_like(cumulative[:, -1:]))
    wanted = (draws * cumulative[:, -1:]).minimum(below)
    # Where nothing is finite, nothing can be found: such a row lands past the end.
    tokens = torch.searchsorted(cumulative, wanted, right=True).squeeze(-1)
    return tokens.clamp(max=cumulative.shape[-1] - 1)


def need_numbers(logp_T: FloatArray) -> None:
    """Refuse log-probs that are not numbers, which only broken weights give."""
    if np.isnan(logp_T).any():
        raise RunError(
            "the model's output is not a number; its weights are broken: go on from an earlier "
            "checkpoint, with a lower learner.lr"
        )


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


class EndRules:
    """What ends a text of this tokenizer: its ends of message, and stop strings."""

    def __init__(self, tokenizer: TemplateTokenizer, vocabulary: int) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._texts: list[str] = []
        self._tables: dict[tuple[str, ...], StopTable] = {}
        self.is_eos_V: BoolArray = np.zeros(vocabulary, dtype=np.bool_)
        self.is_eos_V[[token for token in tokenizer.eos_ids if token < vocabulary]] = True

    def table(self, stop: tuple[str, ...]) -> StopTable:
        """The table of these stop strings, made once."""
        if stop not in self._tables:
            self._texts = self._texts or token_texts(self._tokenizer.hf, self._vocabulary)
            self._tables[stop] = StopTable.of(stop, self._texts)
        return self._tables[stop]


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
