"""What verl loads in each of its processes: entry point ``ragen2`` of its group ``verl.plugins``.

It makes our trainer, agent loop and rollout known by name. In a job of ``ragen2 train --engine verl`` it also
opens critics with a head of zeros and, without a GPU, brings a platform for processors.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from ragen2.errors import DependencyError, ModelError
from ragen2.integrations.verl.translate import DEVICE
from ragen2.integrations.versions import require_tested

logger = logging.getLogger(__name__)


def load() -> None:
    """Register everything; an untested verl is named in one line and left alone."""
    try:
        require_tested("verl")
    except DependencyError as error:
        logger.warning("%s", error)
        return
    device = os.environ.get(DEVICE)
    if device == "cpu":
        from ragen2.integrations.verl import cpu

        cpu.install()
    if device:
        _replace_critic_loader("sdpa" if device == "cpu" else "flash_attention_2")
    # Each of them registers itself: any may be the module whose import brought verl, and be half done.
    from ragen2.integrations.verl import agent_loop, hf_rollout, trainer  # noqa: F401


def _replace_critic_loader(attention: str) -> None:
    """Make this process open critics whose head starts at 0, with this kind of attention.

    verl's loader has a random head and wants flash attention everywhere. A head of zeros says "nothing to
    come" of every token, as our own critic does at first, so that first advantages are plain returns.
    """
    import verl.utils.model

    def load_critic(
        local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool
    ) -> Any:
        from transformers import AutoModelForTokenClassification

        model = AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation=attention,
            trust_remote_code=trust_remote_code,
        )
        _zero_head(model)
        return model

    verl.utils.model.load_valuehead_model = load_critic


def _zero_head(model: Any) -> None:
    import torch

    head = getattr(model, "score", None)
    if not isinstance(head, torch.nn.Linear):
        raise ModelError(
            f"{type(model).__name__} has no head named score to make a critic of; use an algorithm "
            "without a critic"
        )
    torch.nn.init.zeros_(head.weight)
    if head.bias is not None:
        torch.nn.init.zeros_(head.bias)


load()
