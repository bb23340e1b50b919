"""Small run directories and records that the tests of reports share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ragen2.config import RunConfig, dump_config
from ragen2.diagnostics import measure
from ragen2.diagnostics.metrics.gradients import (
    BucketGradient,
    GradientReport,
    ProbeRecord,
    PromptGradient,
)
from ragen2.reports.load import Run
from ragen2.runs.record import AuditRecord, Rows, StepRecord
from ragen2.runs.scores import RowSource, ScopeScores
from ragen2.runs.store import RunDirectory
from ragen2.types import ScoreMatrix

FIRST = "collapse/first_turn/"


def collapse_metrics(*, grounded: bool = True, seed: int = 0) -> dict[str, float]:
    """What ``measure`` gives for 4 prompts of 4 reasonings."""
    matrix = score_matrix(grounded=grounded, seed=seed)
    found = measure(matrix.logp_NP, matrix.length_N, matrix.owner_N, resamples=100, seed=seed)
    return {f"{FIRST}{name}": value for name, value in found.items()}


def score_matrix(*, grounded: bool = True, seed: int = 0) -> ScoreMatrix:
    """Log-probs of 16 reasonings of 10 tokens under 4 prompts."""
    owner_N = np.arange(16) % 4
    logp_NP = np.random.default_rng(seed).normal(-20.0, 1.0, size=(16, 4))
    if grounded:
        logp_NP[np.arange(16), owner_N] += 8.0
    return ScoreMatrix(logp_NP, np.full(16, 10), owner_N)


def scope_scores(
    *, grounded: bool = True, seed: int = 0, text: str = "I see board {}"
) -> ScopeScores:
    """The same matrix as it is stored."""
    matrix = score_matrix(grounded=grounded, seed=seed)
    sources = [
        RowSource(
            text=text.format(owner),
            label=f"seed {owner}, play {row}",
            prompt=f"board {owner}",
            prompt_label=f"seed {owner}",
            action="Up",
            line=row,
        )
        for row, owner in enumerate(matrix.owner_N.tolist())
    ]
    return ScopeScores.of("first_turn", matrix, sources)


def make_run(
    path: Path, *, steps: int = 3, collapse_at: int | None = None, settings: str | None = None
) -> Path:
    """A run directory whose steps are all scored; from ``collapse_at`` on reasoning is a template."""
    run = RunDirectory.create(path, settings or dump_config(RunConfig(steps=steps)))
    run.append(StepRecord(step=0, metrics=success(0.2), seconds={"evaluate": 1.0}))
    for step in range(1, steps + 1):
        grounded = collapse_at is None or step < collapse_at
        metrics = {
            "rollout/success": 0.1,
            "reward/mean": 0.1 * step,
            "filter/kept": 1.0,
            **success(0.2 + 0.1 * step),
            **collapse_metrics(grounded=grounded, seed=step),
        }
        run.save_scores(step, [scope_scores(grounded=grounded, seed=step)])
        run.append(
            StepRecord(
                step=step,
                metrics=metrics,
                regime="diverse_grounded" if grounded else "template_collapse",
                kept=[True, False],
                scores=[0.25, 0.0],
                seeds=[7, 8],
                seconds={"rollout": 2.0, "update": 1.0, "step": 3.0},
            )
        )
    return path


def success(value: float) -> dict[str, float]:
    """Held-out success with an interval of a tenth to each side."""
    low, high = max(0.0, value - 0.1), min(1.0, value + 0.1)
    return {"eval/success": value, "eval/success_low": low, "eval/success_high": high}


def run_of(*records: StepRecord, settings: dict[str, Any] | None = None) -> Run:
    """A run that is nowhere on disk."""
    return Run(Path("nowhere/run"), settings or {}, records)


def audit_record(**more: Any) -> AuditRecord:
    """An audit of two steps by wording."""
    steps = [
        StepRecord(step=step, metrics=collapse_metrics(seed=step), regime="diverse_grounded")
        for step in (1, 2)
    ]
    plain = {
        "sources": ["logs/verl"],
        "formats": ["verl"],
        "likelihood": "text",
        "scorer": "wording",
        "settings": {"seed": 0},
        "rows": Rows(read=10, used=9, unused={"no prompt": 1}),
        "steps": steps,
        "regime": "diverse_grounded",
        "regime_since": 1,
    }
    return AuditRecord.model_validate(plain | more)


def bucket(
    name: str, variance: float, norms: dict[str, float], snr: float | None = 2.0
) -> BucketGradient:
    """A bucket of 4 prompts."""
    return BucketGradient(name, 4, 32, variance, variance, variance, norms, {"task_kl": -0.25}, snr)


def probe_record(
    run: str = "try", *, kl: tuple[float, float, float] = (1.0, 1.2, 1.1)
) -> ProbeRecord:
    """A probe of 3 buckets and 4 prompts."""
    buckets = tuple(
        bucket(
            f"bucket_{i + 1}",
            0.1 * i,
            {"task": 0.5 * i, "centred": 0.3 * i, "kl": kl[i], "entropy": 0.4},
        )
        for i in range(3)
    )
    everything = bucket("all", 0.1, {"task": 0.4, "centred": 0.2, "kl": 1.0, "entropy": 0.4}, None)
    prompts = tuple(
        PromptGradient(seed=i, variance=0.04 * i, norm=2.0 * i, bound=5.0 * i) for i in range(4)
    )
    report = GradientReport((*buckets, everything), prompts)
    return ProbeRecord(
        run=run,
        step=6,
        model="ragen2-tiny",
        env="FrozenLake",
        algorithm="grpo",
        aggregation="token_mean",
        kl_estimator="k3",
        num_prompts=12,
        group_size=8,
        edges=(),
        buckets=report.buckets,
        prompts=report.prompts,
        trends=report.trends(),
        prompt_correlation=report.prompt_correlation(),
        seconds={"rollout": 1.0, "gradients": 2.0},
    )
