"""What runs inside vLLM: taking new weights whole, also where it keeps a packed copy of some.

``vllm serve MODEL --worker-extension-cls ragen2.backends.vllm.worker.TakesWeights``
"""

from __future__ import annotations

from typing import Any

EXTENSION = "ragen2.backends.vllm.worker.TakesWeights"


class TakesWeights:
    """Mixed into vLLM's worker: adds a call that ``/collective_rpc`` can make by its name."""

    def take_weights(self, folder: str) -> None:
        """Load all weights from the safetensors files in ``folder``."""
        worker: Any = self
        worker.reload_weights(weights_path=folder)
        pack_tied_heads(worker.get_model())


def pack_tied_heads(model: Any) -> None:
    """Pack output heads again that share the embedding's weights.

    On a CPU, vLLM computes with a packed copy of the head. A tied head has no weights of its own in a
    checkpoint, so a reload changes the embedding and leaves that copy as it was (seen in 0.32).
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for layer in model.modules():
        if isinstance(layer, ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)
