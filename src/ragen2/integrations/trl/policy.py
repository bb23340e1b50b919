"""Our Sampler and Scorer over the very weights that TRL trains."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.settings import Precision
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.errors import ConfigError


def policy_over(trainer: Any, *, purpose: str, without: str) -> HFPolicy:
    """The policy of a TRL trainer; it follows every update, because it holds no copy of the weights.

    ``purpose`` and ``without`` say in the error, where weights are split, what for and what else to do.
    """
    if trainer.is_fsdp_enabled or _is_zero3(trainer):
        raise ConfigError(
            f"{purpose} needs whole weights on a process, and FSDP and DeepSpeed ZeRO-3 split them; "
            f"{without}"
        )
    network = trainer.accelerator.unwrap_model(trainer.model)
    precision: Precision = "bfloat16" if trainer.args.bf16 else "float32"
    return HFPolicy(network, chat_tokenizer(trainer), precision=precision)


def chat_tokenizer(trainer: Any) -> TemplateTokenizer:
    """A trainer's tokenizer as ours; a copy, because one without a chat template is given one."""
    return TemplateTokenizer(copy.copy(trainer._tokenizer), trainer.eos_token_ids)


@contextmanager
def at_rest(network: Any) -> Iterator[None]:
    """Without dropout and gradient checkpointing; the network's mode comes back after."""
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)


def _is_zero3(trainer: Any) -> bool:
    plugin = trainer.accelerator.state.deepspeed_plugin if trainer.is_deepspeed_enabled else None
    return plugin is not None and plugin.zero_stage == 3
