"""A plain Hugging Face rollout for verl: for tests, CPUs, and models that vLLM does not run.

A Ray actor samples with our own policy, so that a request draws from the random stream that the run's seed
names, and the rollouts of a step are those that ``ragen2 train`` would have made.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from typing import Any

import numpy as np
import ray
import torch
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from ragen2.backends.agent import open_model
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.settings import Precision
from ragen2.errors import ModelError
from ragen2.integrations.verl.sampling import KEY
from ragen2.integrations.verl.translate import HF_ROLLOUT
from ragen2.policy import Request, SamplingParams

GATHER_SECONDS = 0.02
"""How long requests are collected before a batch is sampled."""


class HFServer:
    """One model that samples for many episodes at once."""

    def __init__(self, model: str, device: str, precision: Precision) -> None:
        torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1"))))
        network, tokenizer = open_model(model, device=device)
        self.policy = HFPolicy(network, tokenizer, precision=precision)
        self.version: int | None = None
        self._waiting: list[tuple[Request, SamplingParams, asyncio.Future[TokenOutput]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def ready(self) -> bool:
        """Answers once the model is open."""
        return True

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **_: Any
    ) -> TokenOutput:
        """One completion, sampled together with whatever else waits."""
        request = Request(
            np.array(prompt_ids, dtype=np.int64), tuple(sampling_params.get(KEY) or (request_id,))
        )
        answer: asyncio.Future[TokenOutput] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, _params(sampling_params), answer))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await answer

    async def load_weights(self, weights: dict[str, torch.Tensor], version: int | None) -> None:
        """Take new weights; every parameter must be among them."""
        load_whole(self.policy.network, weights)
        self.version = version

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(GATHER_SECONDS)
            batch, self._waiting = self._waiting, []
            if not batch:
                return
            by_params: dict[SamplingParams, list[int]] = defaultdict(list)
            for place, (_, params, _) in enumerate(batch):
                by_params[params].append(place)
            for params, places in by_params.items():
                await self._sample([batch[place] for place in places], params)

    async def _sample(self, batch: list[Any], params: SamplingParams) -> None:
        requests = [request for request, _, _ in batch]
        try:
            found = await asyncio.to_thread(self.policy.sample, requests, params)
        except Exception as error:  # noqa: BLE001 - it belongs to those who asked
            for _, _, answer in batch:
                answer.set_exception(error)
            return
        for (_, _, answer), one in zip(batch, found, strict=True):
            answer.set_result(
                TokenOutput(
                    token_ids=one.ids_T.tolist(),
                    log_probs=one.logprobs_T.tolist(),
                    stop_reason="completed",
                    extra_fields={"global_steps": self.version},
                )
            )

    async def sleep(self) -> None:
        """Nothing to give back: the weights stay."""

    async def wake_up(self, tags: Any = None) -> None:
        """See ``sleep``."""

    async def clear_kv_cache(self) -> None:
        """Each completion names the version of its weights."""

    async def release_kv_cache(self) -> None:
        """See ``sleep``."""

    async def resume_kv_cache(self) -> None:
        """See ``sleep``."""


def load_whole(network: Any, weights: dict[str, torch.Tensor]) -> None:
    """Copy weights by name into ``network``; one too many or too few is an error."""
    named = dict(network.named_parameters(remove_duplicate=False))
    taken: set[int] = set()
    with torch.no_grad():
        for name, tensor in weights.items():
            if name not in named:
                raise ModelError(f"the trainer sent {name}, which the rollout model does not have")
            named[name].copy_(tensor)
            taken.add(id(named[name]))
    missing = [name for name, one in named.items() if id(one) not in taken]
    if missing:
        raise ModelError(f"the trainer sent no {missing[0]}; the rollout would keep old weights")


def _params(sampling: dict[str, Any]) -> SamplingParams:
    return SamplingParams(
        temperature=sampling["temperature"],
        top_p=sampling["top_p"],
        top_k=max(0, sampling["top_k"]),
        max_tokens=sampling["max_tokens"],
        stop=tuple(sampling.get("stop", ())),
    )


def _actor_name(replica: int) -> str:
    return f"{HF_ROLLOUT}_{replica}"


class HFReplica(RolloutReplica):  # type: ignore[misc]  # verl has no types here
    """One server per replica."""

    async def launch_servers(self) -> None:
        """Start the actor; it is found by its name."""
        name = _actor_name(self.replica_rank)
        options = {"name": name, "num_cpus": 1, "max_concurrency": self.max_concurrency}
        made = ray.remote(HFServer).options(**options)
        server = made.remote(self.model_config.path, "cpu", self.config.dtype)
        await server.ready.remote()
        self.servers = [server]
        self._server_handle, self._server_address = server, name


class HFAdapter(base.BaseRollout):  # type: ignore[misc]  # verl has no types here
    """Lives in verl's training processes and sends weights to the server."""

    def __init__(
        self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1
    ) -> None:
        super().__init__(config, model_config, device_mesh)
        size = (
            self.config.tensor_model_parallel_size
            * self.config.data_parallel_size
            * self.config.pipeline_model_parallel_size
        )
        rank = int(os.environ["RANK"])
        self._replica = rank // size if replica_rank == -1 else replica_rank
        self._sends = rank % size == 0

    async def resume(self, tags: list[str]) -> None:
        """Nothing sleeps."""

    async def release(self) -> None:
        """Nothing sleeps."""

    async def update_weights(
        self, weights: Any, wire_format: str = "named_tensors", **more: Any
    ) -> None:
        """Gather whole tensors, which every rank must take part in, and send them."""
        if wire_format != "named_tensors":
            raise ModelError(f"the Hugging Face rollout takes whole tensors, not {wire_format!r}")
        whole: dict[str, torch.Tensor] = {}
        async for name, tensor in ensure_async_iterator(weights):
            if self._sends:
                whole[name] = tensor.detach().float().cpu().clone()
        if self._sends:
            server = ray.get_actor(_actor_name(self._replica))
            await server.load_weights.remote(whole, more.get("global_steps"))


# There is no public call that adds to the list of adapters.
base._ROLLOUT_REGISTRY[HF_ROLLOUT, "async"] = f"{__name__}.HFAdapter"
RolloutReplicaRegistry.register(HF_ROLLOUT, lambda: HFReplica)
