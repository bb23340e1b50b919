"""verl's synchronous trainer with the filter where it saves the most, and our measurements.

Rows that the filter drops leave verl's queue before old log-probs, reference and critic see them.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import transfer_queue as tq
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict

from ragen2.backends.learner.microbatches import even_parts, random_parts
from ragen2.errors import ConfigError, RunError
from ragen2.integrations.verl.credit import credit
from ragen2.integrations.verl.layout import rows_by_rank
from ragen2.integrations.verl.publish import publish
from ragen2.integrations.verl.records import VerlLedger
from ragen2.integrations.verl.rows import (
    Chosen,
    only,
    prompt_of,
    read_groups,
    read_written,
    reordered,
    write_credit,
)
from ragen2.integrations.verl.scorer import ActorScorer
from ragen2.integrations.verl.tasks import PROBE, run_at
from ragen2.integrations.verl.translate import AGENT
from ragen2.types import Group


class _NothingKeptError(Exception):
    """No row is left to update on; the step goes on without an update.

    It carries the whole batch, which verl clears at the end of the step and which must not be empty.
    """

    def __init__(self, batch: Any) -> None:
        super().__init__("the filter kept nothing")
        self.batch = batch


class _EndedError(Exception):
    """The run ends by itself before its last step."""


@register_trainer(AGENT)
class SNRTrainer(PPOTrainerSync):  # type: ignore[misc]  # verl has no types here
    """Plays, measures, filters, and lets verl update; ``ragen2.run`` names the run directory."""

    def __init__(self, config: Any) -> None:
        if not config.get("ragen2"):
            raise ConfigError(
                f"trainer.v1.trainer_mode={AGENT} needs ragen2.run, the run directory; start the job "
                "with ragen2 train RUN.toml --engine verl"
            )
        path = Path(config.ragen2.run)
        self.settings = run_at(str(path / "run.toml"))
        self.ledger = VerlLedger(self.settings, path)
        self._chosen: Chosen | None = None
        """What the step under way updates on; None when it is nothing."""
        self._saved_step: int | None = None
        self._bad_updates = 0
        self._num_rows = 0
        super().__init__(config)

    def _build_replay_buffer(self) -> Any:
        self.trainer_mode = "sync"  # what verl asks in many places; our name stands for it
        return super()._build_replay_buffer()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps:
            self.ledger.resume(self.global_steps)
            self.config.trainer.val_before_train = False  # it was, when this step was done

    def fit(self, agent_loop_manager: Any) -> None:
        """As verl, but a run may end before its last step."""
        try:
            super().fit(agent_loop_manager)
        except _EndedError:
            self._shutdown_dump_executor()

    def on_step_begin(self) -> None:
        """End here if the step before asked for it."""
        super().on_step_begin()
        if self.ledger.state.stopped:
            raise _EndedError

    def _step_once(self, metrics: dict[str, Any], timing_raw: Any, sample_batch_size: int) -> Any:
        self._chosen = None
        try:
            return super()._step_once(metrics, timing_raw, sample_batch_size)
        except _NothingKeptError as error:
            return error.batch

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], **more: Any) -> Any:
        """The first thing verl does with a played batch: before it, keep what the filter keeps."""
        keys, groups = read_groups(batch)
        self._refuse_lost(groups)
        chosen = Chosen(
            groups, keys, self.ledger.rolled_out(self.global_steps, groups, self._scorer())
        )
        if not chosen.flat_keys:
            raise _NothingKeptError(batch)
        self._chosen = chosen
        self._num_rows = len(chosen.flat_keys)
        return super()._balance_batch(only(batch, set(chosen.flat_keys)), metrics, **more)

    @property
    def _kept(self) -> Chosen:
        if self._chosen is None:
            raise AssertionError("only a step that keeps something comes here")
        return self._chosen

    def _refuse_lost(self, groups: list[Group]) -> None:
        """An episode that failed inside verl must not thin out a group in silence."""
        settings = self.settings.rollout
        played = sum(len(group.trajectories) for group in groups)
        if played != settings.prompts * settings.group_size:
            raise RunError(
                f"{played} of {settings.prompts * settings.group_size} episodes of step "
                f"{self.global_steps} came back; the log of verl's agent loop says why"
            )

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        return int(dp_size) * self._num_minibatches

    @property
    def _num_minibatches(self) -> int:
        return min(self.settings.learner.minibatches, self._num_rows)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """As verl, for what else it measures here; then advantages are those of the run's algorithm."""
        chosen = self._kept
        rows, keys = chosen.kept_keys(), chosen.flat_keys
        read = read_written(keys, batch.partition_id)
        batch = super()._compute_advantage(batch, metrics)
        outputs = [[read[key].outputs if key else None for key in row] for row in rows]
        found = credit(self.settings, chosen.selection, chosen.groups, outputs)
        credits = [
            one
            for row, members in zip(rows, found.members, strict=True)
            for key, one in zip(row, members, strict=True)
            if key is not None
        ]
        self.ledger.credited(found.metrics)
        write_credit(keys, batch.partition_id, read, credits)
        return batch

    def _update_critic(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """See ``_update_actor``."""
        learner, role = self.settings.learner, self.config.critic
        parts = even_parts(self._num_rows, learner.minibatches)
        cut = self._cut(batch, parts, role, epochs=learner.epochs)
        output = self.critic_wg.train_mini_batch(cut).get()
        metrics.update(_measured(output, "critic"))
        return batch

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """As verl, with the mini-batches of our own learner: they share what was kept."""
        learner, actor = self.settings.learner, self.config.actor_rollout_ref.actor
        done = self.ledger.num_updates
        found = []
        for epoch in range(learner.epochs):
            before = done + epoch * self._num_minibatches
            parts = random_parts(
                self._num_rows, learner.minibatches, self.settings.seed, before, epoch
            )
            cut = self._cut(batch, parts, actor, epochs=1)
            cut.extra_info |= {
                "calculate_entropy": actor.calculate_entropy or actor.entropy_coeff != 0.0,
                "distillation_use_topk": False,
                "distillation_only": False,
            }
            found.append(_measured(self.actor_rollout_wg.update_actor(cut), "actor"))
        metrics.update({name: float(np.mean([one[name] for one in found])) for name in found[0]})
        self._count_bad(metrics)
        self.ledger.updated(learner.epochs * self._num_minibatches, self._kept.kept_tokens())
        return batch

    def _cut(self, batch: Any, parts: list[list[int]], role: Any, *, epochs: int) -> Any:
        """The batch in an order from which verl cuts these mini-batches for one network."""
        place = {key: row for row, key in enumerate(batch.keys)}
        kept = [place[key] for key in self._kept.flat_keys]
        padding = sorted(set(place.values()) - set(kept))
        lengths = [int(tag["seq_len"]) for tag in batch.tags]
        rows = [[kept[one] for one in part] for part in parts]
        cut = reordered(batch, rows_by_rank(rows, lengths, padding, self._num_ranks))
        cut.extra_info |= {
            # What means over sequences divide by: padding does not count.
            "global_batch_size": self._num_rows / len(parts),
            "mini_batch_size": len(cut) // len(parts),
            "epochs": epochs,
            "seed": role.data_loader_seed,
            "dataloader_kwargs": {"shuffle": False},
            "temperature": self.settings.rollout.temperature,
        }
        return cut

    def _count_bad(self, metrics: dict[str, Any]) -> None:
        most = self.settings.learner.max_bad_updates
        is_bad = not np.isfinite(metrics.get("actor/grad_norm", 0.0))
        self._bad_updates = self._bad_updates + 1 if is_bad else 0
        if most and self._bad_updates >= most:
            raise RunError(
                f"{self._bad_updates} updates in a row had no finite gradient; lower learner.lr"
            )

    def _validate(self) -> dict[str, float]:
        """Held-out tasks and the probe set, played like everything else."""
        played: dict[str, list[Group]] = defaultdict(list)
        for rows in self.val_dataloader:
            played_here = self._play_held_out(rows)
            for part, groups in played_here.items():
                played[part].extend(groups)
        probes = played.pop(PROBE, [])
        held_out = [group for groups in played.values() for group in groups]
        self.checkpoint_manager.sleep_replicas()  # their memory is needed to score
        if self.global_steps == 0:
            self.ledger.open(0)
        found = self.ledger.evaluated(held_out, probes, self._scorer())
        self.checkpoint_manager.update_weights(self.global_steps)
        if self.global_steps == 0:
            self.ledger.close()
        return found

    def _play_held_out(self, rows: dict[str, Any]) -> dict[str, list[Group]]:
        names = [str(uuid4()) for _ in rows["task"]]
        part_of = dict(zip(names, rows["part"], strict=True))
        batch = tu.get_tensordict({**rows, "uid": np.array(names, dtype=object)})
        tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        tu.assign_non_tensor_data(batch, "validate", True)
        tag = {"is_prompt": True, "status": "pending", "global_steps": self.global_steps}
        tq.kv_batch_put(keys=names, partition_id="val", tags=[dict(tag) for _ in names])
        self.agent_loop_manager.generate_sequences(batch)
        done, _ = self.replay_buffer.sample(
            global_steps=self.global_steps, partition_id="val", batch_size=len(names)
        )
        keys_of, groups = read_groups(done)
        tq.kv_clear(keys=done.keys, partition_id=done.partition_id)
        expected = sum(int(plays) for plays in rows["__rollout_n__"])
        if len(done.keys) != expected:
            raise RunError(
                f"{len(done.keys)} of {expected} held-out episodes came back; the log of verl's agent "
                "loop says why"
            )
        found: dict[str, list[Group]] = defaultdict(list)
        for keys, group in zip(keys_of, groups, strict=True):
            found[part_of[prompt_of(keys[0])]].append(group)
        return found

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()
        self._saved_step = self.global_steps

    def _compute_metrics(
        self, batch: Any, metrics: Any, timing_raw: Any, global_steps: int, epoch: int
    ) -> None:
        """The last that verl does with a step before it logs it."""
        if self._chosen is not None:
            super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)
        metrics.update(self.ledger.metrics)
        seconds = {name: float(value) for name, value in timing_raw.items()}
        response = self.ledger.finish(metrics, seconds)
        is_last = bool(self.ledger.state.stopped) or response.stops
        if self._saved_step != global_steps and (is_last or response.saves):
            self._save_checkpoint()
        if self._saved_step == global_steps:
            publish(self.settings, self.ledger, global_steps)
        if response.stops and not self.ledger.state.stopped:
            state = self.ledger.state
            self.ledger.state = state.model_copy(update={"stopped": state.watch.warning.reason})

    def _scorer(self) -> ActorScorer:
        context = self.config.actor_rollout_ref.rollout.max_model_len
        return ActorScorer(self.actor_rollout_wg, self._num_ranks, context)

    @property
    def _num_ranks(self) -> int:
        """How many parts verl cuts a batch into."""
        workers = self.actor_rollout_wg
        if "actor" not in workers._dispatch_info:
            workers._dispatch_info["actor"] = workers._query_dispatch_info("actor")
        return int(max(workers._dispatch_info["actor"])) + 1


def _measured(output: Any, role: str) -> dict[str, float]:
    """What an update measured, by verl's names."""
    found = rename_dict(output["metrics"], f"{role}/")
    found[f"perf/mfu/{role}"] = found.pop(f"{role}/mfu")
    return {name: float(value) for name, value in reduce_metrics(found).items()}
