"""Play with a server: completions as the token ids that were sampled, or chat alone.

To score and train, the server must be given prompts as ids and must return ids (vLLM's
``return_token_ids``): text that is tokenised again need not be what the model wrote. A server that offers
chat alone, as every OpenAI-compatible one does, takes messages and returns text; such a model is judged by
what it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ragen2.backends.remote.batch import SEEDS, completions_of, only_choice
from ragen2.backends.remote.client import (
    BadAnswer,
    Missing,
    Refused,
    ServerClient,
    Usage,
    first_taken,
)
from ragen2.backends.remote.journal import Journal, chat_name, request_name
from ragen2.backends.remote.scorer import ServerScorer
from ragen2.backends.settings import ServerSettings
from ragen2.errors import ConfigError, ModelError
from ragen2.policy import ChatRequest, ChatTokenizer, Pair, Request, SamplingParams
from ragen2.seeding import stream_key
from ragen2.types import Completion, Finish, FloatArray

UNKNOWN_CONTEXT = 1_000_000


@dataclass(frozen=True, slots=True)
class ServerPolicy:
    """A sampler and a scorer over one server; ``tokenizer`` must be the served model's."""

    ids_only: ClassVar[str] = "a server"

    scorer: ServerScorer
    tokenizer: ChatTokenizer
    max_context: int = UNKNOWN_CONTEXT
    """Tokens of a prompt and its reply at most; the server refuses what is too long for it."""
    journal: Journal | None = None
    """Where completions are kept, and taken from instead of being asked for again."""

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """One completion per request, in order; each is asked for alone, with a seed of its own.

        Members of a group share their prompt, and a seed for all would make them one. Requests with
        the same prompt and the same random stream are one request.
        """
        if params.temperature != 1.0:
            raise ConfigError(
                f"temperature {params.temperature} cannot be sampled from {self.scorer.url}: a server's "
                "log-probs are those of temperature 1; leave it at 1, or use a local model"
            )
        with self.scorer.client() as client:
            return completions_of(
                [request_name(request, params) for request in requests],
                requests,
                lambda request: self._complete(client, request, params),
                client,
                self.journal,
            )

    def usage_line(self) -> str:
        """What it all took."""
        return self.scorer.usage.line(self.scorer.settings)

    def score(self, pairs: Sequence[Pair], temperature: float = 1.0) -> list[FloatArray]:
        """Log-prob of every continuation token, one array per pair."""
        return self.scorer.score(pairs, temperature)

    def _complete(
        self, client: ServerClient, request: Request, params: SamplingParams
    ) -> Completion:
        body: dict[str, Any] = {
            "model": self.scorer.model,
            "prompt": request.prompt_ids_T.tolist(),
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k or -1,
            # Else those of the model's generation_config.json: log-probs would not be the sampler's.
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "stop": list(params.stop),
            "include_stop_str_in_output": True,
            "seed": stream_key(*request.key) % SEEDS,
            "logprobs": 1,
            "return_token_ids": True,
        }
        url = self.scorer.url
        try:
            return client.post(
                "v1/completions",
                body,
                lambda answer: read_completion(only_choice(answer), params, url),
            )
        except Refused as error:
            raise ModelError(f"{url} refused a prompt: {error}") from error
        except Missing as error:
            raise Missing(f"{error}; if it offers chat alone, use --set server.api=chat") from error


def read_completion(choice: dict[str, Any], params: SamplingParams, url: str) -> Completion:
    """A server's answer as a completion; one without the sampled ids and their log-probs is refused."""
    ids, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
    if ids is None or logprobs is None or len(ids) != len(logprobs):
        raise ModelError(
            f"{url} does not return the ids of what it sampled, with a log-prob each; play by its "
            "text alone with --set server.api=chat, or use a server that takes return_token_ids, as vLLM's"
        )
    text = str(choice.get("text", ""))
    return Completion(
        ids_T=np.array(ids, dtype=np.int64),
        logprobs_T=np.array(logprobs, dtype=np.float64),
        text=text,
        finish=_finish(choice, text, params),
    )


