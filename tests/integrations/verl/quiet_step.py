"""A filter that keeps everything, and nothing at step 2: for a run that stops and goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.filtering import KeepAll
from ragen2.trainer.batch import SEEDS_PER_RUN
from ragen2.types import FloatArray, Group, Selection


class QuietStep(KeepAll):
    """Knows the step by its tasks, whose seeds run on from step to step."""

    kind: Literal["quiet_step"] = "quiet_step"

    def select(self, groups: Sequence[Group], noise_P: FloatArray | None = None) -> Selection:
        """Nothing of the tasks after those of step 1."""
        place = (groups[0].prompt.seed - HELD_OUT_SEEDS) % SEEDS_PER_RUN
        whole = super().select(groups, noise_P)
        if place != len(groups):
            return whole
        return Selection(np.zeros_like(whole.kept_P), whole.scores_P, "step 2 is quiet")
