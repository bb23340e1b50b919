"""A policy whose replies come from a function: tests, demos and environment checks need no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import numpy as np

from ragen2.policy import Pair, Request, SamplingParams
from ragen2.seeding import stream
from ragen2.types import Completion, Finish, FloatArray, Image, Message

END = 0
"""Ends a message. Other ids up to 256 are bytes of UTF-8 text, plus one."""
IMAGE = 257
"""Stands for an image, whichever it is."""


class ByteTokenizer:
    """Chat as plain bytes: token i + 1 is byte i, token 0 ends a message, 257 is an image."""

    blind_because = ""

    def start(self, messages: Sequence[Message]) -> list[int]:
        """Each message as ``role: content``, ended, then ``assistant: ``."""
        ids: list[int] = []
        for message in messages:
            images = [IMAGE] * len(message.images)
            ids += [*self.encode(f"{message.role}: "), *images, *self.encode(message.content), END]
        return ids + self.encode("assistant: ")

    def start_text(self, text: str) -> list[int]:
        """The text alone."""
        return self.encode(text)

    def bridge(self, message: Message, *, after_eos: bool) -> list[int]:
        """End of the assistant's message (unless it was sampled), ``message``, ``assistant: ``."""
        end = [] if after_eos else [END]
        return [*end, *self.start([message])]

    def encode(self, text: str) -> list[int]:
        """Bytes plus one."""
        return [byte + 1 for byte in text.encode()]

    def decode(self, ids_T: Sequence[int]) -> str:
        """Text of all but the end tokens and images."""
        return self.describe(ids_T, ())

    def with_arguments(self, arguments: Mapping[str, bool | int | float | str]) -> Self:
        """There is no template to take them."""
        del arguments
        return self

    def describe(self, ids_T: Sequence[int], images: Sequence[Image]) -> str:
        """The same with the name of each image in brackets at its place."""
        names = iter(f"[image {image.digest}]" for image in images)
        text = b""
        for token in ids_T:
            text += next(names, "").encode() if token == IMAGE else bytes([token - 1] * (token > 0))
        return text.decode(errors="replace")


class ScriptedPolicy:
    """Writes what ``reply`` answers to the text of a prompt; scores by ``logp`` of (prompt, text).

    An image in a prompt is its name in brackets: ``[image 3f0a...]``.
    """

    max_context = 1_000_000

    def __init__(
        self,
        reply: Callable[[str, np.random.Generator], str],
        logp: Callable[[str, str], float] = lambda prompt, text: -1.0,
    ) -> None:
        self.tokenizer = ByteTokenizer()
        self._reply = reply
        self._logp = logp

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """One scripted completion per request, cut at ``max_tokens`` like any other."""
        return [self._complete(request, params) for request in requests]

    def score(self, pairs: Sequence[Pair], temperature: float = 1.0) -> list[FloatArray]:
        """``logp`` of the two texts for every token of the continuation."""
        del temperature
        return [
            np.full(
                len(pair.continuation_ids_T),
                self._logp(
                    self.tokenizer.describe(pair.context_ids_T.tolist(), pair.images),
                    self.tokenizer.decode(pair.continuation_ids_T.tolist()),
                ),
            )
            for pair in pairs
        ]

    def _complete(self, request: Request, params: SamplingParams) -> Completion:
        prompt = self.tokenizer.describe(request.prompt_ids_T.tolist(), request.images)
        text = self._reply(prompt, stream(*request.key))
        ids = self.tokenizer.encode(text)
        is_cut = len(ids) > params.max_tokens
        has_stop = any(stop in text for stop in params.stop)
        finish = Finish.LENGTH if is_cut else Finish.STOP if has_stop else Finish.EOS
        ids = ids[: params.max_tokens] + ([END] if finish is Finish.EOS else [])
        return Completion(
            ids_T=np.array(ids, dtype=np.int64),
            logprobs_T=np.full(len(ids), -1.0),
            text=self.tokenizer.decode(ids),
            finish=finish,
        )
