"""The critic: a copy of the model whose head says how much reward is still to come."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ragen2.algorithms.functions import token_weights, value_loss
from ragen2.backends.device import disk_errors
from ragen2.backends.distributed.parallelism import SINGLE_PROCESS, Parallelism
from ragen2.backends.learner.forward import TrainingForward
from ragen2.backends.learner.microbatches import Microbatch, even_parts
from ragen2.backends.learner.optimiser import BadSteps, adamw, step_within_memory
from ragen2.backends.vision.embedding import ImageEmbedder
from ragen2.policy import CriticSettings
from ragen2.types import FloatArray, Sample

if TYPE_CHECKING:
    from ragen2.backends.settings import LearnerSettings
    from ragen2.backends.vision.inputs import ImageInputs

CRITIC_FILE = "critic.pt"


class Critic:
    """Own weights, own optimiser. Its head starts at 0, so that it begins with "nothing to come"."""

    def __init__(
        self,
        network: Any,
        settings: LearnerSettings,
        lr: float,
        dtype: torch.dtype,
        images: ImageInputs | None = None,
        parallelism: Parallelism = SINGLE_PROCESS,
    ) -> None:
        self.parallelism = parallelism
        self.network = copy.deepcopy(network).requires_grad_(True)
        # The critic encodes images as the model did when it began; only what reads them is trained.
        embedder = None if images is None else ImageEmbedder(self.network, images)
        self.forward = TrainingForward(
            self.network.get_decoder(),
            settings,
            dtype,
            parallelism,
            causal=self.network,
            embedder=embedder,
        )
        self.settings = settings
        self._bad = BadSteps("critic", settings.max_bad_updates, "lower algorithm.critic_lr")
        width = int(self.network.config.get_text_config().hidden_size)
        self.head = torch.nn.Linear(width, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.head.to(next(self.network.parameters()).device)
        frozen = set() if embedder is None else set(map(id, embedder.encoder.tower))
        weights = [weight for weight in self.network.parameters() if id(weight) not in frozen]
        trained = [*weights, *self.head.parameters()]
        self.optimiser = adamw(trained, lr=lr, weight_decay=0.0)

    @torch.no_grad()
    def values(self, samples: Sequence[Sample]) -> list[FloatArray]:
        """Value before each written token: read off the position that predicts it."""

        def run() -> dict[int, FloatArray]:
            with self.forward.ready():
                return self.forward.by_sample(samples, self._values)

        joined = self.parallelism.join(self.forward.within_memory(run))
        return [joined[row] for row in range(len(samples))]

    def update(self, samples: Sequence[Sample], settings: CriticSettings) -> dict[str, float]:
        """As many optimiser steps as the policy takes, on the same minibatches' worth of samples."""
        totals = {"value_loss": 0.0, "critic_grad_norm": 0.0}
        steps = skipped = 0
        for _ in range(self.settings.epochs):
            for part in even_parts(len(samples), self.settings.minibatches):
                loss, norm = self._step([samples[i] for i in part], settings)
                is_usable = math.isfinite(loss) and math.isfinite(norm)
                if is_usable:
                    totals["value_loss"] += loss
                    totals["critic_grad_norm"] += norm
                steps, skipped = steps + is_usable, skipped + (not is_usable)
                self._bad.count(is_bad=not is_usable)
        metrics = {name: value / steps for name, value in totals.items()} if steps else {}
        return {**metrics, "critic_skipped_steps": float(skipped), **_explained(samples)}

    def save(self, folder: Path) -> None:
        """Weights and optimiser in one file."""
        state = {
            "network": self.network.state_dict(),
            "head": self.head.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "bad_in_a_row": self._bad.in_a_row,
        }
        with disk_errors(), (folder / CRITIC_FILE).open("wb") as file:
            torch.save(state, file)

    def load(self, folder: Path) -> None:
        """Restore exactly what ``save`` wrote."""
        state = torch.load(folder / CRITIC_FILE, map_location=self.device, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.head.load_state_dict(state["head"])
        self.optimiser.load_state_dict(state["optimiser"])
        self._bad.in_a_row = int(state["bad_in_a_row"])

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.weight.device

    def _step(self, samples: Sequence[Sample], settings: CriticSettings) -> tuple[float, float]:
        """Loss and gradient norm; the step is taken only when both are finite."""
        total = self.forward.within_memory(lambda: self._gradients(samples, settings))
        trained = [p for group in self.optimiser.param_groups for p in group["params"]]
        self.parallelism.sum_gradients(trained)
        norm = float(torch.nn.utils.clip_grad_norm_(trained, self.settings.grad_clip))
        value = self.parallelism.sum_numbers({"loss": float(total)})["loss"]
        if math.isfinite(norm) and math.isfinite(value):
            step_within_memory(self.optimiser, self.forward.spare)
        self.optimiser.zero_grad(set_to_none=True)
        return value, norm

    def _gradients(self, samples: Sequence[Sample], settings: CriticSettings) -> torch.Tensor:
        """Fill ``.grad``; the loss over all samples."""
        self.optimiser.zero_grad(set_to_none=True)
        weights = token_weights([int(s.loss_mask_T.sum()) for s in samples], "token_mean")
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        with self.forward.ready():
            for _, batch in self.forward.batches(samples, weights):
                if batch.values_N is None or batch.returns_N is None:
                    raise ValueError(
                        "the critic is trained on samples that carry values and returns"
                    )
                losses = value_loss(
                    self._values(batch), batch.values_N, batch.returns_N, clip=settings.value_clip
                )
                loss = (batch.weights_N * losses).sum()
                loss.backward()  # type: ignore[no-untyped-call]  # torch's backward is untyped
                total += loss.detach()
        return total

    def _values(self, batch: Microbatch) -> torch.Tensor:
        with self.forward.precision():
            rows = self.forward.rows(batch)
        values: torch.Tensor = self.head(rows.float()).squeeze(-1)
        return values


def _explained(samples: Sequence[Sample]) -> dict[str, float]:
    """Share of the returns' variance that the values (before this update) account for; 1 is perfect."""
    values = [s.values_T[s.loss_mask_T] for s in samples if s.values_T is not None]
    returns = [s.returns_T[s.loss_mask_T] for s in samples if s.returns_T is not None]
    if not values or not returns:
        return {}
    target, said = np.concatenate(returns), np.concatenate(values)
    spread = float(target.var())
    if spread == 0.0:
        return {}
    return {"explained_variance": 1.0 - float((target - said).var()) / spread}
