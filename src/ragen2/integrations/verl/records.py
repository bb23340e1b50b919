"""The run directory of a verl job: what verl's trainer passes to the step ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ragen2.config import RunConfig
from ragen2.policy import Scorer
from ragen2.runs.checkpoints import checkpoint_folder
from ragen2.runs.record import records_digest
from ragen2.runs.store import RunDirectory
from ragen2.trainer.batch import select_groups
from ragen2.trainer.evaluate import evaluation_metrics, measure_probe
from ragen2.trainer.state import AlarmResponse, read_state
from ragen2.trainer.step_ledger import LedgerSettings, StepLedger
from ragen2.trainer.update import update_metrics
from ragen2.types import Group, Selection

UPDATE_NAMES = {
    "actor/loss": "update/loss",
    "actor/pg_loss": "update/policy_loss",
    "actor/grad_norm": "update/grad_norm",
    "actor/lr": "update/lr",
    "actor/entropy": "update/entropy",
    "actor/kl_loss": "update/kl",
    "actor/pg_clipfrac": "update/clip_fraction",
    "critic/vf_loss": "update/value_loss",
    "critic/grad_norm": "update/critic_grad_norm",
}
"""verl's names of what we record under ours."""


class VerlLedger(StepLedger):
    """A ledger that verl's trainer calls event by event, and that selects what is updated on."""

    def __init__(self, config: RunConfig, path: Path) -> None:
        super().__init__(LedgerSettings.of(config), RunDirectory.open(path))
        self.config = config
        self.num_updates = 0
        """Optimiser steps of the policy so far."""

    def resume(self, step: int) -> None:
        """Go on after the checkpoint of ``step``: what came later is forgotten."""
        state = read_state(checkpoint_folder(self.run.path, step))
        self.state = state.model_copy(update={"stopped": ""})
        self.run.rewind(step)
        records = self.run.records()
        self._digest = records_digest(records)
        self.num_updates = int(sum(one.metrics.get("update/steps", 0.0) for one in records))

    def rolled_out(self, step: int, groups: Sequence[Group], scorer: Scorer) -> Selection:
        """Measure the whole batch, then select what is updated on."""
        self.open(step)
        self.diagnose(groups, scorer)
        with self.phase("filter"):
            selection = select_groups(self.config, groups)
            self.filtered(groups, selection, rounds=1)
        self.add(update_metrics(None))
        return selection

    def credited(self, metrics: Mapping[str, float]) -> None:
        """Credit was given; what was measured on the way, by our names."""
        self.add({f"update/{name}": value for name, value in metrics.items()})

    def updated(self, steps: int, tokens: int) -> None:
        """The policy was updated, in so many optimiser steps, on so many written tokens."""
        self.num_updates += steps
        self.add({"update/steps": float(steps), "update/tokens": float(tokens)})

    def evaluated(
        self, groups: Sequence[Group], probes: Sequence[Group], scorer: Scorer
    ) -> dict[str, float]:
        """Held-out success and the probe set; returned by our names."""
        found = dict(evaluation_metrics(groups))
        self.add(found)
        if probes:
            probed = measure_probe(self.config, self.evidence(probes, scorer))
            self.add(probed)
            found |= probed
        return found

    def finish(self, verl: Mapping[str, float], seconds: Mapping[str, float]) -> AlarmResponse:
        """Write the record of the step under way, with what verl measured of it."""
        self.add({UPDATE_NAMES[name]: verl[name] for name in UPDATE_NAMES if name in verl})
        return self.close(seconds)
