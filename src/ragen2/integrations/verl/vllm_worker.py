"""What runs inside verl's vLLM on processors, where vLLM computes with packed copies of the weights."""

from __future__ import annotations

from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from ragen2.backends.vllm.worker import pack_tied_heads
from ragen2.errors import ModelError


class PackedWeights(vLLMColocateWorkerExtension):  # type: ignore[misc]  # verl has no types here
    """Mixed into vLLM's worker in place of verl's extension; chosen by ``engine_kwargs.vllm``.

    verl loads new weights into the parameters one by one. On a processor vLLM has packed them after the
    first load and left the parameters empty, so that all must be unpacked, loaded and packed together.
    """

    def update_weights_from_ipc(
        self, peft_config: Any = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        """Take all weights from the training process, then load them as a checkpoint."""
        del base_sync_done  # says which of two LoRA messages this is
        if peft_config:
            raise ModelError("on processors vLLM takes whole models only; use model.lora_rank = 0")
        worker: Any = self
        found: dict[str, torch.Tensor] = {}

        def keep(weights: list[tuple[str, torch.Tensor]], is_last: bool) -> None:
            del is_last
            # Copies: the buffer they come in is used again.
            found.update((name, tensor.clone()) for name, tensor in weights)

        receiver = BucketedWeightReceiver(
            zmq_handle=worker._get_zmq_handle(), device=worker.device, use_shm=use_shm
        )
        receiver.receive_weights(on_bucket_received=keep)
        worker.reload_weights(weights_iterator=iter(found.items()))
        pack_tied_heads(worker.get_model())
