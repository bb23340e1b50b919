"""Questions and passages of SearchQA, and the file formats they are read from.

Passages: ``{"id", "title", "text"}``, or ``{"id", "contents"}`` with the title on its first line
(the corpora of Search-R1). Questions: ``{"question", "answers"}``, or ``answer``,
``golden_answers``, ``ground_truth`` in place of ``answers``, with gold titles where known; or
HotpotQA's own files, which carry their passages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ragen2.envs.toolkit.records import Record, read_records, record_errors
from ragen2.errors import EnvError

HELD_OUT_RATIO = 0.1
"""Share of questions kept for evaluation where the file itself does not say which those are."""
HELD_OUT_SPLITS = frozenset({"dev", "test", "val", "valid", "validation", "eval"})
_ANSWER_FIELDS = ("answers", "answer", "golden_answers", "ground_truth", "target")


@dataclass(frozen=True, slots=True)
class Passage:
    """One text that a search can find."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class SearchQuestion:
    """A question, its right answers, and what an expert searches for."""

    text: str
    answers: tuple[str, ...]
    gold_titles: tuple[str, ...] = ()
    """Titles of the passages that together hold the answer, in the order they lead to it."""
    opening: str = ""
    """The expert's first query; the question itself when empty."""
    split: str = ""


def read_passages(source: str) -> list[Passage]:
    """All passages of a file or hub data set, in its order, each once."""
    found: dict[tuple[str, str], Passage] = {}
    for number, record in enumerate(read_records(source)):
        place = f"{source}, record {number + 1}"
        with record_errors(place):
            for passage in _passages_of(record, place, number):
                found.setdefault((passage.title, passage.text), passage)
    if not found:
        raise EnvError(f"{source} holds no passages; give a file of {{id, title, text}} records")
    return list(found.values())


def read_questions(source: str) -> list[SearchQuestion]:
    """All questions of a file or hub data set, in its order."""
    questions = []
    for number, record in enumerate(read_records(source), start=1):
        place = f"{source}, record {number}"
        with record_errors(place):
            questions.append(_question_of(record, place))
    if not questions:
        raise EnvError(f"{source} holds no questions; give a file of {{question, answers}} records")
    return questions


def split_questions(
    questions: Sequence[SearchQuestion],
) -> tuple[list[SearchQuestion], list[SearchQuestion]]:
    """(training, held out), no question text in both: by the records' own split, else by digest."""
    held_out = {question.text for question in questions if question.split in HELD_OUT_SPLITS}
    texts = {question.text for question in questions}
    if not held_out or held_out == texts:
        count = max(1, round(HELD_OUT_RATIO * len(texts)))
        held_out = set(sorted(texts, key=_digest)[:count])
    training = [question for question in questions if question.text not in held_out]
    if not training:
        raise EnvError("one question cannot be both trained on and held out; give at least two")
    return training, [question for question in questions if question.text in held_out]


def passage_of_contents(identity: str, contents: str) -> Passage:
    """A passage from Search-R1's one-field form: quoted title, line break, text."""
    title, line_break, text = contents.partition("\n")
    if not line_break:
        return Passage(identity, "", contents.strip())
    return Passage(identity, title.strip().strip('"'), text.strip())


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _passages_of(record: Record, place: str, number: int) -> Iterable[Passage]:
    identity = str(record.get("id", record.get("_id", number)))
    if "context" in record and not isinstance(record["context"], str):
        return [
            Passage(f"{identity}-{rank}", str(title), "".join(sentences).strip())
            for rank, (title, sentences) in enumerate(_contexts(record["context"], place))
        ]
    if "contents" in record:
        return [passage_of_contents(identity, str(record["contents"]))]
    if "text" not in record:
        fields = ", ".join(sorted(record)) or "none"
        raise EnvError(f"{place} is no passage: it needs a field text or contents, found {fields}")
    return [Passage(identity, str(record.get("title", "")), str(record["text"]))]


def _contexts(context: Any, place: str) -> list[tuple[Any, Any]]:
    """HotpotQA's paragraphs: pairs in its own files, two parallel lists on the hub."""
    with record_errors(f"{place}, whose context should be HotpotQA's [title, [sentence, ..]],"):
        if isinstance(context, dict):
            return list(zip(context["title"], context["sentences"], strict=True))
        return [(title, sentences) for title, sentences in context]


def _question_of(record: Record, place: str) -> SearchQuestion:
    text = str(record.get("question", "")).strip()
    answers = _answers_of(record)
    if not text or not answers:
        fields = ", ".join(sorted(record)) or "none"
        raise EnvError(
            f"{place} needs a question and one of {', '.join(_ANSWER_FIELDS)}; found {fields}"
        )
    return SearchQuestion(
        text, answers, _gold_titles_of(record), split=str(record.get("split", ""))
    )


def _answers_of(record: Record) -> tuple[str, ...]:
    value = next((record[field] for field in _ANSWER_FIELDS if record.get(field)), ())
    if isinstance(
        value, dict
    ):  # {"target": [..]} and {"text": [..]} are in use for lists of answers
        value = value.get("target") or value.get("text") or ()
    if isinstance(value, str):
        value = [value]
    return tuple(str(answer).strip() for answer in value if str(answer).strip())


def _gold_titles_of(record: Record) -> tuple[str, ...]:
    titles: Any = record.get("gold_titles") or [record.get("gold_title")]
    facts = record.get("supporting_facts")
    if isinstance(facts, dict):
        titles = facts.get("title", [])
    elif facts:
        titles = [fact[0] for fact in facts]
    return tuple(dict.fromkeys(str(title) for title in titles if title))
