"""Play and score with a server: completions that come back as the token ids that were sampled.

The server must be given prompts as ids and must return ids (vLLM's ``return_token_ids``): text that is
tokenised again need not be what the model wrote.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ragen2.backends.server import ServerScorer
from ragen2.backends.server_calls import Endpoint
from ragen2.errors import ConfigError, ModelError
from ragen2.policy import ChatTokenizer, Pair, Request, SamplingParams
from ragen2.seeding import stream_key
from ragen2.types import Completion, Finish, FloatArray

SEEDS = 2**31
"""Servers take seeds below this."""


@dataclass(frozen=True, slots=True)
class ServerPolicy:
    """A sampler and a scorer over one server; ``tokenizer`` must be the served model's."""

    scorer: ServerScorer
    tokenizer: ChatTokenizer
    max_context: int = 1_000_000
    """Tokens of a prompt and its reply at most; the server refuses what is too long for it."""
    concurrency: int = 32
    """Requests under way at the same time."""

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """One completion a request, in order; each is asked for alone, with a seed of its own.

        Members of a group share their prompt, and a seed for all would make them one.
        """
        if params.temperature != 1.0:
            raise ConfigError(
                f"temperature {params.temperature} cannot be sampled from {self.scorer.url}: a server's "
                "log-probs are those of temperature 1; leave it at 1, or use a local model"
            )
        endpoint = Endpoint(
            f"{self.scorer.url.rstrip('/').removesuffix('/v1')}/v1/completions",
            key=os.environ.get(self.scorer.api_key_env, ""),
            timeout=self.scorer.timeout,
            retries=self.scorer.retries,
            backoff=self.scorer.backoff,
        )
        with ThreadPoolExecutor(self.concurrency) as pool:
            return list(pool.map(lambda one: self._complete(endpoint, one, params), requests))

    def score(self, pairs: Sequence[Pair], temperature: float = 1.0) -> list[FloatArray]:
        """Log-prob of every continuation token, one array a pair."""
        return self.scorer.score(pairs, temperature)

    def _complete(self, endpoint: Endpoint, request: Request, params: SamplingParams) -> Completion:
        body: dict[str, Any] = {
            "model": self.scorer.model,
            "prompt": request.prompt_ids_T.tolist(),
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k or -1,
            "stop": list(params.stop),
            "include_stop_str_in_output": True,
            "seed": stream_key(*request.key) % SEEDS,
            "logprobs": 1,
            "return_token_ids": True,
        }
        answer = endpoint.post(body, refused=ModelError)
        return read_completion((answer.get("choices") or [{}])[0], params, self.scorer.url)


def read_completion(choice: dict[str, Any], params: SamplingParams, url: str) -> Completion:
    """A server's answer as a completion; one without the sampled ids and their log-probs is refused."""
    ids, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
    if ids is None or logprobs is None or len(ids) != len(logprobs):
        raise ModelError(
            f"{url} does not return the ids of what it sampled, with a log-prob each; use a server "
            "that takes return_token_ids, as vLLM's, or a local model"
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
