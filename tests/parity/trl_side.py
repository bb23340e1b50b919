"""Runs in TRL's own venv: GRPOTrainer's own loss on each batch. Knows nothing of ragen2."""

import sys
import warnings
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

warnings.filterwarnings("ignore")

from trl import GRPOTrainer  # noqa: E402  # the filter must come first
from trl.trainer.utils import entropy_from_logits, selective_log_softmax  # noqa: E402

BETA, ENTROPY, LENGTH = 0.05, 0.02, 40


class Alone(GRPOTrainer):
    """The trainer's loss without the trainer: logits are given instead of computed by a model."""

    def __init__(self, loss_type: str, *, entropy: bool) -> None:
        self.loss_type = loss_type
        self.beta, self.epsilon_low, self.epsilon_high = BETA, 0.2, 0.28
        self.entropy_coef = ENTROPY if entropy else 0.0
        self._entropy_bonus_enabled = entropy
        self.use_adaptive_entropy = self.aux_loss_enabled = self.use_vllm = False
        self.top_entropy_quantile, self.importance_sampling_level = 1.0, "token"
        self.off_policy_mask_threshold = None
        self.max_completion_length = LENGTH
        self.current_gradient_accumulation_steps = 1
        self.args = SimpleNamespace(
            use_bias_correction_kl=False, delta=None, steps_per_generation=1
        )
        self.model = SimpleNamespace(training=True)
        self._metrics = {"train": defaultdict(list)}
        self.accelerator = SimpleNamespace(
            num_processes=1,
            sync_gradients=True,
            gather=lambda x: x,
            reduce=lambda x, reduction: x,  # accelerate's name
        )

    def _get_per_token_logps_and_entropies(self, model, input_ids, *args, **kwargs):
        del input_ids, args, kwargs
        logits, ids = model
        return selective_log_softmax(logits, ids), entropy_from_logits(logits), None


def work(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    tensors = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in batch.items()}
    ids = tensors["ids"].long()
    mask = tensors["holes"]
    out: dict[str, np.ndarray] = {}
    for loss_type, entropy in (("grpo", False), ("dr_grpo", False), ("dapo", True)):
        logits = tensors["logits"].clone().requires_grad_()
        loss = Alone(loss_type, entropy=entropy)._compute_loss(
            (logits, ids),
            {
                "prompt_ids": ids[:, :1],
                "prompt_mask": torch.ones_like(mask[:, :1]),
                "completion_ids": ids,
                "completion_mask": mask,
                "advantages": tensors["advantages"],
                "old_per_token_logps": tensors["near_old"],
                "ref_per_token_logps": tensors["near_ref"],
                "num_items_in_batch": mask.sum(),
            },
        )
        loss.backward()
        out[loss_type] = loss.detach().numpy()
        out[f"{loss_type}_grad"] = logits.grad.numpy()
    return out


if __name__ == "__main__":
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    for seed in range(count):
        np.savez(folder / f"out_{seed}.npz", **work(dict(np.load(folder / f"in_{seed}.npz"))))
