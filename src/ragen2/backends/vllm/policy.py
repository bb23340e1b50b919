"""Sample from and score with vLLM in this process, with weights that follow the learner's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch

from ragen2.backends.remote.batch import SEEDS
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.backends.vllm.weights import WeightSync, named_weights
from ragen2.backends.vllm.worker import pack_tied_heads
from ragen2.errors import ConfigError, DependencyError, ModelError
from ragen2.policy import Pair, Request, SamplingParams
from ragen2.seeding import stream_key
from ragen2.types import Completion, Finish, FloatArray

TESTED = "0.32"
"""The minor version whose calls are used here; vLLM changes them between such versions."""
GIB = 2**30
ENVIRONMENT = {
    # In this process: weights are handed over as tensors, not through a pipe.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # The learner's threads live here too; vLLM would bind them to one core.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}


def installed_version() -> str:
    """The version of vLLM, whichever of its packages brought it; another than tested is an error."""
    for package in ("vllm", "vllm-cpu"):
        try:
            found = version(package)
        except PackageNotFoundError:
            continue
        if not found.startswith(f"{TESTED}."):
            raise DependencyError(
                f"vLLM {found} is installed; ragen2 is tested with {TESTED}; "
                f"pip install 'vllm=={TESTED}.*', or leave model.engine out"
            )
        return found
    raise DependencyError(
        "model.engine = \"vllm\" needs vLLM, which is not installed; pip install 'ragen2[vllm]'"
    )


def start_engine(source: str, *, dtype: torch.dtype, max_context: int, memory: float) -> Any:
    """An ``LLM`` of vLLM over the model in ``source``; ``memory`` is its cache's, in GiB."""
    installed_version()
    _refuse_other_processes()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from vllm import LLM

    try:
        return LLM(
            model=source,
            dtype=str(dtype).removeprefix("torch."),
            max_model_len=max_context,
            kv_cache_memory_bytes=int(memory * GIB),
            enforce_eager=not torch.cuda.is_available(),
            # Log-probs of the sampling temperature: the learner's probability ratios need the sampler's own.
            logprobs_mode="processed_logprobs",
            generation_config="vllm",
            disable_log_stats=True,
        )
    except (ValueError, RuntimeError, OSError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(
            f"vLLM cannot run {source}: {reason}; leave model.engine out to sample without it"
        ) from error


def _refuse_other_processes() -> None:
    """One process only: vLLM makes a process group of its own in it."""
    group = torch.distributed
    if group.is_available() and group.is_initialized() and group.get_world_size() > 1:
        raise ConfigError(
            f'model.engine = "vllm" runs in one process, got {group.get_world_size()}; leave it out, '
            'or use model.engine = "server"'
        )


class VllmPolicy:
    """A Sampler and a Scorer; ``local`` is the same model in transformers, whose weights are pushed.

    Before each batch the weights are pushed if they have changed, so no caller has to remember it.
    """

    ids_only = 'model.engine = "vllm"'

    def __init__(self, local: HFPolicy, source: str, *, memory: float) -> None:
        self.local = local
        self.max_context = local.max_context
        self._source = source
        self._memory = memory
        self._sync = WeightSync(local.network)

    @property
    def tokenizer(self) -> TemplateTokenizer:
        """The tokenizer that prompts must be made with."""
        return self.local.tokenizer

    @cached_property
    def engine(self) -> Any:
        """The engine itself, started when it is first needed."""
        return start_engine(
            self._source, dtype=self.local.dtype, max_context=self.max_context, memory=self._memory
        )

    def push(self) -> None:
        """Push the weights if vLLM has older ones."""
        if not self._sync.is_behind:
            return
        weights = named_weights(self.local.network)
        self.engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        self.engine.apply_model(pack_tied_heads)
        # Cached keys and values are of the old weights.
        self.engine.reset_prefix_cache()
        self._sync.mark_pushed()

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """One completion per request, in order, each with the seed of its own random stream."""
        if params.top_p < 1.0 or params.top_k > 0:
            raise ConfigError(
                f'model.engine = "vllm" cannot cut the choice (top_p {params.top_p}, top_k '
                f"{params.top_k}): its log-probs would be those of the cut distribution, not of the "
                "model; switch both off, or leave model.engine out"
            )
        if not requests:
            return []
        self.push()
        outputs = self.engine.generate(
            [{"prompt_token_ids": request.prompt_ids_T.tolist()} for request in requests],
            [self._params(request, params) for request in requests],
            use_tqdm=False,
        )
        return [self._completion(output.outputs[0]) for output in outputs]

    def score(self, pairs: Sequence[Pair], temperature: float = 1.0) -> list[FloatArray]:
        """Log-prob of every continuation token, one array per pair.

        vLLM scores at temperature 1 alone; any other is scored by ``local``.
        """
        if temperature != 1.0:
            return self.local.score(pairs, temperature)
        if not pairs:
            return []
        from vllm import SamplingParams as VllmParams

        self.push()
        prompts = [np.concatenate([one.context_ids_T, one.continuation_ids_T]) for one in pairs]
        outputs = self.engine.generate(
            [{"prompt_token_ids": ids.tolist()} for ids in prompts],
            VllmParams(temperature=1.0, max_tokens=1, prompt_logprobs=0, detokenize=False),
            use_tqdm=False,
        )
        return [
            _own_logprobs(output.prompt_logprobs, ids, len(one.context_ids_T))
            for output, ids, one in zip(outputs, prompts, pairs, strict=True)
        ]

    def _params(self, request: Request, params: SamplingParams) -> Any:
        from vllm import SamplingParams as VllmParams

        return VllmParams(
            temperature=params.temperature,
            max_tokens=params.max_tokens,
            stop=list(params.stop),
            include_stop_str_in_output=True,
            stop_token_ids=sorted(self.tokenizer.eos_ids),
            seed=stream_key(*request.key) % SEEDS,
            logprobs=0,
        )

    def _completion(self, output: Any) -> Completion:
        ids = list(output.token_ids)
        found = [at[token].logprob for at, token in zip(output.logprobs, ids, strict=True)]
        return Completion(
            ids_T=np.array(ids, dtype=np.int64),
            logprobs_T=np.array(found, dtype=np.float64),
            text=self.tokenizer.decode(ids),
            finish=_finish(output),
        )


def _own_logprobs(positions: Sequence[Any], ids: Any, start: int) -> FloatArray:
    """The prompt's own log-probs from ``start`` on."""
    found = [positions[at][int(ids[at])].logprob for at in range(start, len(ids))]
    return np.array(found, dtype=np.float64)


def _finish(output: Any) -> Finish:
    """A stop string is given back as the reason; an end token as its id, or as nothing."""
    if output.finish_reason == "length":
        return Finish.LENGTH
    if output.finish_reason != "stop":
        raise ModelError(f"vLLM ended a completion by {output.finish_reason!r}, not by itself")
    return Finish.STOP if isinstance(output.stop_reason, str) else Finish.EOS
