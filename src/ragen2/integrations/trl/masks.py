"""Dropped groups out of TRL's loss: no policy, KL or entropy term, and denominators of the kept ones.

TRL multiplies ``tool_mask`` into every term of the loss and into nothing else, so a dropped row is one
whose tool mask is 0. That leaves the denominators. With N rows of a generation batch, K of them kept, dealt
out to M micro-batches (over steps and processes), k of K in this one:

    grpo, sapo, luspo, dr_grpo   divide by the rows of a micro-batch: times N / K
    dapo, cispo, vespo           divide by the tokens of the generation batch: count the kept ones
    bnpo, the entropy bonus      divide by the tokens of a micro-batch: times k M / K

so that each is what TRL computes from the kept groups alone.

Letters: B rows of a batch on one process, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ragen2.filtering import Filter
from ragen2.integrations.trl.settings import BATCH_MEANS, ROW_MEANS
from ragen2.types import BoolArray, FloatArray, Selection


@dataclass(frozen=True, slots=True, eq=False)
class RowSelection:
    """A filter's verdict spread over the rows of its groups."""

    selection: Selection
    kept_N: BoolArray
    weights_N: FloatArray
    """What each row's advantage is multiplied by."""

    def of_groups(self, has_reward_P: Sequence[bool]) -> Selection:
        """The verdict on the groups that have any reward."""
        rows = np.array(has_reward_P, dtype=np.bool_)
        one = self.selection
        return Selection(one.kept_P[rows], one.scores_P[rows], one.reason)


def select_rows(rule: Filter, rewards_N: FloatArray, size: int) -> RowSelection:
    """Apply ``rule`` to groups of ``size`` rows; rows without a reward (NaN) count for nothing.

    A group without a single reward has nothing to be ranked by and is dropped.
    """
    rewards_PG = rewards_N.reshape(-1, size)
    has_reward_PG = np.isfinite(rewards_PG)
    paid_P = np.flatnonzero(has_reward_PG.any(axis=1))
    kept_PG = np.zeros(rewards_PG.shape, dtype=np.bool_)
    weights_PG = np.ones(rewards_PG.shape)
    kept_P, scores_P = np.zeros(len(rewards_PG), dtype=np.bool_), np.zeros(len(rewards_PG))
    reason = "no completion has a reward"
    if len(paid_P):
        groups = [rewards_PG[p][has_reward_PG[p]] for p in paid_P]
        found = rule.select_rewards(groups)
        kept_P[paid_P], scores_P[paid_P], reason = found.kept_P, found.scores_P, found.reason
        kept_PG[kept_P] = True
        for place, p in enumerate(paid_P):
            if found.weights_P is not None:
                weights_PG[p] = found.weights_P[place]
            if found.members is not None:
                kept_PG[p, has_reward_PG[p]] &= found.members[place]
    selection = Selection(kept_P, scores_P, reason)
    return RowSelection(selection, kept_PG.ravel(), weights_PG.ravel())


KEPT, NUM_KEPT, WHOLE_MASK = "snr_kept", "snr_num_kept", "snr_whole_mask"
"""What travels with TRL's batch through its shuffle and split."""

Batch = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shares:
    """What a micro-batch's terms are multiplied by."""

    policy: float
    """The policy and KL terms."""
    entropy: float
    """The entropy bonus."""


def drop_rows(
    batch: Mapping[str, Any],
    kept_B: torch.Tensor,
    num_kept: int,
    gather: Callable[[torch.Tensor], torch.Tensor],
) -> Batch:
    """The batch with the rows outside ``kept_B`` out of the loss; ``num_kept`` counts all processes."""
    completion_BT = batch["completion_mask"]
    tool_BT = batch.get("tool_mask")
    whole_BT = completion_BT if tool_BT is None else completion_BT * tool_BT
    left_BT = whole_BT * kept_B.to(whole_BT.dtype).unsqueeze(1)
    return {
        **batch,
        "tool_mask": left_BT,
        "num_items_in_batch": gather(left_BT.sum()).sum(),
        KEPT: kept_B,
        NUM_KEPT: torch.tensor(float(num_kept)),
        WHOLE_MASK: whole_BT,
    }


def loss_shares(loss_type: str, kept_B: torch.Tensor, num_kept: float, num_batches: int) -> Shares:
    """The factors of one micro-batch of a generation batch that was cut into ``num_batches``."""
    if num_kept == 0.0:
        return Shares(0.0, 0.0)
    own = float(kept_B.sum()) * num_batches / num_kept
    if loss_type in BATCH_MEANS:
        return Shares(own, own)
    rows = float(len(kept_B)) * num_batches / num_kept
    return Shares(rows if loss_type in ROW_MEANS else 1.0, own)


def with_gradient_times(value: torch.Tensor, factor: float) -> torch.Tensor:
    """The same value, whose gradient is multiplied: TRL's own use of the value is not disturbed."""
    fixed = value.detach()
    return fixed + factor * (value - fixed)
