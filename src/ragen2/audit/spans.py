"""Where the reasoning is inside what a model wrote."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from ragen2.audit.rollouts import Prompt
from ragen2.errors import ConfigError

_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Split:
    """A reply taken apart."""

    lead: str
    """What stands between the prompt and the reasoning: the opening tag, if the prompt lacks it.

    Words before the tag are left out, so that all reasonings of a prompt follow the same context.
    """
    reasoning: str
    """As it was written, white space and all."""
    answer: str
    """What is in ``<answer>``, or else what follows the reasoning."""


@dataclass(frozen=True)
class ReasoningRule:
    """How to find reasoning: ``think``, ``tag:NAME``, ``all`` or ``regex:PATTERN``."""

    text: str = "think"

    def __post_init__(self) -> None:
        if self.text != "all" and not self.tag and self._pattern is None:
            raise ConfigError(
                f"--reasoning must be think, tag:NAME, all or regex:PATTERN, got {self.text!r}"
            )

    @property
    def tag(self) -> str:
        """Name of the tag around the reasoning; empty for the other rules."""
        if self.text == "think":
            return "think"
        kind, _, name = self.text.partition(":")
        return name if kind == "tag" and re.fullmatch(r"[\w-]+", name) else ""

    def split(self, prompt: Prompt, text: str) -> Split | None:
        """The reply taken apart; None when there is no reasoning in it."""
        if self.tag:
            found = self._by_tag(prompt, text)
        elif self.text == "all":
            found = Split("", text, _answer(text, ""))
        else:
            found = self._by_pattern(text)
        return found if found and found.reasoning.strip() else None

    def _by_tag(self, prompt: Prompt, text: str) -> Split | None:
        """A missing opening tag was pre-filled by the template; a missing closing one was cut off."""
        opening, closing = f"<{self.tag}>", f"</{self.tag}>"
        is_given = isinstance(prompt, str) and prompt.rstrip().endswith(opening)
        before, tag, body = text.partition(opening)
        if not tag or closing in before:
            if not is_given and closing not in text:
                return None
            body = text
        reasoning, _, rest = body.partition(closing)
        return Split("" if is_given else opening, reasoning, _answer(text, rest))

    def _by_pattern(self, text: str) -> Split | None:
        match = self._pattern.search(text) if self._pattern else None
        if match is None:
            return None
        part: int | str = 0
        if match.re.groups:
            part = "reasoning" if "reasoning" in match.re.groupindex else 1
        if match[part] is None:
            return None
        return Split("", match[part], _answer(text, text[match.end(part) :]))

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


def _answer(text: str, rest: str) -> str:
    found = _ANSWER.search(text)
    return (found[1] if found else rest).strip()
