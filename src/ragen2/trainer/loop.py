"""The loop: play, score, diagnose, filter, update, record. There is no trainer class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ragen2.config import RunConfig
from ragen2.policy import Learner, Policy
from ragen2.rollout.context import require_vision
from ragen2.runs.checkpoints import save_checkpoint
from ragen2.runs.record import Sink
from ragen2.runs.store import RunDirectory
from ragen2.trainer.batch import EnvReplayer, play_rounds, select_rounds
from ragen2.trainer.card import write_card
from ragen2.trainer.evaluate import evaluate_run
from ragen2.trainer.probe import probe_gradients
from ragen2.trainer.resume import write_settings
from ragen2.trainer.state import TrainerState, mark_checkpoint, write_state
from ragen2.trainer.step_ledger import LedgerSettings, StepLedger
from ragen2.trainer.update import NO_TOKENS, update, update_metrics
from ragen2.types import Group


def train(
    config: RunConfig,
    policy: Policy,
    learner: Learner,
    run: RunDirectory,
    *,
    state: TrainerState | None = None,
    sinks: Sequence[Sink] = (),
    stop_asked: Callable[[], bool] = lambda: False,
) -> TrainerState:
    """Run until ``config.steps``, ``stop_asked``, an alarm that stops, or an early stop.

    Each leaves a checkpoint, if there was a step.

    Args:
        config: the run.
        policy: sampler and scorer over the learner's weights.
        learner: holds the weights, already at ``state``.
        run: where records, rollouts and checkpoints go.
        state: where to go on from; None starts before step 1.
        sinks: who else sees records.
        stop_asked: checked after every step.
    """
    require_vision(config.env, policy, config.rollout, config.prompt)
    ledger = StepLedger(LedgerSettings.of(config), run, state, sinks)
    if state is None:
        ledger.open(0)
        _evaluate(config, policy, ledger)
        ledger.close()
        if stop_asked():  # nothing is trained yet, so there is nothing to save
            return ledger.state
    while ledger.state.step < config.steps:
        step = ledger.state.step + 1
        ledger.open(step)
        before = ledger.state.curriculum
        level = config.curriculum.level(config.env, before)
        groups = train_step(
            config.model_copy(update={"env": level.env}), policy, learner, ledger, step
        )
        if config.curriculum.mode != "off":
            ledger.played_at(level, *config.curriculum.update(config.env, before, groups))
        if step % config.evaluation.every == 0 or step == config.steps:
            _evaluate(config, policy, ledger)
        response = ledger.close()
        is_stopping = stop_asked() or response.stops or bool(ledger.state.stopped)
        is_due = step % config.checkpoints.every == 0 or step == config.steps
        if is_due or is_stopping or response.saves:
            checkpoint(config, learner, ledger)
        if is_stopping:
            break
    return ledger.state


def train_step(
    config: RunConfig, policy: Policy, learner: Learner, ledger: StepLedger, step: int
) -> list[Group]:
    """One step, from the rollouts to the update; what it finds goes into the ledger, what it played back."""
    with ledger.phase("rollout"):
        rounds = play_rounds(config, policy, step)
        groups = [group for one in rounds for group in one.groups]
    ledger.diagnose(groups, policy, EnvReplayer(config.env))
    if config.probe.every and step % config.probe.every == 0:
        with ledger.phase("probe"):
            has_reference = config.algorithm.kl_coefficient > 0.0
            found = probe_gradients(
                config, learner, groups, config.probe, has_reference=has_reference
            )
            ledger.add(found.metrics())
    with ledger.phase("filter"):  # rounds of resampling were filtered as they were played
        selection = select_rounds(config, rounds)
        ledger.filtered(groups, selection, len(rounds))
    with ledger.phase("update"):
        done = update(config, learner, selection, groups, step)
    ledger.add(update_metrics(done))
    if done is None and not selection.reason:
        ledger.note(f"no update: {NO_TOKENS}")
    return groups


def _evaluate(config: RunConfig, policy: Policy, ledger: StepLedger) -> None:
    with ledger.phase("evaluate"):
        ledger.add(evaluate_run(config, policy, ledger.evidence))


def checkpoint(config: RunConfig, learner: Learner, ledger: StepLedger) -> Path:
    """Save weights, optimiser, trainer state and the model card together."""
    # Marked before it is written: a resumed run must know that this checkpoint was a healthy one.
    watch = mark_checkpoint(config.warning, ledger.state.watch, ledger.state.step)
    state = ledger.state = ledger.state.model_copy(update={"watch": watch})

    # The record of the step is on disk already. A crash in here leaves the checkpoint before, and the steps
    # after that one are rewound and trained again, to the same bits.
    def write(folder: Path) -> None:
        learner.save(folder)
        write_state(folder, state)
        write_settings(folder, config)
        write_card(folder, config, ledger.run.records())

    keep, protected = config.checkpoints.keep, state.watch.protected
    return save_checkpoint(ledger.run.path, state.step, write, keep=keep, protected=protected)
