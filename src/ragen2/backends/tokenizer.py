"""Chat messages -> token ids through a Hugging Face chat template, in pieces that can be joined.

A conversation is start + sampled ids + bridge + sampled ids + bridge ...: the sampled ids are never
decoded and encoded again, so what is trained on is what was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ragen2.errors import ModelError
from ragen2.types import Message

if TYPE_CHECKING:
    from ragen2.backends.vision.inputs import ImageInputs

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
PLAIN_IMAGE_TEMPLATE = (
    "{% for message in messages %}{{ message['role'].capitalize() + ': ' }}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)
"""The same for models that read images; their token goes where IMAGE stands."""
TEXT_ONLY = "this model reads text only"

Content = str | list[dict[str, str]]


class TemplateTokenizer:
    """A ChatTokenizer over any Hugging Face tokenizer; with ``images``, over a model's image tokens too."""

    def __init__(
        self,
        tokenizer: Any,
        eos_ids: Sequence[int],
        images: ImageInputs | None = None,
        *,
        blind_because: str = TEXT_ONLY,
    ) -> None:
        self.hf = tokenizer
        self.eos_ids = frozenset(eos_ids)
        self.images = images
        self.blind_because = blind_because if images is None else ""
        if not tokenizer.chat_template:
            tokenizer.chat_template = _plain_template(images)
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

    def render(self, messages: Sequence[Message]) -> str:
        """A conversation up to the assistant's turn as text, one token for each image."""
        if not self._takes_system and messages and messages[0].role == "system":
            system, user, *rest = messages
            first = Message("user", f"{system.content}\n\n{user.content}", user.images)
            messages = [first, *rest]
        return self._apply(messages)

    def _encode_start(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        return tuple(self._ids(self.render(messages), messages))

    def _encode_bridge(self, message: Message) -> tuple[int, ...]:
        """What the template puts after an assistant's text and before its next one."""
        dialogue = [Message("user", "."), Message("assistant", _PLACEHOLDER), message]
        return tuple(self._ids(self._apply(dialogue).rpartition(_PLACEHOLDER)[2], [message]))

    def _ids(self, text: str, messages: Sequence[Message]) -> list[int]:
        """Ids of a rendered text, each image in its place."""
        shown = [image for message in messages for image in message.images]
        if not shown:
            return self.encode(text)
        if self.images is None:
            raise ModelError(f"a message holds an image, but {self.blind_because}")
        return self.images.expand(self.encode(text), shown)

    def _apply(self, messages: Sequence[Message]) -> str:
        dialogue = [{"role": one.role, "content": self._content(one)} for one in messages]
        return str(
            self.hf.apply_chat_template(dialogue, tokenize=False, add_generation_prompt=True)
        )

    def _content(self, message: Message) -> Content:
        """Templates of models that read images take a list of parts, many of them nothing else."""
        if self.images is None:
            return message.content
        text = [{"type": "text", "text": message.content}] if message.content else []
        return [*({"type": "image"} for _ in message.images), *text]

    def _accepts_system_role(self) -> bool:
        from jinja2 import TemplateError

        turns = [Message("system", _PLACEHOLDER), Message("user", ".")]
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


def _plain_template(images: ImageInputs | None) -> str:
    if images is None:
        return PLAIN_TEMPLATE
    return PLAIN_IMAGE_TEMPLATE.replace("IMAGE", str(images.processor.image_token))
