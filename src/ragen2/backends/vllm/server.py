"""A vLLM server that samples and scores for a learner: weights are pushed through a folder both can read.

The server must have been started with ``VLLM_SERVER_DEV_MODE=1`` and our worker extension.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ragen2.backends.remote.client import Answer, BadAnswer, Missing, Refused, ServerClient
from ragen2.backends.remote.policy import ServerPolicy
from ragen2.backends.vllm.weights import WeightSync, save_weights
from ragen2.backends.vllm.worker import EXTENSION
from ragen2.errors import ModelError, RunError
from ragen2.policy import ChatTokenizer, Pair, Request, SamplingParams
from ragen2.types import Completion, FloatArray


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