def _finish(choice: dict[str, Any], text: str, params: SamplingParams) -> Finish:
    if choice.get("finish_reason") == "length":
        return Finish.LENGTH
    return Finish.STOP if any(stop in text for stop in params.stop) else Finish.EOS


def served_context(scorer: ServerScorer) -> int:
    """Tokens of the served model's context, as vLLM reports it with the list of its models.

    A server that does not report it refuses what is too long.
    """

    def read(answer: dict[str, Any]) -> int:
        models = answer.get("data") or []
        own = [one for one in models if one.get("id") == scorer.model]
        return int((own[0].get("max_model_len") if own else None) or UNKNOWN_CONTEXT)

    with scorer.client() as client:
        try:
            return client.get("v1/models", read)
        except Missing:
            return UNKNOWN_CONTEXT


NO_IDS = np.zeros(0, dtype=np.int64)
NO_LOGPROBS = np.zeros(0, dtype=np.float64)


class ChatForm(NamedTuple):
    """Names and settings that not every server takes."""

    limit: str
    """What the limit of tokens is called."""
    seed: bool


CHAT_FORMS = tuple(
    ChatForm(limit, seed)
    for seed in (True, False)
    for limit in ("max_tokens", "max_completion_tokens")
)


@dataclass(slots=True)
class ChatServer:
    """A ``TextSampler`` over ``/v1/chat/completions``."""

    url: str
    model: str
    settings: ServerSettings = field(default_factory=ServerSettings)
    journal: Journal | None = None
    """Where completions are kept, and taken from instead of being asked for again."""
    usage: Usage = field(default_factory=Usage)
    _form: ChatForm | None = None
    """The first form of request that was taken."""

    def reply(self, requests: Sequence[ChatRequest], params: SamplingParams) -> list[Completion]:
        """One completion per request, in order; each is asked for alone, with a seed of its own."""
        if params.top_k > 0:
            raise ConfigError(
                f"rollout.top_k is {params.top_k}, which chat completions know nothing of; set it to 0"
            )
        with ServerClient(self.url, self.settings, self.usage) as client:
            return completions_of(
                [chat_name(request, params) for request in requests],
                requests,
                lambda request: self._complete(client, request, params),
                client,
                self.journal,
            )

    def usage_line(self) -> str:
        """What it all took."""
        return self.usage.line(self.settings)

    def _complete(
        self, client: ServerClient, request: ChatRequest, params: SamplingParams
    ) -> Completion:
        """The answer in the form that the server is known to take, or in the first that it takes."""
        forms = (self._form,) if self._form is not None else CHAT_FORMS
        try:
            form, found = first_taken(
                forms,
                lambda form: client.post(
                    "v1/chat/completions", self._body(form, request, params), read_reply
                ),
            )
        except Refused as error:
            raise ModelError(f"{self.url} refused a conversation: {error.args[0]}") from error
        self._form = form
        return found

    def _body(self, form: ChatForm, request: ChatRequest, params: SamplingParams) -> dict[str, Any]:
        """No stop string: servers cut it off what they return. What follows the answer is ignored."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [
                {"role": message.role, "content": message.content} for message in request.messages
            ],
            form.limit: params.max_tokens,
            "temperature": params.temperature,
        }
        if params.top_p < 1.0:
            body["top_p"] = params.top_p
        if form.seed:
            body["seed"] = stream_key(*request.key) % SEEDS
        return body


def read_reply(answer: dict[str, Any]) -> Completion:
    """The text of an answer; a model that wrote none has written an empty reply."""
    choice = only_choice(answer)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise BadAnswer(f"a completion without a message: {str(choice)[:80]}")
    is_cut = choice["finish_reason"] == "length"
    return Completion(
        ids_T=NO_IDS,
        logprobs_T=NO_LOGPROBS,
        text=str(message.get("content") or ""),
        finish=Finish.LENGTH if is_cut else Finish.EOS,
    )
