"""GRPOTrainer with the SNR filter and collapse diagnostics; nothing of TRL is patched.

Rows of a generation batch come in groups of ``num_generations``, over all processes in order. Letters: N rows
of all processes, B rows of this one, P groups, F reward functions, T tokens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object
from trl import GRPOTrainer
from trl.trainer.utils import nanstd

from ragen2.backends.sampling.hf import HFPolicy
from ragen2.errors import ConfigError
from ragen2.filtering import KeepAll
from ragen2.integrations.trl.env_rollout import EnvRollout
from ragen2.integrations.trl.masks import (
    KEPT,
    NUM_KEPT,
    WHOLE_MASK,
    Batch,
    RowSelection,
    Shares,
    drop_rows,
    loss_shares,
    select_rows,
    with_gradient_times,
)
from ragen2.integrations.trl.policy import at_rest, chat_tokenizer, policy_over
from ragen2.integrations.trl.rows import Row, RowReader, messages_of, prompt_number, written_rewards
from ragen2.integrations.trl.run_log import UPDATE_NAMES, RunLog, ScoredBatch
from ragen2.integrations.trl.settings import NO_STOPS, SNRSettings, check_settings
from ragen2.trainer.batch import EnvReplayer
from ragen2.trainer.evaluate import evaluation_metrics
from ragen2.types import FloatArray, Group

logger = logging.getLogger(__name__)

ENTROPY_BEFORE = "filter/entropy_before"
"""Mean entropy of all written tokens; TRL's own ``entropy`` is that of the kept groups."""
TRAJECTORY = "ragen2_trajectory"
"""The column in which EnvRollout returns the episodes."""
EVALUATED = ("eval/success", "eval/success_low", "eval/success_high", "eval/reward")
"""What is recorded of an evaluation: a row of TRL that is not ours says nothing of turns or formats."""
_TRL_EPS = 1e-4
"""What TRL adds to a standard deviation before it divides by it."""
_ENDS = ("_low", "_high")


