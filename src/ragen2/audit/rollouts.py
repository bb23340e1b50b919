"""What every log is read into: rollouts as text, whatever framework wrote them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ragen2.errors import ConfigError
from ragen2.types import IntArray

_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.DOTALL)
Chat = tuple[tuple[str, str], ...]
"""Messages as (role, content), oldest first."""
LoggedPrompt = str | Chat
"""What the model saw: text that was rendered already, or messages that were not."""
_STRIPPED = re.compile(r"(?:^|\n)(system|user|assistant)\n")
_BARE_TAG = re.compile(r"(?:<[\w-]+>)?")
LARGEST_NUMBER = 1e60
"""Rewards are squared, and squares of squares summed: what is larger is no reward."""
IMAGE_TYPES = frozenset({"image", "image_url", "input_image"})
"""What chat formats call a part that is an image."""
IMAGE_NAME = re.compile("[0-9a-f]{32}")
IMAGE_MARK = re.compile(r"\[image [0-9a-f]{32}\]")
THINK = "think"
RECORDED = "recorded"
"""The rule that takes what a log itself says is reasoning; where it does not say, it is ``think``."""


@dataclass(frozen=True, slots=True)
class Split:
    """A reply taken apart."""

    lead: str
    """What stands between the prompt and the reasoning: the opening tag, if the prompt lacks it.

    Words before the tag are left out, so that all traces of a prompt follow the same context.
    """
    reasoning: str
    """As it was written, white space and all."""
    answer: str
    """What is in ``<answer>``, or else what follows the reasoning."""
    start: int = 0
    """Where in the reply the reasoning begins."""


@dataclass(frozen=True)
class ReasoningRule:
    """How to find reasoning: ``recorded``, ``think``, ``tag:NAME``, ``all`` or ``regex:PATTERN``."""

    text: str = RECORDED

    def __post_init__(self) -> None:
        if self.text != "all" and not self.tag and self._pattern is None:
            raise ConfigError(
                "--reasoning must be recorded, think, tag:NAME, all or regex:PATTERN, got "
                f"{self.text!r}"
            )

    @property
    def tag(self) -> str:
        """Name of the tag around the reasoning; empty for the other rules."""
        if self.text in {RECORDED, THINK}:
            return THINK
        kind, _, name = self.text.partition(":")
        return name if kind == "tag" and re.fullmatch(r"[\w-]+", name) else ""

    def split_turn(self, turn: LoggedTurn, *, template_opens: bool = False) -> Split | None:
        """A logged reply taken apart.

        ``template_opens``: chats were rendered with the think tag behind them, which their log does not show.
        """
        is_rendered = template_opens and not isinstance(turn.prompt, str)
        is_open = self.tag == THINK and (turn.is_open or is_rendered)
        found = self.split(turn.prompt, turn.text, is_open=is_open)
        known = turn.reasoning
        if self.text != RECORDED or known is None or (found and found.reasoning.strip() == known):
            return found
        start = max(0, turn.text.find(known))
        return Split("", known, _answer(turn.text, ""), start) if known else None

    def split(self, prompt: LoggedPrompt, text: str, *, is_open: bool = False) -> Split | None:
        """The reply taken apart; None when there is no reasoning in it."""
        if self.tag:
            found = self._by_tag(prompt, text, is_open=is_open)
        elif self.text == "all":
            found = Split("", text, _answer(text, ""))
        else:
            found = self._by_pattern(text)
        return found if found and found.reasoning.strip() else None

    def _by_tag(self, prompt: LoggedPrompt, text: str, *, is_open: bool) -> Split | None:
        """A missing opening tag was pre-filled by the template; a missing closing one was cut off."""
        opening, closing = f"<{self.tag}>", f"</{self.tag}>"
        is_shown = isinstance(prompt, str) and prompt.rstrip().endswith(opening)
        is_given = is_shown or is_open
        start, before = 0, text.partition(opening)[0]
        if not is_given and opening in text and closing not in before:
            start = len(before) + len(opening)
        elif not is_given and closing not in text:
            return None
        reasoning, _, rest = text[start:].partition(closing)
        return Split("" if is_shown else opening, reasoning, _answer(text, rest), start)

    def _by_pattern(self, text: str) -> Split | None:
        match = self._pattern.search(text) if self._pattern else None
        if match is None:
            return None
        part: int | str = 0
        if match.re.groups:
            part = "reasoning" if "reasoning" in match.re.groupindex else 1
        if match[part] is None:
            return None
        return Split("", match[part], _answer(text, text[match.end(part) :]), match.start(part))

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        kind, _, pattern = self.text.partition(":")
        if kind != "regex" or not pattern:
            return None
        try:
            return re.compile(pattern, re.DOTALL)
        except re.error as error:
            raise ConfigError(
                f"--reasoning {self.text}: not a regular expression: {error}"
            ) from error


class Unusable(Exception):
    """A row that cannot be audited; its text is the reason it is counted under."""


@dataclass(frozen=True, slots=True, eq=False)
class SampledTokens:
    """The tokens that a model was given and that it wrote, where a log holds them."""

    prompt_ids_T: IntArray
    ids_T: IntArray
    reasoning_span: tuple[int, int] | None = None
    """Half-open range of ``ids_T`` that is the reasoning; None where the log does not say."""

    @classmethod
    def of(cls, prompt_ids: Any, ids: Any, span: Any = None) -> SampledTokens | None:
        """None where there are no ids; what is there must be ids, and a range of them."""
        if not prompt_ids or not ids:
            return None
        arrays = [np.array(one) for one in (prompt_ids, ids)]
        if any(one.dtype.kind != "i" or one.ndim != 1 or one.min() < 0 for one in arrays):
            raise ValueError("token ids must be whole numbers")
        if span is None:
            return cls(arrays[0], arrays[1])
        first, last = span
        if not 0 <= first <= last <= len(arrays[1]):
            raise ValueError("a span must lie within the reply")
        return cls(arrays[0], arrays[1], (int(first), int(last)))


@dataclass(frozen=True, slots=True)
class LoggedTurn:
    """One reply with everything the model saw before it."""

    prompt: LoggedPrompt
    text: str
    is_open: bool = False
    """Whether the prompt ended with the opening tag, though its messages do not show it."""
    reasoning: str | None = None
    """What the log says is reasoning, without white space around it; None where it does not say."""
    tokens: SampledTokens | None = None


@dataclass(frozen=True, slots=True)
class LoggedRollout:
    """One trajectory of a log; what the log does not say is None."""

    turns: tuple[LoggedTurn, ...]
    reward: float | None = None
    step: int | None = None
    group: str | None = None
    """Rollouts with one label were meant for comparison; without one, equal prompts are."""
    solved: bool | None = None


def digest(prompt: LoggedPrompt) -> bytes:
    """Sixteen bytes that equal prompts share."""
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
    kind = b"text" if isinstance(prompt, str) else b"chat"
    hashed = hashlib.blake2b(kind, digest_size=16)
    hashed.update(text.encode("utf-8", "surrogatepass"))
    return hashed.digest()


def prompt_of(value: Any) -> LoggedPrompt:
    """A prompt column: messages, messages written as JSON, or text."""
    found = _parsed(value) if isinstance(value, str) and value.lstrip().startswith("[{") else value
    if isinstance(found, str) and found.strip():
        return found
    if is_messages(found):
        return chat_of(found)
    raise Unusable("no prompt")


def chat_of(messages: Sequence[Mapping[str, Any]]) -> Chat:
    """Messages as (role, content) pairs."""
    return tuple((str(one.get("role", "user")), message_text(one)) for one in messages)


def is_messages(value: Any) -> bool:
    """Whether this is a list of chat messages that holds at least one."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def message_text(message: Mapping[str, Any]) -> str:
    """All that a message says: separately kept reasoning in think tags, content, tool calls.

    An image is a mark that equal images share, so that prompts which differ in nothing else are distinct.
    """
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part_text(part) for part in content if isinstance(part, dict))
    text = content if isinstance(content, str) else ""
    images = message.get("images")
    text = "".join(map(image_mark, images if isinstance(images, list) else ())) + text
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        text = f"<think>{reasoning}</think>{text}"
    calls = message.get("tool_calls")
    return text + "".join(_calls(calls)) if isinstance(calls, list) else text


