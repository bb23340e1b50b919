"""Chat messages -> token ids through a Hugging Face chat template, in pieces that can be joined.

A conversation is start + sampled ids + bridge + sampled ids + bridge ...: the sampled ids are never
decoded and encoded again, so what is trained on is what was sampled.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ragen2.errors import LONGEST_LINE, ModelError
from ragen2.time_limit import within
from ragen2.types import Message

if TYPE_CHECKING:
    from ragen2.backends.vision.inputs import ImageInputs

_PLACEHOLDER = "ragen2assistantplaceholder"
_PLAIN_DECODING = "transformers.tokenization_utils_tokenizers"
TEMPLATE_SECONDS = 10.0
"""That a chat template may take; usual ones take a thousandth of one."""
LONGEST_FRAME = 1_000_000
"""Characters that a template may add to a conversation, besides writing it twice."""
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
        vocabulary: int | None = None,
    ) -> None:
        """``vocabulary`` is the number of tokens that the model knows, where that is known."""
        self.hf = tokenizer
        self.eos_ids = frozenset(eos_ids)
        self.images = images
        self._vocabulary = math.inf if vocabulary is None else vocabulary
        self.blind_because = blind_because if images is None else ""
        if not tokenizer.chat_template:
            tokenizer.chat_template = _plain_template(images)
        self._set_arguments({})
        self._takes_system = self._accepts_system_role()
        # Tokenizers whose class adds nothing to the library's decoding are asked directly.
        is_plain = getattr(type(tokenizer), "_decode", None).__module__ == _PLAIN_DECODING
        self._backend = tokenizer.backend_tokenizer if is_plain else None

    def start(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation up to the point where the assistant writes."""
        return list(self._start_ids(tuple(messages)))

    def start_text(self, text: str) -> list[int]:
        """Ids of a plain text as a prompt, after the beginning-of-text token where there is one."""
        mark = self.hf.bos_token
        is_marked = bool(mark) and text.startswith(mark)
        return self._known(self.hf.encode(text, add_special_tokens=not is_marked))

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
        return self._known(self.hf.encode(text, add_special_tokens=False))

    def _known(self, ids: Sequence[int]) -> list[int]:
        if ids and max(ids) >= self._vocabulary:
            raise ModelError(
                f"the tokenizer of this model gives token {max(ids)}, but the model knows "
                f"{self._vocabulary}; get the files of both again"
            )
        return list(ids)

    def decode(self, ids_T: Sequence[int]) -> str:
        """Text of ids, special tokens left out, spaces untouched."""
        if self._backend is not None:  # what the call below comes to in the end
            return str(self._backend.decode(list(ids_T), skip_special_tokens=True))
        return str(
            self.hf.decode(ids_T, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def with_arguments(self, arguments: Mapping[str, bool | int | float | str]) -> Self:
        """The same tokenizer; its chat template is also given ``arguments``."""
        made = copy.copy(self)
        made._set_arguments(arguments)
        return made

    def _set_arguments(self, arguments: Mapping[str, bool | int | float | str]) -> None:
        self._arguments = dict(arguments)
        # Members of a group begin alike, and their turns often go on alike.
        self._start_ids = lru_cache(maxsize=REMEMBERED)(self._encode_start)
        self._bridge_ids = lru_cache(maxsize=REMEMBERED)(self._encode_bridge)

    def render(self, messages: Sequence[Message]) -> str:
        """A conversation up to the assistant's turn as text, one token for each image."""
        if not self._takes_system and messages and messages[0].role == "system":
            system, user, *rest = messages
            first = Message("user", f"{system.content}\n\n{user.content}", user.images)
            messages = [first, *rest]
        return self._apply(messages)

    def save(self, folder: Path) -> None:
        """Files beside a model's, so that it can be opened with this again."""
        self.hf.save_pretrained(folder)
        if self.images is not None:
            self.images.save(folder)

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
        try:
            text = str(
                within(
                    TEMPLATE_SECONDS,
                    self.hf.apply_chat_template,
                    dialogue,
                    tokenize=False,
                    add_generation_prompt=True,
                    **self._arguments,
                )
            )
        except Exception as error:  # a template is a program of whoever made the model
            said = " ".join(str(error).split()) or type(error).__name__
            raise ModelError(
                f"the chat template of this model cannot be rendered: {said[:LONGEST_LINE]}"
            ) from error
        written = sum(len(one.content) for one in messages)
        if len(text) > LONGEST_FRAME + 2 * written:
            raise ModelError(
                f"the chat template of this model makes {len(text):,} characters of {written:,}; get "
                "its files again"
            )
        return text

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
        except ModelError as error:
            if not isinstance(error.__cause__, TemplateError):
                raise
        self._apply(
            turns[1:]
        )  # it refuses system messages, not all: the user's turn will carry them
        return False


def _plain_template(images: ImageInputs | None) -> str:
    if images is None:
        return PLAIN_TEMPLATE
    return PLAIN_IMAGE_TEMPLATE.replace("IMAGE", str(images.processor.image_token))
