"""Rows of verl's transfer queue as episodes, and credit for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu

from ragen2.algorithms import Credit
from ragen2.integrations.verl.agent_loop import EPISODE
from ragen2.integrations.verl.credit import WorkerOutputs
from ragen2.runs.trajectories import groups_of
from ragen2.types import BoolArray, FloatArray, Group, Selection


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """The episodes of a step, the keys of their rows, and which of them are updated on."""

    groups: list[Group]
    keys: list[list[str]]
    selection: Selection

    def kept_keys(self) -> list[list[str | None]]:
        """Keys of the kept groups' members; None for a member that is left out."""
        kept = self.selection.apply(self.groups)
        rows = [row for row, is_in in zip(self.keys, self.selection.kept_P, strict=True) if is_in]
        return [
            [key if is_in else None for key, is_in in zip(row, members, strict=True)]
            for row, members in zip(rows, self.selection.kept_members(kept), strict=True)
        ]

    @property
    def flat_keys(self) -> list[str]:
        """Keys of the rows that are updated on, in the order of their groups."""
        return [key for row in self.kept_keys() for key in row if key is not None]

    def kept_tokens(self) -> int:
        """Written tokens that are updated on."""
        kept = self.selection.apply(self.groups)
        return sum(
            len(turn.completion.ids_T)
            for group, members in zip(kept, self.selection.kept_members(kept), strict=True)
            for episode, is_in in zip(group.trajectories, members, strict=True)
            if is_in
            for turn in episode.turns
        )


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """Which tokens of a row's response were written, and what verl's workers computed for them."""

    mask_R: BoolArray
    outputs: WorkerOutputs


def read_groups(batch: Any) -> tuple[list[list[str]], list[Group]]:
    """The episodes of a batch by prompt, in the order of its dataset, with the keys of their rows."""
    data = tq.kv_batch_get(
        keys=batch.keys, partition_id=batch.partition_id, select_fields=["index", "extra_fields"]
    )
    indices, extras = list(data["index"]), list(data["extra_fields"])
    members: dict[int, list[tuple[int, str, str]]] = defaultdict(list)
    for key, index, extra in zip(batch.keys, indices, extras, strict=True):
        members[int(index)].append((int(key.rsplit("_", 2)[1]), key, extra[EPISODE]))
    ordered = [sorted(members[index]) for index in sorted(members)]
    groups = [groups_of([line for _, _, line in rows])[0] for rows in ordered]
    return [[key for _, key, _ in rows] for rows in ordered], groups


def prompt_of(key: str) -> str:
    """The prompt's name inside the key of a row."""
    return key.rsplit("_", 2)[0]


def only(batch: Any, keys: set[str]) -> Any:
    """A batch with those of its rows; the others leave the queue."""
    dropped = [key for key in batch.keys if key not in keys]
    if dropped:
        tq.kv_clear(keys=dropped, partition_id=batch.partition_id)
    return reordered(batch, [row for row, key in enumerate(batch.keys) if key in keys])


def reordered(batch: Any, rows: Sequence[int]) -> Any:
    """Another batch with these rows of ``batch``."""
    return KVBatchMeta(
        keys=[batch.keys[row] for row in rows],
        tags=[batch.tags[row] for row in rows],
        partition_id=batch.partition_id,
        fields=batch.fields,
        extra_info=dict(batch.extra_info),
    )


def read_written(keys: Sequence[str], partition: str) -> dict[str, Written]:
    """What is known of the written tokens of some rows, by key."""
    names = ["response_mask", "old_log_probs", "ref_log_prob", "values"]
    data = tq.kv_batch_get(keys=list(keys), partition_id=partition, select_fields=names)
    columns = {name: data[name].unbind() for name in set(names) & set(data.keys())}
    return {key: _written(row, columns) for row, key in enumerate(keys)}


def write_credit(
    keys: Sequence[str], partition: str, read: dict[str, Written], credits: Sequence[Credit]
) -> None:
    """Lay advantages and returns where verl's update looks for them."""
    rows = []
    for key, one in zip(keys, credits, strict=True):
        returns = one.advantages_T if one.returns_T is None else one.returns_T
        mask_R = read[key].mask_R
        rows.append(
            {"advantages": _spread(mask_R, one.advantages_T), "returns": _spread(mask_R, returns)}
        )
    tq.kv_batch_put(
        keys=list(keys), partition_id=partition, fields=tu.list_of_dict_to_tensordict(rows)
    )


def _written(row: int, columns: dict[str, Any]) -> Written:
    mask_R = columns["response_mask"][row].numpy().astype(np.bool_)

    def of_written(name: str) -> FloatArray | None:
        return columns[name][row].double().numpy()[mask_R] if name in columns else None

    logp_T = of_written("old_log_probs")
    if logp_T is None:
        raise AssertionError("old log-probs come before advantages")
    return Written(mask_R, WorkerOutputs(logp_T, of_written("ref_log_prob"), of_written("values")))


def _spread(mask_R: BoolArray, values_T: FloatArray) -> torch.Tensor:
    """Values of written tokens in their places, 0 elsewhere."""
    whole_R = np.zeros(len(mask_R), dtype=np.float32)
    whole_R[mask_R] = values_T
    return torch.from_numpy(whole_R)
