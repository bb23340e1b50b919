"""Our Sampler over verl's rollout servers, for one episode in a thread of its own."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from uuid import uuid4

import numpy as np

from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.errors import RunError
from ragen2.integrations.verl.translate import HF_ROLLOUT
from ragen2.policy import Request, SamplingParams
from ragen2.seeding import stream
from ragen2.types import Completion, Finish

KEY = "ragen2_key"
"""Sampling parameter that names a request's random stream; only our own rollout reads it."""


@lru_cache(maxsize=4)
def eos_ids_of(model: str, tokenizer_eos: int) -> tuple[int, ...]:
    """Ids that end a message: the tokenizer's, and those of the model's generation settings."""
    from transformers import GenerationConfig

    try:
        found = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:  # a model without generation settings
        found = None
    more = found if isinstance(found, list) else [found]
    return tuple(sorted({int(i) for i in [*more, tokenizer_eos] if i is not None}))


@lru_cache(maxsize=4)
def chat_tokenizer(tokenizer: Any, model: str) -> TemplateTokenizer:
    """The tokenizer of verl as ours; a copy, because one without a chat template is given one."""
    return TemplateTokenizer(copy.copy(tokenizer), eos_ids_of(model, tokenizer.eos_token_id))


class ServerSampler:
    """Asks verl's servers from a thread, while their event loop serves other episodes.

    It remembers which versions of the weights wrote for it, as verl wants to know of each row.
    """

    def __init__(self, loop: Any, client: Any, rollout: Any, tokenizer: TemplateTokenizer) -> None:
        self.tokenizer = tokenizer
        self.max_context = int(
            rollout.max_model_len or rollout.prompt_length + rollout.response_length
        )
        self.versions: list[int] = []
        self._loop = loop
        self._client = client
        self._rollout_name = rollout.name
        self._session = uuid4().hex

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """One completion per request; called from a thread that may wait."""
        asked = [
            asyncio.run_coroutine_threadsafe(self._ask(request, params), self._loop)
            for request in requests
        ]
        return [self._completion(one.result(), params) for one in asked]

    async def _ask(self, request: Request, params: SamplingParams) -> Any:
        return await self._client.generate(
            request_id=self._session,
            prompt_ids=request.prompt_ids_T.tolist(),
            sampling_params=self._server_params(request, params),
        )

    def _server_params(self, request: Request, params: SamplingParams) -> dict[str, Any]:
        """The request as parameters of the server behind verl."""
        common: dict[str, Any] = {
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k or -1,
            "max_tokens": params.max_tokens,
            "logprobs": True,
        }
        if self._rollout_name == HF_ROLLOUT:
            return {**common, "stop": list(params.stop), KEY: list(request.key)}
        return {
            **common,
            "stop": list(params.stop),
            "include_stop_str_in_output": True,
            "stop_token_ids": sorted(self.tokenizer.eos_ids),
            "seed": int(stream(*request.key).integers(2**31)),
        }

    def _completion(self, output: Any, params: SamplingParams) -> Completion:
        if output.log_probs is None or len(output.log_probs) != len(output.token_ids):
            raise RunError(
                f"the rollout server sent {len(output.token_ids)} tokens without a log-prob each "
                f"(stop reason {output.stop_reason!r}); it must not cut requests short"
            )
        if (version := output.extra_fields.get("global_steps")) is not None:
            self.versions.append(int(version))
        return completion_of(output.token_ids, output.log_probs, params.stop, self.tokenizer)


def completion_of(
    ids: Sequence[int],
    logprobs: Sequence[float],
    stop: Sequence[str],
    tokenizer: TemplateTokenizer,
) -> Completion:
    """What was written up to the token that completes a stop string; what came after is forgotten."""
    text = tokenizer.decode(ids)
    finish = Finish.EOS if ids and ids[-1] in tokenizer.eos_ids else Finish.LENGTH
    if any(one in text for one in stop):
        finish = Finish.STOP
        end = _first_with(ids, stop, tokenizer)
        ids, logprobs = ids[:end], logprobs[:end]
        text = tokenizer.decode(ids)
    return Completion(
        np.array(ids, dtype=np.int64), np.array(logprobs, dtype=np.float64), text, finish
    )


def _first_with(ids: Sequence[int], stop: Sequence[str], tokenizer: TemplateTokenizer) -> int:
    """Least number of tokens whose text holds a stop string."""
    low, high = 1, len(ids)
    while low < high:
        middle = (low + high) // 2
        text = tokenizer.decode(ids[:middle])
        low, high = (low, middle) if any(one in text for one in stop) else (middle + 1, high)
    return low
