"""The run directory of a verl job: what our own loop measures and decides, step by step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ragen2.config import RunConfig
from ragen2.diagnostics import Collapse, Diagnostic, Evidence, regime
from ragen2.diagnostics.metrics.collapse import PROBE, judged_scope
from ragen2.diagnostics.metrics.reward import reward_spread
from ragen2.policy import Scorer
from ragen2.runs.checkpoints import checkpoint_folder
from ragen2.runs.record import StepRecord
from ragen2.runs.scores import ScopeScores
from ragen2.runs.store import RunDirectory
from ragen2.trainer.batch import Batch, select_groups
from ragen2.trainer.evaluate import evaluation_metrics, probe_traces
from ragen2.trainer.loop import COVERAGE_STEPS, batch_metrics, diet_of, next_emas, split_finite
from ragen2.trainer.replay import EnvReplayer
from ragen2.trainer.state import Diet, TrainerState, read_state
from ragen2.trainer.stops import watch_stops
from ragen2.trainer.watchdog import Answer, answer, follow, warning_metrics
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


@dataclass(slots=True)
class _OpenStep:
    groups: Sequence[Group] = ()
    selection: Selection | None = None
    recent: tuple[Diet, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    scores: list[ScopeScores] = field(default_factory=list)


class RunLog:
    """Measures the batches of a job, selects what is updated on, and writes the run directory."""

    def __init__(self, config: RunConfig, path: Path) -> None:
        self.config = config
        self.run = RunDirectory.open(path)
        self.state = TrainerState(step=0)
        self.num_updates = 0
        """Optimiser steps of the policy so far."""
        self._open = _OpenStep()

    def resume(self, step: int) -> None:
        """Go on after the checkpoint of ``step``: what came later is forgotten."""
        state = read_state(checkpoint_folder(self.run.path, step))
        self.state = state.model_copy(update={"stopped": ""})
        self.run.rewind(step)
        steps = [record.metrics.get("update/steps", 0.0) for record in self.run.records()]
        self.num_updates = int(sum(steps))

    def rolled_out(self, step: int, groups: Sequence[Group], scorer: Scorer) -> Selection:
        """Measure the whole batch, then say what is updated on."""
        opened, config = self._open, self.config
        opened.groups = groups
        due = [one for one in config.diagnostics if one.is_due(step)]
        evidence = self._evidence(step, groups, scorer)
        with self._timed("score"):
            self._measure([one for one in due if one.needs_scorer], evidence)
        with self._timed("diagnose"):
            self._measure([one for one in due if not one.needs_scorer], evidence)
        batch = Batch(list(groups), select_groups(config, groups), 1)
        opened.selection = batch.selection
        opened.recent = (*self.state.recent, diet_of(batch))[-COVERAGE_STEPS:]
        opened.metrics |= batch_metrics(batch, opened.recent)
        opened.metrics |= {"update/steps": 0.0, "update/tokens": 0.0}
        return batch.selection

    def credited(self, metrics: Mapping[str, float]) -> None:
        """Credit was given; what was measured on the way, by our names."""
        self._open.metrics |= {f"update/{name}": value for name, value in metrics.items()}

    def updated(self, steps: int, tokens: int) -> None:
        """The policy was updated, in so many optimiser steps, on so many written tokens."""
        self.num_updates += steps
        self._open.metrics |= {"update/steps": float(steps), "update/tokens": float(tokens)}

    def evaluated(
        self, step: int, groups: Sequence[Group], probes: Sequence[Group], scorer: Scorer
    ) -> dict[str, float]:
        """Held-out success and the probe set; returned by our names."""
        found = evaluation_metrics(groups)
        if probes:
            scope = probe_traces(self.config, list(probes))
            if scope.problem:
                self._open.absent[f"collapse/{PROBE}"] = scope.problem
            else:
                evidence = self._evidence(step, probes, scorer)
                found |= Collapse().measure_scope(scope, evidence)
        self._open.metrics |= found
        return found

    def close_first(self) -> None:
        """Write the record of the evaluation before training."""
        finite, broken = split_finite(self._open.metrics)
        self.state = TrainerState(step=0, ema=next_emas({}, finite))
        self._write(0, finite, broken, [], {})
        self._open = _OpenStep()

    def close(self, step: int, verl: Mapping[str, float], seconds: Mapping[str, float]) -> Answer:
        """Write the record of ``step``; the answer says what its alarm and its stops ask for."""
        opened, config, before = self._open, self.config, self.state
        opened.metrics |= {UPDATE_NAMES[name]: verl[name] for name in UPDATE_NAMES if name in verl}
        judged = self._judged()
        watch = follow(config.warning, before.watch, judged)
        opened.metrics |= warning_metrics(config.warning, watch, measured=bool(judged))
        finite, broken = split_finite(opened.metrics)
        rewards = [group.rewards_G for group in opened.groups]
        watched = {**finite, **({"reward/std": reward_spread(rewards)["std"]} if rewards else {})}
        stops, stopped = watch_stops(config.stops, before.stops, watched)
        found = regime(judged, before.watch.baseline).value if judged else before.regime
        self.state = before.model_copy(
            update={
                "step": step,
                "ema": next_emas(before.ema, finite),
                "regime": found,
                "watch": watch,
                "stops": stops,
                "stopped": stopped,
                "recent": opened.recent or before.recent,
            }
        )
        response = answer(config.warning, before.watch, watch, step=step, run=self.run.path)
        self._write(step, finite, broken, [response.note, self._notes(stopped)], dict(seconds))
        self._open = _OpenStep()
        return response

    def _write(
        self,
        step: int,
        metrics: dict[str, float],
        broken: dict[str, str],
        notes: Sequence[str],
        seconds: dict[str, float],
    ) -> None:
        opened = self._open
        if opened.groups and step % self.config.checkpoints.rollouts_every == 0:
            self.run.save_rollouts(step, opened.groups)
        self.run.save_scores(step, opened.scores)
        selection = opened.selection
        self.run.append(
            StepRecord(
                step=step,
                metrics=metrics,
                absent=opened.absent | broken,
                regime=self.state.regime,
                kept=[] if selection is None else selection.kept_P.tolist(),
                scores=[] if selection is None else selection.scores_P.tolist(),
                seeds=[group.prompt.seed for group in opened.groups],
                note="; ".join(note for note in notes if note),
                seconds=opened.seconds | seconds,
            )
        )

    def _notes(self, stopped: str) -> str:
        selection = self._open.selection
        skipped = (
            f"no update: {selection.reason}" if selection is not None and selection.reason else ""
        )
        ended = f"the run ends here: {stopped}" if stopped else ""
        return "; ".join(note for note in (skipped, ended) if note)

    def _judged(self) -> dict[str, float]:
        prefix = f"collapse/{judged_scope(self.config.diagnostics)}/"
        return {
            name.removeprefix(prefix): value
            for name, value in self._open.metrics.items()
            if name.startswith(prefix)
        }

    def _evidence(self, step: int, groups: Sequence[Group], scorer: Scorer) -> Evidence:
        return Evidence(
            step,
            groups,
            scorer,
            self.config.rollout.temperature,
            self.state.ema,
            self.config.seed,
            replayer=EnvReplayer(self.config.env),
            keep_scores=self._open.scores.append,
        )

    def _measure(self, diagnostics: Sequence[Diagnostic], evidence: Evidence) -> None:
        for one in diagnostics:
            self._open.metrics |= one.measure(evidence)
            self._open.absent |= one.missing(evidence)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._open.seconds[phase] = time.perf_counter() - started

    @property
    def measured(self) -> dict[str, float]:
        """What is known of the step under way, for verl's loggers."""
        return dict(self._open.metrics)
