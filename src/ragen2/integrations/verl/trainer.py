"""verl's synchronous trainer with the filter where it saves the most, and our measurements.

Rows that the filter drops leave verl's queue before old log-probs, reference and critic see them.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict

from ragen2.errors import ConfigError, RunError
from ragen2.integrations.verl.agent_loop import EPISODE
from ragen2.integrations.verl.records import RunLog
from ragen2.integrations.verl.scorer import ActorScorer
from ragen2.integrations.verl.tasks import PROBE, run_at
from ragen2.integrations.verl.translate import AGENT
from ragen2.runs.checkpoints import save_checkpoint
from ragen2.runs.trajectories import groups_of
from ragen2.trainer.state import write_state
from ragen2.trainer.watchdog import mark_checkpoint
from ragen2.types import Group, Selection


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
        self.log = RunLog(self.settings, path)
        self._selected: dict[str, float] = {}
        self._saved_step: int | None = None
        self._bad_updates = 0
        self._has_updated = False
        self._num_rows = 0
        super().__init__(config)

    def _build_replay_buffer(self) -> Any:
        self.trainer_mode = "sync"  # what verl asks in many places; our name stands for it
        return super()._build_replay_buffer()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps:
            self.log.resume(self.global_steps)

    def fit(self, agent_loop_manager: Any) -> None:
        """As verl, but a run may end before its last step."""
        try:
            super().fit(agent_loop_manager)
        except _EndedError:
            self._shutdown_dump_executor()

    def on_step_begin(self) -> None:
        """End here if the step before said so."""
        super().on_step_begin()
        if self.log.state.stopped:
            raise _EndedError

    def _step_once(self, metrics: dict[str, Any], timing_raw: Any, sample_batch_size: int) -> Any:
        self._has_updated = True
        try:
            return super()._step_once(metrics, timing_raw, sample_batch_size)
        except _NothingKeptError as error:
            self._has_updated = False
            return error.batch

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], **words: Any) -> Any:
        """The first thing verl does with a played batch: before it, keep what the filter keeps."""
        keys_of, groups = _groups(batch)
        self._refuse_lost(groups)
        selection = self.log.rolled_out(self.global_steps, groups, self._scorer())
        kept = self._kept_keys(selection, groups, keys_of)
        rows = [row for row, key in enumerate(batch.keys) if key in kept]
        if not rows:
            raise _NothingKeptError(batch)
        dropped = [key for key in batch.keys if key not in kept]
        if dropped:
            tq.kv_clear(keys=dropped, partition_id=batch.partition_id)
        left = KVBatchMeta(
            keys=[batch.keys[row] for row in rows],
            tags=[batch.tags[row] for row in rows],
            partition_id=batch.partition_id,
            fields=batch.fields,
            extra_info=batch.extra_info,
        )
        self._num_rows = len(rows)
        return super()._balance_batch(left, metrics, **words)

    def _kept_keys(
        self, selection: Selection, groups: list[Group], keys_of: list[list[str]]
    ) -> set[str]:
        """Keys of the kept groups; what their advantages are multiplied by is remembered."""
        ratio = selection.kept_ratio
        scale = {"none": 1.0, "linear": ratio, "sqrt": float(np.sqrt(ratio))}[
            self.settings.loss_scale
        ]
        kept = [keys for keys, is_kept in zip(keys_of, selection.kept_P, strict=True) if is_kept]
        self._selected = {
            key: scale * float(weight)
            for keys, weight in zip(kept, selection.kept_weights, strict=True)
            for key in keys
        }
        return set(self._selected)

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
        return int(dp_size) * self.settings.learner.minibatches

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = super()._compute_advantage(batch, metrics)
        weights = [self._selected.get(key, 1.0) for key in batch.keys]
        if any(weight != 1.0 for weight in weights):
            where = {"keys": batch.keys, "partition_id": batch.partition_id}
            data = tq.kv_batch_get(**where, select_fields=["advantages"])
            rows = zip(data["advantages"].unbind(), weights, strict=True)
            weighed = [{"advantages": row * weight} for row, weight in rows]
            tq.kv_batch_put(**where, fields=tu.list_of_dict_to_tensordict(weighed))
        return batch

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """As verl, with mini-batches that share what was kept instead of having a fixed size."""
        learner, actor = self.settings.learner, self.config.actor_rollout_ref.actor
        batch.extra_info.update(
            {
                "calculate_entropy": actor.calculate_entropy or actor.entropy_coeff != 0.0,
                "distillation_use_topk": False,
                "distillation_only": False,
                # What means over sequences divide by: padding does not count.
                "global_batch_size": self._num_rows / learner.minibatches,
                "mini_batch_size": len(batch) // learner.minibatches,
                "epochs": learner.epochs,
                "seed": actor.data_loader_seed,
                "dataloader_kwargs": {"shuffle": actor.shuffle},
                "temperature": self.settings.rollout.temperature,
            }
        )
        output = self.actor_rollout_wg.update_actor(batch)
        found = rename_dict(output["metrics"], "actor/")
        found["perf/mfu/actor"] = found.pop("actor/mfu")
        metrics.update(reduce_metrics(found))
        self._count_bad(metrics)
        return batch

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
        found = self.log.evaluated(self.global_steps, held_out, probes, self._scorer())
        self.checkpoint_manager.update_weights(self.global_steps)
        if self.global_steps == 0:
            self.log.close(0, {}, {})
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
        keys_of, groups = _groups(done)
        tq.kv_clear(keys=done.keys, partition_id=done.partition_id)
        expected = sum(int(plays) for plays in rows["__rollout_n__"])
        if len(done.keys) != expected:
            raise RunError(
                f"{len(done.keys)} of {expected} held-out episodes came back; the log of verl's agent "
                "loop says why"
            )
        found: dict[str, list[Group]] = defaultdict(list)
        for keys, group in zip(keys_of, groups, strict=True):
            found[part_of[_prompt_of(keys[0])]].append(group)
        return found

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()
        self._saved_step = self.global_steps

    def _compute_metrics(
        self, batch: Any, metrics: Any, timing_raw: Any, global_steps: int, epoch: int
    ) -> None:
        """The last that verl does with a step before it logs it."""
        if self._has_updated:
            super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)
        metrics.update(self.log.measured)
        seconds = {name: float(value) for name, value in timing_raw.items()}
        response = self.log.close(global_steps, metrics, seconds)
        is_last = bool(self.log.state.stopped) or response.stops
        if self._saved_step != global_steps and (is_last or response.saves):
            self._save_checkpoint()
        if self._saved_step == global_steps:
            self._publish_checkpoint(global_steps)
        if response.stops and not self.log.state.stopped:
            state = self.log.state
            self.log.state = state.model_copy(update={"stopped": state.watch.warning.reason})

    def _publish_checkpoint(self, step: int) -> None:
        """The Hugging Face folder of verl as a checkpoint of the run, with our state beside."""
        settings, log = self.settings, self.log
        watch = mark_checkpoint(settings.warning, log.state.watch, step)
        log.state = log.state.model_copy(update={"watch": watch})
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{step}"

        def write(into: Path) -> None:
            shutil.copytree(folder / "actor" / "huggingface", into, dirs_exist_ok=True)
            write_state(into, log.state)

        save_checkpoint(
            log.run.path,
            step,
            write,
            keep=settings.checkpoints.keep,
            protected=log.state.watch.protected,
        )

    def _scorer(self) -> ActorScorer:
        workers = self.actor_rollout_wg
        if "actor" not in workers._dispatch_info:
            workers._dispatch_info["actor"] = workers._query_dispatch_info("actor")
        ranks = max(workers._dispatch_info["actor"]) + 1
        return ActorScorer(workers, ranks, self.config.actor_rollout_ref.rollout.max_model_len)


def _groups(batch: Any) -> tuple[list[list[str]], list[Group]]:
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


def _prompt_of(key: str) -> str:
    return key.rsplit("_", 2)[0]