class SNRGRPOTrainer(GRPOTrainer):  # type: ignore[misc]  # trl is checked as untyped
    """TRL's GRPOTrainer, whose arguments it takes, and ``snr``.

    Groups that the filter drops get no policy, KL or entropy gradient, and denominators count the kept
    ones. Metrics go to TRL's loggers and, step by step, into a run directory for ``ragen2 report``.
    """

    def __init__(self, *args: Any, snr: SNRSettings | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.snr = snr or SNRSettings()
        if getattr(self.args, "reward_variance_filtering", None):
            logger.warning("TRL filters by reward variance itself; SNRSettings.filter is not used")
            self.snr = self.snr.model_copy(update={"filter": KeepAll()})
        check_settings(self.snr, self.args)
        needs_scorer = any(one.needs_scorer for one in self.snr.diagnostics)
        self.snr_policy: HFPolicy | None = self._open_policy() if needs_scorer else None
        path = self.snr.run_dir or Path(self.args.output_dir) / "ragen2"
        self.snr_log = RunLog(
            self.snr,
            path,
            self._run_settings(),
            seed=self.args.seed,
            temperature=self.temperature,
            replayer=self._replayer(),
        )
        self._generated: tuple[Any, ...] = ()
        self._rows: list[Row] = []
        self._rewards_N: FloatArray = np.empty(0)
        self._selection: RowSelection | None = None
        self._shares: Shares | None = None
        self._entropies: torch.Tensor | None = None
        self._evaluated: list[Group] = []

    def _open_policy(self) -> HFPolicy:
        """Scores under the weights that are being trained."""
        return policy_over(
            self,
            purpose="cross-scoring",
            without="use SNRSettings(diagnostics=(Surface(), Reward()))",
        )

    @cached_property
    def _reader(self) -> RowReader:
        tokenizer = chat_tokenizer(self)
        return RowReader(tokenizer, tokenizer.eos_ids, self.snr.reasoning, self.snr.success_reward)

    @property
    def _num_batches(self) -> int:
        """Micro-batches that a generation batch is cut into, over all processes."""
        return int(self.args.steps_per_generation * self.accelerator.num_processes)

    # What was generated and paid -------------------------------------------------------------------

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        self._generated = super()._generate(prompts)
        if self.model.training:
            self._refuse_mixed_groups(self._generated[0])
        return self._generated

    def _calculate_rewards(
        self, inputs: list[Any], prompts: list[Any], completions: list[Any], ids: list[Any]
    ) -> torch.Tensor:
        rewards_NF: torch.Tensor = super()._calculate_rewards(inputs, prompts, completions, ids)
        self._rewards_N = written_rewards(
            rewards_NF.cpu().double().numpy(), self.reward_weights.cpu().numpy()
        )
        self._rows = self._local_rows(inputs, prompts)
        if self.model.training:
            self._selection = select_rows(self.snr.filter, self._rewards_N, self.num_generations)
            self._log_completion_extra("snr_kept", self._own(self._selection.kept_N).tolist())
        return rewards_NF

    def _generate_and_score_completions(self, inputs: list[Any]) -> Batch:
        batch: Batch = super()._generate_and_score_completions(inputs)
        rows = gather_object(self._rows)
        if not self.model.training:
            self._note_evaluation(rows)
            return batch
        assert self._selection is not None  # noqa: S101 - set with the rewards of this batch
        self._record(rows, self._selection)
        self._stop_together()
        return self._filtered(batch, self._selection)

    def _filtered(self, batch: Batch, selection: RowSelection) -> Batch:
        kept_N = torch.from_numpy(selection.kept_N)
        weights_B = torch.from_numpy(self._own(selection.weights_N)).to(batch["advantages"])
        advantages_B = batch["advantages"] * weights_B
        if self.scale_rewards == "batch" and selection.kept_N.any():
            rewards_N = torch.from_numpy(self._rewards_N)
            spreads = [float(nanstd(x)) + _TRL_EPS for x in (rewards_N, rewards_N[kept_N])]
            advantages_B = advantages_B * (spreads[0] / spreads[1])
        kept_B = torch.from_numpy(self._own(selection.kept_N)).to(self.accelerator.device)
        return drop_rows(
            {**batch, "advantages": advantages_B},
            kept_B,
            int(selection.kept_N.sum()),
            self.accelerator.gather,
        )

    # The loss -------------------------------------------------------------------------------------

    def _compute_loss(self, model: Any, inputs: Batch) -> torch.Tensor:
        """TRL's loss times the policy's share.

        With an entropy bonus the gradient is right and the logged value is a little off: the bonus has
        a share of its own, which only its gradient gets.
        """
        loss: torch.Tensor
        if KEPT not in inputs:
            loss = super()._compute_loss(model, inputs)
            return loss
        self._shares = shares = loss_shares(
            self.loss_type, inputs[KEPT], float(inputs[NUM_KEPT]), self._num_batches
        )
        try:
            loss = super()._compute_loss(model, inputs) * shares.policy
        finally:
            self._shares = None
        self._log_entropy_before(inputs[WHOLE_MASK])
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        """As TRL's; inside the loss, terms that are not to share the policy's factor are freed of it."""
        logps, entropies, aux_loss = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        shares = self._shares
        if shares is None:
            return logps, entropies, aux_loss
        self._entropies = entropies.detach()
        if shares.policy > 0.0:
            entropies = with_gradient_times(entropies, shares.entropy / shares.policy)
            if aux_loss is not None:
                aux_loss = with_gradient_times(aux_loss, 1.0 / shares.policy)
        return logps, entropies, aux_loss

    def _log_entropy_before(self, whole_mask_BT: torch.Tensor) -> None:
        assert self._entropies is not None  # noqa: S101 - the loss has just been computed
        sums = torch.stack([(self._entropies * whole_mask_BT).sum(), whole_mask_BT.sum().float()])
        total, count = self.accelerator.reduce(sums, reduction="sum").tolist()
        self._metrics["train"][ENTROPY_BEFORE].append(total / max(count, 1.0))

    # Records --------------------------------------------------------------------------------------

    def _record(self, rows: Sequence[Row], selection: RowSelection) -> None:
        """Measure and write on the main process; the others wait at their next exchange."""
        if not self.accelerator.is_main_process:
            return
        started = time.perf_counter()
        found = self._reader.groups(rows, self._rewards_N, self.num_generations)
        scored = ScoredBatch(
            [group for group in found if group is not None],
            selection.of_groups([group is not None for group in found]),
            knows_success=self._knows_success(rows),
        )
        read = time.perf_counter() - started
        with at_rest(self.accelerator.unwrap_model(self.model)):
            metrics = self.snr_log.scored(self.state.global_step + 1, scored, self.snr_policy)
        self.snr_log.spent("read", read)
        for name, value in metrics.items():
            if not name.endswith(_ENDS):
                self._metrics["train"][name].append(value)

    def _stop_together(self) -> None:
        """End training after this step on every process, where an alarm or an early stop asks for it."""
        # Only the main process has records; one that stopped alone would leave the others waiting.
        (asked,) = broadcast_object_list([self.snr_log.asks_to_stop])
        if asked:
            self.control.should_training_stop = True

    def _note_evaluation(self, rows: Sequence[Row]) -> None:
        if self.accelerator.is_main_process and self._knows_success(rows):
            groups = self._reader.groups(rows, self._rewards_N, self.num_generations_eval)
            self._evaluated += [group for group in groups if group is not None]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As TRL's, and into the record of the step."""
        is_training = self.model.training
        super().log(logs, start_time)
        if not self.accelerator.is_main_process:
            return
        if is_training:
            known = {ours: logs[theirs] for theirs, ours in UPDATE_NAMES.items() if theirs in logs}
            if ENTROPY_BEFORE in logs:
                known[ENTROPY_BEFORE] = logs[ENTROPY_BEFORE]
            if known:
                self.snr_log.attach(self.state.global_step, known)
        elif self._evaluated:
            found = evaluation_metrics(self._evaluated)
            known = {name: found[name] for name in EVALUATED}
            self.snr_log.attach(self.state.global_step, known)
            self._evaluated = []

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """As TRL's; the run directory must be new, or the run resumed."""
        resume = resume_from_checkpoint or self.args.resume_from_checkpoint
        try:
            if self.accelerator.is_main_process and not resume:
                self.snr_log.start()
            output = super().train(resume_from_checkpoint, *args, **kwargs)
            self.snr_log.close()
        finally:
            self.snr_log.end()
        return output

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.snr_log.close()
        # Ours first: a checkpoint that TRL was killed after has our state, too.
        if self.args.should_save:
            folder = (
                Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            )
            self.snr_log.save(folder, self.state.global_step)
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or not self.accelerator.is_main_process:
            return
        if not self.snr_log.resume(Path(checkpoint)):
            logger.warning("%s was not saved by SNRGRPOTrainer; averages start anew", checkpoint)

    def _refuse_mixed_groups(self, prompt_ids: Sequence[Sequence[int]]) -> None:
        numbers = torch.tensor([prompt_number(ids) for ids in prompt_ids])
        numbers_PG = self.accelerator.gather(numbers.to(self.accelerator.device)).view(
            -1, self.num_generations
        )
        mixed = (numbers_PG != numbers_PG[:, :1]).any(dim=1).nonzero().flatten().tolist()
        if mixed:
            different = len(set(numbers_PG[mixed[0]].tolist()))
            raise ConfigError(
                f"group {mixed[0]} of step {self.state.global_step + 1} holds {different} different "
                f"prompts in {self.num_generations} rows, so its reward variance would compare different "
                "tasks; let reset() choose the task by a column of train_dataset, not by itself"
            )

    def _local_rows(self, inputs: Sequence[Mapping[str, Any]], prompts: Sequence[Any]) -> list[Row]:
        prompt_ids, ids, masks, _, logprobs = self._generated[:5]
        return [
            Row(
                messages_of(prompts[i]),
                prompt_ids[i],
                ids[i],
                None if masks is None else masks[i],
                None if logprobs is None else logprobs[i],
                inputs[i].get(TRAJECTORY),
            )
            for i in range(len(prompts))
        ]

    def _own(self, values_N: Any) -> Any:
        """This process's part of values of all rows."""
        count = len(values_N) // self.accelerator.num_processes
        start = self.accelerator.process_index * count
        return values_N[start : start + count]

    def _knows_success(self, rows: Sequence[Row]) -> bool:
        is_played = all(row.trajectory is not None for row in rows)
        return is_played or self.snr.success_reward is not None

    def _run_settings(self) -> dict[str, Any]:
        """What run.toml holds: enough to read the report by, and TRL's settings that shape the loss."""
        args = self.args
        name = getattr(self.model.config, "_name_or_path", "") or type(self.model).__name__
        names = ("loss_type", "beta", "entropy_coef", "num_generations", "num_iterations")
        more = ("steps_per_generation", "gradient_accumulation_steps", "generation_batch_size")
        snr = self.snr.model_dump(mode="json", exclude_none=True)
        return {
            "engine": "trl",
            "seed": args.seed,
            **({"steps": args.max_steps} if args.max_steps > 0 else {}),
            "model": {"path": str(name)},
            **self._env_settings(),
            "trl": {
                key: getattr(args, key) for key in (*names, *more, "learning_rate", "temperature")
            },
            **{key: snr[key] for key in ("filter", "diagnostics", "warning", "reasoning")},
            **({"stops": snr["stops"]} if self.snr.stops != NO_STOPS else {}),
        }

    def _replayer(self) -> EnvReplayer | None:
        """Plays a task again, where it is one of ours."""
        played = self.rollout_func
        return EnvReplayer(played.env) if isinstance(played, EnvRollout) else None

    def _env_settings(self) -> dict[str, Any]:
        """The task, where it is one of ours."""
        if not isinstance(self.rollout_func, EnvRollout):
            return {}
        played = self.rollout_func
        return {
            "env": played.env.model_dump(mode="json", exclude_none=True),
            "rollout": played.rollout.model_dump(mode="json", exclude_none=True),
        }
