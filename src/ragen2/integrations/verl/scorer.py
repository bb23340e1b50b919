"""Our Scorer over verl's actor: its own workers, weights and log-prob path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import numpy as np
import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.utils.padding import response_from_nested

from ragen2.policy import Pair
from ragen2.types import FloatArray

PARTITION = "ragen2_scores"
"""Part of verl's transfer queue where pairs are laid; never seen by its replay buffer's sampling."""


class ActorScorer:
    """Scores pairs as rows of verl: the context is the prompt, the continuation the response."""

    def __init__(self, workers: Any, num_ranks: int, max_context: int) -> None:
        self.max_context = max_context
        self._workers = workers
        self._num_ranks = num_ranks

    def score(self, pairs: Sequence[Pair], temperature: float = 1.0) -> list[FloatArray]:
        """Log-prob of every continuation token, one array per pair."""
        if not pairs:
            return []
        # Every rank gets as many rows; what the last pair scores once more is forgotten.
        padding = -len(pairs) % self._num_ranks
        rows = [_row(pair) for pair in [*pairs, *[pairs[-1]] * padding]]
        name = uuid4().hex
        keys = [f"{name}_{place}_0" for place in range(len(rows))]
        tags = [{"status": "success", "seq_len": len(row["input_ids"])} for row in rows]
        tq.kv_batch_put(
            keys=keys,
            partition_id=PARTITION,
            fields=list_of_dict_to_tensordict(rows),
            tags=tags,
        )
        try:
            batch = KVBatchMeta(partition_id=PARTITION, keys=keys, tags=tags)
            batch.extra_info.update(
                {"calculate_entropy": False, "compute_loss": False, "temperature": temperature}
            )
            self._workers.compute_log_prob(batch)
            found = tq.kv_batch_get(
                keys=keys, partition_id=PARTITION, select_fields=["log_probs", "response_mask"]
            )
        finally:
            tq.kv_clear(keys=keys, partition_id=PARTITION)
        logp = response_from_nested(found["log_probs"], found["response_mask"])
        return [row.double().numpy() for row in logp.unbind()[: len(pairs)]]


def _row(pair: Pair) -> dict[str, Any]:
    prompts = torch.from_numpy(np.ascontiguousarray(pair.context_ids_T))
    responses = torch.from_numpy(np.ascontiguousarray(pair.continuation_ids_T))
    ids = torch.cat([prompts, responses])
    mask = torch.ones_like(responses)
    return {
        "prompts": prompts,
        "responses": responses,
        "response_mask": mask,
        "loss_mask": mask,
        "input_ids": ids,
        "position_ids": torch.arange(len(ids)),
    }
