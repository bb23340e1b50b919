"""Play and score with a server: completions that come back as the token ids that were sampled.

The server must be given prompts as ids and must return ids (vLLM's ``return_token_ids``): text that is
tokenised again need not be what the model wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ragen2.backends.remote.batch import SEEDS, completions_of, only_choice
from ragen2.backends.remote.client import Missing, Refused, ServerClient
from ragen2.backends.remote.journal import Journal, request_name
from ragen2.backends.remote.scorer import ServerScorer
from ragen2.errors import ConfigError, ModelError
from ragen2.policy import ChatTokenizer, Pair, Request, SamplingParams
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