def image_mark(image: Any) -> str:
    """An image of a log, whatever it is there: the name of our own, an address, the data itself."""
    if isinstance(image, str) and IMAGE_NAME.fullmatch(image):
        return f"[image {image}]"
    data = json.dumps(image, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    return f"[image {hashlib.blake2b(data, digest_size=16).hexdigest()}]"


def holds_images(prompt: LoggedPrompt) -> bool:
    """Whether a prompt has marks of images in it: no model can score after those."""
    texts = [prompt] if isinstance(prompt, str) else [content for _, content in prompt]
    return any(IMAGE_MARK.search(text) for text in texts)


def dialogue_turns(
    before: LoggedPrompt, messages: Sequence[Mapping[str, Any]]
) -> tuple[LoggedTurn, ...]:
    """One turn for each assistant message; each sees ``before`` and every message up to it."""
    if isinstance(before, str):
        replies = [message_text(one) for one in messages if one.get("role") == "assistant"]
        return (LoggedTurn(before, replies[0]),) if replies else ()
    seen: list[tuple[str, str]] = list(before)
    turns = []
    for pair in chat_of(messages):
        if pair[0] == "assistant" and seen:
            turns.append(LoggedTurn(tuple(seen), pair[1]))
        seen.append(pair)
    return tuple(turns)


def reply_turns(prompt: LoggedPrompt, completion: Any) -> tuple[LoggedTurn, ...]:
    """Turns of a completion column: text, or messages that may hold several replies."""
    if is_messages(completion):
        turns = dialogue_turns(prompt, completion)
    else:
        turns = (LoggedTurn(prompt, completion),) if isinstance(completion, str) else ()
    if not any(turn.text for turn in turns):
        raise Unusable("no completion")
    return turns


def unstrip(text: str) -> LoggedPrompt:
    r"""Messages of a ChatML prompt that was decoded without its special tokens, else the text itself.

    Such text reads ``system\n...\nuser\n...\nassistant\n``, perhaps with a pre-filled tag behind.
    Roles must come in the order of a conversation that waits for the assistant; a text in any other
    order is left alone.
    """
    found = list(_STRIPPED.finditer(text))
    roles = [match[1] for match in found]
    talk = roles[1:] if roles[:1] == ["system"] else roles
    expected = ["user" if index % 2 == 0 else "assistant" for index in range(len(talk))]
    if not found or found[0].start() != 0 or len(talk) < 2 or talk != expected or len(talk) % 2:
        return text
    ends = [match.start() for match in found[1:]]
    pieces = [text[match.end() : end] for match, end in zip(found[:-1], ends, strict=True)]
    if not _BARE_TAG.fullmatch(text[found[-1].end() :].strip()):
        return text
    return tuple(zip(roles[:-1], pieces, strict=True))


def number(value: Any) -> float | None:
    """A number, or None: a text column may hold digits, a log may hold NaN or what overflows."""
    if isinstance(value, bool) or value is None:
        return float(value) if isinstance(value, bool) else None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if abs(found) < LARGEST_NUMBER else None


def whole(value: Any) -> int | None:
    """A step number, or None."""
    found = number(value)
    return int(found) if found is not None and found == int(found) else None


def _answer(text: str, rest: str) -> str:
    found = _ANSWER.search(text)
    return (found[1] if found else rest).strip()


def _part_text(part: Mapping[str, Any]) -> str:
    text = part.get("text")
    if isinstance(text, str):
        return text
    return image_mark(part) if str(part.get("type")) in IMAGE_TYPES else ""


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _calls(calls: Sequence[Any]) -> Iterator[str]:
    for call in calls:
        if isinstance(call, dict):
            function = call.get("function")
            inner = function if isinstance(function, dict) else call
            yield f"\n{inner.get('name', 'tool')}({inner.get('arguments', '')})"
