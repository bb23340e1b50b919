"""The reward of SearchQA: exact match, else token F1 where it is high enough, as SQuAD defines both."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})
"""Answers that are right or wrong, with nothing in between."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def fold_answer(text: str) -> str:
    """SQuAD's normal form: lower case, no punctuation, no articles, single spaces.

    An answer of articles and signs alone (the band The The) would fold to nothing, which any other
    such answer equals; it keeps its words instead.
    """
    lower = text.lower()
    folded = " ".join(_ARTICLES.sub(" ", lower.translate(_NO_PUNCTUATION)).split())
    return folded or " ".join(lower.split())


def exact_match(answer: str, right: Iterable[str]) -> bool:
    """Whether ``answer`` is one of the right ones after folding."""
    folded = fold_answer(answer)
    return any(folded == fold_answer(one) for one in right)


def f1_score(answer: str, right: Iterable[str]) -> float:
    """Greatest token F1 over the right answers, in [0, 1]; yes and no score 1 or 0."""
    return max((_f1(fold_answer(answer), fold_answer(one)) for one in right), default=0.0)


def answer_reward(answer: str, right: Iterable[str], f1_threshold: float) -> float:
    """1 for an exact match, else the F1 where it reaches the threshold, else 0."""
    right = tuple(right)
    if exact_match(answer, right):
        return 1.0
    overlap = f1_score(answer, right)
    return overlap if overlap >= f1_threshold else 0.0


def _f1(answer: str, right: str) -> float:
    if answer in CLOSED_ANSWERS or right in CLOSED_ANSWERS:
        return float(answer == right)
    answer_words, right_words = answer.split(), right.split()
    shared = sum((Counter(answer_words) & Counter(right_words)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(answer_words), shared / len(right_words)
    return 2 * precision * recall / (precision + recall)
