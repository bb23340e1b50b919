"""Completion text -> Reply: the reasoning Z and the actions A inside what the model wrote."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ragen2.policy import ChatTokenizer
from ragen2.types import Completion, Finish, Reply

ACTION_SEPARATOR = "||"
_BLOCKS = re.compile(
    r"\s*<think>(?P<think>(?:(?!</think>).)*)</think>\s*<answer>(?P<answer>.*?)</answer>", re.DOTALL
)
_ANSWER = re.compile(r"\s*(?P<think>)<answer>(?P<answer>.*?)</answer>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """What a reply must look like."""

    thinking: bool = True
    max_actions: int = 2
    prefilled: bool = True
    """Whether the prompt opens the reply; where it cannot, the model writes the first tag itself."""

    @property
    def prefill(self) -> str:
        """The tag the assistant's turn opens with; part of the prompt, never sampled."""
        if not self.prefilled:
            return ""
        return "<think>" if self.thinking else "<answer>"

    @property
    def description(self) -> str:
        """The rule as the system message states it."""
        actions = (
            "action" if self.max_actions == 1 else f"up to {self.max_actions} actions joined by ||"
        )
        think = "<think>why</think>" if self.thinking else ""
        return f"Reply {think}<answer>{actions}</answer>."


def parse_reply(completion: Completion, form: ReplyFormat) -> Reply:
    """Read reasoning and actions; a malformed reply keeps what is there and says what is wrong."""
    text = form.prefill + completion.text
    match = _match(text, form)
    if match is None:
        return Reply(
            _open_reasoning(text) if form.thinking else "", (), _problem(text, completion, form)
        )
    actions = _pieces(match["answer"])
    return Reply(
        match["think"].strip(), actions[: form.max_actions], _action_problem(actions, form)
    )


def reasoning_span(
    completion: Completion, form: ReplyFormat, tokenizer: ChatTokenizer
) -> tuple[int, int]:
    """Half-open token range of the reasoning; a token that straddles a tag belongs to the tag.

    The opening tag is pre-filled, so the reasoning starts at the first sampled token and ends before
    the token in which ``</think>`` begins (or at the end, when it is missing).
    """
    if not form.thinking:
        return 0, 0
    end_character = completion.text.find("</think>")
    if end_character < 0:
        is_ended = completion.finish is Finish.EOS
        return 0, len(completion.ids_T) - int(is_ended)
    return 0, _tokens_within(completion, end_character, tokenizer)


def action_span(
    completion: Completion, form: ReplyFormat, tokenizer: ChatTokenizer
) -> tuple[int, int]:
    """Half-open token range of the text of the answer; ``(0, 0)`` when no action was read.

    It starts after the token in which ``<answer>`` ends and stops before the one in which
    ``</answer>`` begins: as for the reasoning, a token that straddles a tag belongs to the tag.
    """
    match = _match(form.prefill + completion.text, form)
    if match is None or not _pieces(match["answer"]):
        return 0, 0
    start_character, end_character = (place - len(form.prefill) for place in match.span("answer"))
    # One more token than fits strictly before the first character of the answer.
    start = _tokens_within(completion, start_character - 1, tokenizer) + 1 if start_character else 0
    end = _tokens_within(completion, end_character, tokenizer)
    return (start, end) if start < end else (0, 0)


def render_reply(reasoning: str, actions: Sequence[str], form: ReplyFormat) -> str:
    """The well-formed reply with this content, without the pre-filled tag."""
    answer = f" {ACTION_SEPARATOR} ".join(actions)
    return (
        f"{reasoning}</think><answer>{answer}</answer>" if form.thinking else f"{answer}</answer>"
    )


def _match(text: str, form: ReplyFormat) -> re.Match[str] | None:
    return (_BLOCKS if form.thinking else _ANSWER).match(text)


def _pieces(answer: str) -> tuple[str, ...]:
    pieces = (piece.strip() for piece in answer.split(ACTION_SEPARATOR))
    return tuple(piece for piece in pieces if piece)


def _tokens_within(completion: Completion, characters: int, tokenizer: ChatTokenizer) -> int:
    """The most sampled tokens whose text has at most this many characters."""
    low, high = 0, len(completion.ids_T)
    while low < high:
        middle = (low + high + 1) // 2
        if len(tokenizer.decode(completion.ids_T[:middle].tolist())) <= characters:
            low = middle
        else:
            high = middle - 1
    return low


def _open_reasoning(text: str) -> str:
    return text.partition("<think>")[2].split("</think>")[0].strip()


def _problem(text: str, completion: Completion, form: ReplyFormat) -> str:
    if completion.finish is Finish.LENGTH:
        return "cut at the token limit"
    if form.thinking and "<think>" not in text:
        return "no <think>"
    if form.thinking and "</think>" not in text:
        return "no </think>"
    if "<answer>" not in text:
        return "no <answer>"
    if "</answer>" not in text:
        return "no </answer>"
    return "text outside the tags"


def _action_problem(actions: tuple[str, ...], form: ReplyFormat) -> str:
    if not actions:
        return "no action in the answer"
    if len(actions) > form.max_actions:
        return f"{len(actions)} actions, only {form.max_actions} are taken"
    return ""
