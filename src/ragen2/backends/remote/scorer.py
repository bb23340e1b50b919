"""Score with any OpenAI-compatible server that returns the log-probs of a prompt; no torch needed.

Two dialects of ``/v1/completions`` are known: ``echo`` (the prompt comes back as part of the
completion, with its log-probs) and vLLM's ``prompt_logprobs``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ragen2.backends.remote.batch import call_all
from ragen2.backends.remote.client import (
    Answer,
    BadAnswer,
    Refused,
    ServerClient,
    Usage,
    first_taken,
)
from ragen2.backends.settings import ServerSettings
from ragen2.errors import ConfigError, ModelError
from ragen2.policy import Pair
from ragen2.types import FloatArray

Dialect = Literal["echo", "prompt_logprobs"]
Prompt = list[int] | str


@dataclass(frozen=True, slots=True)
class _Token:
    """One prompt token as the server reports it; the first of a prompt has no log-prob."""

    logprob: float | None
    name: str
    """Its text or id, enough to see whether two prompts begin alike; empty if it is not given."""


@dataclass(frozen=True, slots=True)
class ServerScorer:
    """A Scorer over HTTP. ``url`` is the server's root or its ``/v1``.

    ``dialect`` left out is found by asking. ``max_tokens`` is what the server must generate besides
    (some refuse 0).
    """

    url: str
    model: str
    dialect: Dialect | None = None
    max_tokens: Literal[0, 1] | None = None
    settings: ServerSettings = field(default_factory=ServerSettings)
    usage: Usage = field(default_factory=Usage)

    def client(self) -> ServerClient:
        """Connections for one batch of requests."""
        return ServerClient(self.url, self.settings, self.usage)

    def score(self, pairs: Sequence[Pair], temperature: float = 1.0) -> list[FloatArray]:
        """Log-prob of every continuation token, one array per pair."""
        if temperature != 1.0:
            raise ConfigError(
                f"temperature {temperature} cannot be scored by {self.url}: servers return prompt "
                "log-probs at temperature 1; score at 1, or with a local model"
            )
        for index, pair in enumerate(pairs):
            if not len(pair.context_ids_T) or not len(pair.continuation_ids_T):
                raise ValueError(f"pair {index} has an empty context or continuation")
        prompts: list[Prompt] = [
            np.concatenate([pair.context_ids_T, pair.continuation_ids_T]).tolist() for pair in pairs
        ]
        return [
            self._ids_score(tokens, pair)
            for tokens, pair in zip(self._ask(prompts), pairs, strict=True)
        ]

    def score_texts(self, pairs: Sequence[tuple[str, str]]) -> list[FloatArray]:
        """Log-prob of every token of each (context, continuation) text's continuation.

        The server tokenises both texts as one, and the context once more alone: the tokens with which
        both begin are the context's. So a token that straddles the boundary counts as the
        continuation's; it could not be left out without losing some of what was written.
        """
        for index, (context, continuation) in enumerate(pairs):
            if not context or not continuation:
                raise ValueError(f"pair {index} has an empty context or continuation")
        contexts = list(dict.fromkeys(context for context, _ in pairs))
        asked = self._ask([*(context + more for context, more in pairs), *contexts])
        alone = dict(zip(contexts, asked[len(pairs) :], strict=True))
        return [
            self._text_score(tokens, context, alone[context])
            for tokens, (context, _) in zip(asked[: len(pairs)], pairs, strict=True)
        ]

    def _ask(self, prompts: Sequence[Prompt]) -> list[list[_Token]]:
        """The tokens of every prompt. The first one alone finds out what the server can do."""
        if not prompts:
            return []
        size = self.settings.batch
        with self.client() as client:
            form, first = self._settle(client, prompts[0])
            try:
                rest = call_all(
                    lambda batch: form.read(client, batch),
                    [prompts[i : i + size] for i in range(1, len(prompts), size)],
                    workers=self.settings.concurrency,
                    stopped=client.stopped,
                )
            except Refused as error:
                raise ModelError(f"{self.url} refused some prompts: {error}") from error
        return [first, *itertools.chain.from_iterable(rest)]

    def _settle(self, client: ServerClient, prompt: Prompt) -> tuple[ScoringForm, list[_Token]]:
        """The first form of request that brings prompt log-probs, and what it brought."""
        dialects: tuple[Dialect, ...] = (self.dialect,) if self.dialect else tuple(READERS)
        sizes = (self.max_tokens,) if self.max_tokens is not None else (0, 1)
        forms = [
            ScoringForm(self.model, dialect, size)
            for dialect, size in itertools.product(dialects, sizes)
        ]
        try:
            return first_taken(forms, lambda form: form.read(client, [prompt])[0])
        except Refused as error:
            reasons = [
                f"{form.dialect} with max_tokens {form.max_tokens}: {reason}"
                for form, reason in zip(forms, error.args, strict=True)
            ]
        raise ModelError(
            f"{self.url} does not return prompt log-probs ({'; '.join(reasons)}); use a server that "
            "does, as vLLM's, or a local model"
        )

    def _ids_score(self, tokens: Sequence[_Token], pair: Pair) -> FloatArray:
        wanted = np.concatenate([pair.context_ids_T, pair.continuation_ids_T])
        if len(tokens) != len(wanted):
            raise ModelError(
                f"{self.url} returned {len(tokens)} log-probs for a prompt of {len(wanted)} tokens; "
                "is it another tokenizer's server, or one that adds tokens of its own?"
            )
        return self._logprobs(tokens[len(pair.context_ids_T) :])

    def _text_score(
        self, tokens: Sequence[_Token], context: str, alone: Sequence[_Token]
    ) -> FloatArray:
        same = [one.name == other.name for one, other in zip(tokens, alone, strict=False)]
        shared = same.index(False) if False in same else len(same)
        least = 2 if not tokens[0].name else 1  # a first token without a name may be any token
        if not least <= shared < len(tokens):
            raise ModelError(
                f"{self.url} cannot tell the context {context[-40:]!r} from its continuation: they "
                "share no whole token; give a longer context"
            )
        return self._logprobs(tokens[shared:])

    def _logprobs(self, tokens: Sequence[_Token]) -> FloatArray:
        values = [math.nan if token.logprob is None else token.logprob for token in tokens]
        if not np.isfinite(values).all():
            raise ModelError(f"{self.url} returned a token without a finite log-prob")
        return np.array(values, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class ScoringForm:
    """One form of asking for prompt log-probs, and of the answer."""

    model: str
    dialect: Dialect
    max_tokens: int

    def read(self, client: ServerClient, prompts: Sequence[Prompt]) -> list[list[_Token]]:
        """The tokens of each prompt."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": list(prompts),
            "max_tokens": self.max_tokens,
            "temperature": 1.0,
        }
        if self.dialect == "echo":
            body |= {"echo": True, "logprobs": 1}
        else:
            body |= {"prompt_logprobs": 0}
        return client.post("v1/completions", body, lambda answer: self._tokens(answer, prompts))

    def _tokens(self, answer: Answer, prompts: Sequence[Prompt]) -> list[list[_Token]]:
        found = answer.get("choices")
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise BadAnswer(f"without choices: {str(answer)[:80]}")
        choices = sorted(found, key=lambda choice: int(choice.get("index", 0)))
        if len(choices) != len(prompts):
            raise ModelError(
                f"the server returned {len(choices)} answers to {len(prompts)} prompts; set "
                "server.batch to 1"
            )
        return [
            READERS[self.dialect](choice, prompt, self.max_tokens)
            for choice, prompt in zip(choices, prompts, strict=True)
        ]


