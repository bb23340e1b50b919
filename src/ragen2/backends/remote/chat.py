"""Play with a server that offers chat alone: messages in, text out, and nothing about tokens.

That is every OpenAI-compatible server. Nothing is tokenised again to guess what was sampled, so there is
nothing to score or train with: such a model is judged by what it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ragen2.backends.remote.batch import SEEDS, completions_of, only_choice
from ragen2.backends.remote.client import BadAnswer, Refused, ServerClient, Usage, first_taken
from ragen2.backends.remote.journal import Journal, chat_name
from ragen2.backends.remote.settings import ServerSettings
from ragen2.errors import ConfigError, ModelError
from ragen2.policy import ChatRequest, SamplingParams
from ragen2.seeding import stream_key
from ragen2.types import Completion, Finish

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
