"""A learner that holds a shard of the weights, gradients and moments: torch's FSDP2 under the same updates.

Sampling and scoring need whole weights, so each process keeps one plain copy beside its shard; every update
ends by gathering the shards into it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from ragen2.backends.distributed.parallelism import Shards, whole_tensor
from ragen2.backends.learner.learner import TorchLearner
from ragen2.backends.learner.optimiser import adamw
from ragen2.backends.settings import LearnerSettings, ModelSettings
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.errors import ConfigError
from ragen2.policy import Objective
from ragen2.types import Sample, Update


class ShardedLearner(TorchLearner):
    """Its checkpoints are those of one process: any number of processes goes on from them."""

    def __init__(
        self,
        network: Any,
        tokenizer: TemplateTokenizer,
        model: ModelSettings,
        settings: LearnerSettings,
        *,
        seed: int,
        parallelism: Shards,
    ) -> None:
        if model.lora_rank:
            raise ConfigError(
                'learner.parallel = "fsdp2" trains all weights; with model.lora_rank use "ddp", '
                "adapters are small"
            )
        super().__init__(network, tokenizer, model, settings, seed=seed, parallelism=parallelism)
        self._copy = copy.deepcopy(network).requires_grad_(False)
        self._shard()
        self.optimiser = adamw(
            self.network.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
        )

    @property
    def whole(self) -> Any:
        """A plain model with the weights as they are after the last update."""
        return self._copy

    def update(self, samples: Sequence[Sample], objective: Objective, *, scale: float) -> Update:
        """The update, then whole weights for the sampler."""
        done = super().update(samples, objective, scale=scale)
        self._fill_copy()
        return done

    def _shard(self) -> None:
        """Cut every layer's weights along their first dimension, and the rest as one more unit."""
        mesh = init_device_mesh(self.device.type, (self.parallelism.size,))
        for module in list(self.network.modules()):
            if isinstance(module, GradientCheckpointingLayer):
                fully_shard(module, mesh=mesh)
        fully_shard(self.network, mesh=mesh)
        if self.split_model.splits:
            # The head is used beside the model's own forward pass: this one is to be a pass as well.
            self.network.read_logprobs = self.forward.logprobs
            register_fsdp_forward_method(self.network, "read_logprobs")
            self.forward.logprobs = self.network.read_logprobs  # type: ignore[method-assign]  # the same, gathered

    @torch.no_grad()
    def _fill_copy(self) -> None:
        for own, part in zip(self._copy.parameters(), self.network.parameters(), strict=True):
            own.copy_(part.full_tensor())

    @torch.no_grad()
    def _load_weights(self, state: Mapping[str, torch.Tensor]) -> None:
        self._copy.load_state_dict(state)
        for part, own in zip(self.network.parameters(), self._copy.parameters(), strict=True):
            part.copy_(_part_of(own, part))

    def _optimiser_state(self) -> dict[str, Any]:
        """As one process would have it."""
        return _each_tensor(
            self.optimiser.state_dict(),
            lambda _, value: whole_tensor(value),
        )

    def _load_optimiser(self, state: dict[str, Any]) -> None:
        parts = list(self.network.parameters())

        def cut(index: int, value: torch.Tensor) -> torch.Tensor:
            return _part_of(value, parts[index]) if value.shape == parts[index].shape else value

        self.optimiser.load_state_dict(_each_tensor(state, cut))


def _part_of(value: torch.Tensor, like: Any) -> DTensor:
    """This process's part of ``value``, cut as ``like`` is; every process has the whole already."""
    on_device = value.to(like.device)
    return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)


def _each_tensor(state: dict[str, Any], change: Any) -> dict[str, Any]:
    """An optimiser's state with its moments changed; the count of steps is a tensor of one number."""
    changed = {
        index: {
            name: change(index, value) if torch.is_tensor(value) and value.dim() else value
            for name, value in moments.items()
        }
        for index, moments in state["state"].items()
    }
    return {**state, "state": changed}
