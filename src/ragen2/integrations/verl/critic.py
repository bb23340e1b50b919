"""The critic inside verl as ours: its head starts at 0, so that its first word is "nothing to come"."""

from __future__ import annotations

from typing import Any

import torch
import verl.utils.model

from ragen2.errors import ModelError


def install(attention: str) -> None:
    """Make this process open critics so, with this kind of attention.

    verl's own start has a random head, and wants flash attention everywhere.
    """

    def load(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification

        model = AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation=attention,
            trust_remote_code=trust_remote_code,
        )
        _silence_head(model)
        return model

    verl.utils.model.load_valuehead_model = load


def _silence_head(model: Any) -> None:
    head = getattr(model, "score", None)
    if not isinstance(head, torch.nn.Linear):
        raise ModelError(
            f"{type(model).__name__} has no head named score to make a critic of; use an algorithm "
            "without a critic"
        )
    torch.nn.init.zeros_(head.weight)
    if head.bias is not None:
        torch.nn.init.zeros_(head.bias)
