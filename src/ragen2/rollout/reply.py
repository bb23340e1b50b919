"""Completion text -> Reply: the reasoning Z and the actions A inside what the model wrote."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ragen2.policy import ChatTokenizer
from ragen2.types import Completion, Finish, Reply

ACTION_SEPARATOR = "||"
_BLOCKS = re.compile(
    r"<think>(?P<think>(?:(?!</think>).)*)</think>\s*<answer>(?P<answer>.*?)</answer>", re.DOTALL
)
_ANSWER = re.compile(r"(?P<think>)<answer>(?P<answer>.*?)</answer>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """What a reply must look like."""

    thinking: bool = True
    max_actions: int = 2

    @property
    def prefill(self) -> str:
        """The tag the assistant's turn opens with; part of the prompt, never sampled."""
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
    match = (_BLOCKS if form.thinking else _ANSWER).match(text.lstrip())
    if match is None:
        return Reply(
            _open_reasoning(text) if form.thinking else "", (), _problem(text, completion, form)
        )
    pieces = (piece.strip() for piece in match["answer"].split(ACTION_SEPARATOR))
    actions = tuple(piece for piece in pieces if piece)
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
    low, high = 0, len(completion.ids_T)
    while low < high:
        middle = (low + high + 1) // 2
        if len(tokenizer.decode(completion.ids_T[:middle].tolist())) <= end_character:
            low = middle
        else:
            high = middle - 1
    return 0, low


def render_reply(reasoning: str, actions: Sequence[str], form: ReplyFormat) -> str:
    """The well-formed reply with this content, without the pre-filled tag."""
    answer = f" {ACTION_SEPARATOR} ".join(actions)
    return (
        f"{reasoning}</think><answer>{answer}</answer>" if form.thinking else f"{answer}</answer>"
    )


def _open_reasoning(text: str) -> str:
    return text.removeprefix("<think>").split("</think>")[0].strip()


def _problem(text: str, completion: Completion, form: ReplyFormat) -> str:
    if completion.finish is Finish.LENGTH:
        return "cut at the token limit"
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