def _read_echo(choice: Answer, _prompt: Prompt, generated: int) -> list[_Token]:
    found = choice.get("logprobs") or {}
    values, names = found.get("token_logprobs") or [], found.get("tokens") or []
    if len(values) != len(names):
        raise Refused(f"{len(names)} tokens came with {len(values)} log-probs")
    tokens = [
        _Token(None if value is None else float(value), str(name))
        for value, name in zip(values, names, strict=True)
    ]
    tokens = tokens[: len(tokens) - generated]
    if not tokens:
        raise Refused("the prompt did not come back with log-probs")
    return tokens


def _read_prompt_logprobs(choice: Answer, prompt: Prompt, _generated: int) -> list[_Token]:
    """A position names its tokens by id: the prompt's own, perhaps likelier ones after it."""
    found = choice.get("prompt_logprobs") or []
    if not found:
        raise Refused("there is no prompt_logprobs in the answer")
    tokens = []
    for index, position in enumerate(found):
        if not position:
            tokens.append(_Token(None, ""))
            continue
        known = isinstance(prompt, list) and index < len(prompt)
        name = str(prompt[index]) if known else next(iter(position))
        if name not in position:
            raise ModelError(
                f"the server returned token {next(iter(position))} where token {name} was sent; it "
                "must not change the prompt"
            )
        tokens.append(_Token(float(position[name]["logprob"]), name))
    return tokens


READERS: dict[Dialect, Callable[[Answer, Prompt, int], list[_Token]]] = {
    "echo": _read_echo,
    "prompt_logprobs": _read_prompt_logprobs,
}
