"""Chat messages -> token ids through a Hugging Face chat template, in pieces that can be joined.

A conversation is start + sampled ids + bridge + sampled ids + bridge ...: the sampled ids are never
decoded and encoded again, so what is trained on is what was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ragen2.errors import ModelError
from ragen2.types import Message

_PLACEHOLDER = "ragen2assistantplaceholder"
_PLAIN_DECODING = "transformers.tokenization_utils_tokenizers"
REMEMBERED = 4096
"""Texts whose ids are kept."""
PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + '\\n' }}"
    "{% else %}{{ message['role'].capitalize() + ': ' + message['content'] + '\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)
"""For base models whose tokenizer brings no template."""


class TemplateTokenizer:
    """A ChatTokenizer over any Hugging Face tokenizer."""

    def __init__(self, tokenizer: Any, eos_ids: Sequence[int]) -> None:
        self.hf = tokenizer
        self.eos_ids = frozenset(eos_ids)
        if not tokenizer.chat_template:
            tokenizer.chat_template = PLAIN_TEMPLATE
        self._takes_system = self._accepts_system_role()
        # Members of a group begin alike, and their turns often go on alike.
        self._start_ids = lru_cache(maxsize=REMEMBERED)(self._encode_start)
        self._bridge_ids = lru_cache(maxsize=REMEMBERED)(self._encode_bridge)
        # Tokenizers whose class adds nothing to the library's decoding are asked directly.
        is_plain = getattr(type(tokenizer), "_decode", None).__module__ == _PLAIN_DECODING
        self._backend = tokenizer.backend_tokenizer if is_plain else None

    def start(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation up to the point where the assistant writes."""
        return list(self._start_ids(tuple(messages)))

    def bridge(self, message: Message, *, after_eos: bool) -> list[int]:
        """Ids between the assistant's sampled tokens and its next turn.

        An end of message that was sampled is not written again, nor the white space that some
        templates put before it.
        """
        ids = list(self._bridge_ids(message))
        for index, token in enumerate(ids if after_eos else ()):
            if token in self.eos_ids:
                return ids[index + 1 :]
            if self.hf.decode([token]).strip():
                break
        return ids

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, without special tokens added."""
        return list(self.hf.encode(text, add_special_tokens=False))

    def decode(self, ids_T: Sequence[int]) -> str:
        """Text of ids, special tokens left out, spaces untouched."""
        if self._backend is not None:  # what the call below comes to in the end
            return str(self._backend.decode(list(ids_T), skip_special_tokens=True))
        return str(
            self.hf.decode(ids_T, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def _render(self, messages: Sequence[Message]) -> str:
        if not self._takes_system and messages and messages[0].role == "system":
            first = Message("user", f"{messages[0].content}\n\n{messages[1].content}")
            messages = [first, *messages[2:]]
        return self._apply([{"role": m.role, "content": m.content} for m in messages])

    def _encode_start(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        return tuple(self.encode(self._render(messages)))

    def _encode_bridge(self, message: Message) -> tuple[int, ...]:
        """What the template puts after an assistant's words and before its next ones."""
        dialogue = [
            {"role": "user", "content": "."},
            {"role": "assistant", "content": _PLACEHOLDER},
            {"role": message.role, "content": message.content},
        ]
        return tuple(self.encode(self._apply(dialogue).rpartition(_PLACEHOLDER)[2]))

    def _apply(self, dialogue: list[dict[str, str]]) -> str:
        return str(
            self.hf.apply_chat_template(dialogue, tokenize=False, add_generation_prompt=True)
        )

    def _accepts_system_role(self) -> bool:
        from jinja2 import TemplateError

        turns = [{"role": "system", "content": _PLACEHOLDER}, {"role": "user", "content": "."}]
        try:
            return _PLACEHOLDER in self._apply(turns)
        except TemplateError:
            pass  # the template refuses system messages; the user's turn will carry them
        try:
            self._apply(turns[1:])
        except TemplateError as error:
            raise ModelError(
                f"the chat template of this model cannot be rendered: {error}"
            ) from error
        return False
