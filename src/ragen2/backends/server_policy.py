"""Play and score with a server: completions that come back as the token ids that were sampled.

The server must be given prompts as ids and must return ids (vLLM's ``return_token_ids``): text that is
tokenised again need not be what the model wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ragen2.backends.server import ServerScorer
from ragen2.backends.server_calls import BadAnswer, Endpoint, Missing, root_of
from ragen2.backends.server_journal import Journal, request_name
from ragen2.backends.server_pool import call_all
from ragen2.errors import ConfigError, ModelError
from ragen2.policy import ChatTokenizer, Pair, Request, SamplingParams
from ragen2.seeding import stream_key
from ragen2.types import Completion, Finish, FloatArray

SEEDS = 2**31
"""Servers take seeds below this."""
ENDINGS = frozenset({"stop", "length"})
"""How a whole completion ends; another ending (vLLM's ``abort``) is the server's trouble."""
UNKNOWN_CONTEXT = 1_000_000


@dataclass(frozen=True, slots=True)
class ServerPolicy:
    """A sampler and a scorer over one server; ``tokenizer`` must be the served model's."""

    scorer: ServerScorer
    tokenizer: ChatTokenizer
    max_context: int = UNKNOWN_CONTEXT
    """Tokens of a prompt and its reply at most; the server refuses what is too long for it."""
    journal: Journal | None = None
    """Where completions are kept, and taken from instead of being asked for again."""

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """One completion a request, in order; each is asked for alone, with a seed of its own.

        Members of a group share their prompt, and a seed for all would make them one. Requests with
        the same prompt and the same random stream are one request.
        """
        if params.temperature != 1.0:
            raise ConfigError(
                f"temperature {params.temperature} cannot be sampled from {self.scorer.url}: a server's "
                "log-probs are those of temperature 1; leave it at 1, or use a local model"
            )
        names = [request_name(request, params) for request in requests]
        found: dict[str, Completion] = {}
        asked: dict[str, Request] = {}
        for name, request in zip(names, requests, strict=True):
            known = self.journal.find(name) if self.journal is not None else None
            if known is not None:
                found[name] = known
            else:
                asked[name] = request
        found |= self._write(asked, params)
        return [found[name] for name in names]

    def _write(self, asked: Mapping[str, Request], params: SamplingParams) -> dict[str, Completion]:
        """A completion for each request, kept in the journal as it arrives."""
        endpoint, names = self.scorer.endpoint(), list(asked)

        def keep(index: int, completion: Completion) -> None:
            if self.journal is not None:
                self.journal.add(names[index], completion)

        completions = call_all(
            lambda request: self._complete(endpoint, request, params),
            list(asked.values()),
            workers=self.scorer.settings.concurrency,
            stopped=endpoint.stopped,
            done=keep,
        )
        return dict(zip(names, completions, strict=True))

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
            return endpoint.post(
                body,
                refused=_Refused,
                read=lambda answer: read_completion(only_choice(answer), params, url),
            )
        except _Refused as error:
            raise ModelError(f"{url} refused a prompt: {error}") from error


class _Refused(Exception):
    """The server does not take the request."""


def only_choice(answer: dict[str, Any]) -> dict[str, Any]:
    """The one completion of an answer, if it was written to its end."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise BadAnswer(f"without a completion: {str(answer)[:80]}")
    if choice.get("finish_reason") not in ENDINGS:
        raise BadAnswer(f"a completion that ended by {choice.get('finish_reason')!r}")
    return choice


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


def served_context(scorer: ServerScorer) -> int:
    """Tokens that the served model can read, as vLLM tells with the list of its models.

    A server that does not tell refuses what is too long.
    """
    endpoint = Endpoint(f"{root_of(scorer.url)}/v1/models", scorer.settings, scorer.meter)

    def read(answer: dict[str, Any]) -> int:
        models = answer.get("data") or []
        own = [one for one in models if one.get("id") == scorer.model]
        return int((own[0].get("max_model_len") if own else None) or UNKNOWN_CONTEXT)

    try:
        return endpoint.get(read)
    except Missing:
        return UNKNOWN_CONTEXT
