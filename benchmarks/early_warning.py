"""The early warning: false alarms, misses and delay on simulated runs, and what it says of recorded ones.

Settings are compared on calibration runs alone. The default ones are then tested on 200 healthy and 200
collapsing runs of each kind, which nothing was chosen on, and on the runs of ``results/experiments``.

Run it with `python benchmarks/early_warning.py`; it takes about two minutes on one core.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ragen2.diagnostics import EarlyWarning
from ragen2.diagnostics.metrics.collapse import FIRST_TURN
from ragen2.runs.files import write_atomically
from training_curves import MEASUREMENTS, Fate, Outcome, Size, draw_fate, first_alarm, simulate

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "early_warning.json"
EXPERIMENTS = ROOT / "results" / "experiments"
TEST_SEED, CALIBRATION_SEED = 0, 1
WANDERS = (0.1, 0.15, 0.2, 0.25)
SHORTEST = 16
"""Measured steps of the recorded runs that count."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How the runs of a test wander and how large their batches are."""

    autocorrelation: float
    sizes: tuple[Size, ...] = ((8, 8),)


KINDS = (
    Kind(0.0),
    Kind(0.5),
    Kind(0.9),
    Kind(0.5, ((16, 8), (4, 8))),
    Kind(0.9, ((16, 4), (4, 4))),
    Kind(0.5, ((16, 8), (3, 8))),
    Kind(0.5, ((4, 8), (16, 8))),
)


@dataclass(frozen=True, slots=True)
class Run:
    """A simulated run: what happened to it, and what was measured."""

    fate: Fate
    curve: list[dict[str, float]]


def runs(kind: Kind, number: int, seed: int, *, is_collapsing: bool, **fate: Any) -> list[Run]:
    """Simulate."""
    fates = [
        draw_fate(
            index, seed, is_collapsing=is_collapsing, autocorrelation=kind.autocorrelation, **fate
        )
        for index in range(number)
    ]
    return [Run(one, simulate(i, seed, one, sizes=kind.sizes)) for i, one in enumerate(fates)]


def judge(rule: EarlyWarning, tested: Sequence[Run]) -> dict[str, Any]:
    """False alarms, misses and delays."""
    found = [Outcome(first_alarm(rule, run.curve), run.fate.onset) for run in tested]
    healthy = [one for one in found if one.onset is None]
    collapsing = [one for one in found if one.onset is not None]
    delays = [one.delay for one in collapsing if one.delay is not None]
    result = {
        "healthy_runs": len(healthy),
        "false_alarms": sum(one.is_false_alarm for one in healthy),
        "collapsing_runs": len(collapsing),
        "alarms_before_onset": sum(one.is_false_alarm for one in collapsing),
        "missed": sum(one.is_missed for one in collapsing),
    }
    if not delays:
        return result
    return result | {
        "delay_median": float(np.median(delays)),
        "delay_mean": round(float(np.mean(delays)), 2),
        "delay_90": round(float(np.quantile(delays, 0.9)), 1),
        "delay_largest": max(delays),
    }


def calibration(number: int) -> list[dict[str, Any]]:
    """What the expected wander costs and gains: full collapses, and losses of half in calm runs."""
    slow = Kind(0.9)
    both = [
        run
        for is_collapsing in (False, True)
        for run in runs(slow, number, CALIBRATION_SEED, is_collapsing=is_collapsing)
    ]
    half = runs(
        Kind(0.5),
        number,
        CALIBRATION_SEED,
        is_collapsing=True,
        wander=(0.0, 0.05),
        lost=(0.5, 0.5),
    )
    rows = []
    for wander in WANDERS:
        rule = EarlyWarning(wander=wander)
        rows.append({"wander": wander} | judge(rule, both) | {"half_lost": judge(rule, half)})
    return rows


def test(rule: EarlyWarning, kind: Kind, number: int) -> dict[str, Any]:
    """The default settings on one kind of runs."""
    tested = [
        run
        for is_collapsing in (False, True)
        for run in runs(kind, number, TEST_SEED, is_collapsing=is_collapsing)
    ]
    about = {
        "autocorrelation": kind.autocorrelation,
        "batches": " -> ".join(f"{prompts} x {traces}" for prompts, traces in kind.sizes),
    }
    return about | judge(rule, tested)


def recorded(rule: EarlyWarning) -> dict[str, Any]:
    """First alarms of the recorded training runs; one that several experiments use counts once in all."""
    by_experiment: dict[str, Any] = {}
    alarm_of: dict[str, int | None] = {}
    num_steps = 0
    for file in sorted(EXPERIMENTS.glob("*/records.jsonl.gz")):
        measured = {name: one for name, one in _curves(file).items() if len(one) >= SHORTEST}
        for name, curve in measured.items():
            if name not in alarm_of:
                alarm = first_alarm(rule, curve.values())
                alarm_of[name] = None if alarm is None else list(curve)[alarm]
                num_steps += len(curve)
        steps = sorted(at for name in measured if (at := alarm_of[name]) is not None)
        if steps:
            by_experiment[file.parent.name] = {"runs": len(measured), "alarms_at": steps}
    raised = sum(step is not None for step in alarm_of.values())
    in_all = {"runs": len(alarm_of), "steps": num_steps, "runs_with_an_alarm": raised}
    return in_all | {"experiments_with_alarms": by_experiment}


def _curves(file: Path) -> dict[str, dict[int, dict[str, float]]]:
    """What was measured of each run in a file, by step."""
    curves: dict[str, dict[int, dict[str, float]]] = {}
    prefix = f"collapse/{FIRST_TURN}/"
    for record in _records(file):
        metrics = {
            name.removeprefix(prefix): value
            for name, value in record["metrics"].items()
            if name.startswith(prefix)
        }
        if "mi_estimate" in metrics:
            curves.setdefault(record["run"], {})[record["step"]] = metrics
    return curves


def _records(file: Path) -> Iterator[Mapping[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def tables(results: Mapping[str, Any]) -> tuple[str, str]:
    """The test and the comparison of settings as the docs show them."""
    test_rows = [
        f"| {one['autocorrelation']} | {one['batches']} | {one['false_alarms']} of {one['healthy_runs']} "
        f"| {one['alarms_before_onset']} | {one['missed']} of {one['collapsing_runs']} "
        f"| {one['delay_median']:.0f}, {one['delay_90']:.0f}, {one['delay_largest']} |"
        for one in results["test"]
    ]
    wander_rows = [
        f"| {one['wander']} | {one['false_alarms']} of {one['healthy_runs']} "
        f"| {one['delay_median']:.0f}, {one['delay_90']:.0f} "
        f"| {one['half_lost']['missed']} of {one['half_lost']['collapsing_runs']} |"
        for one in results["calibration"]
    ]
    return "\n".join(test_rows), "\n".join(wander_rows)


def main() -> None:
    """Compare settings, test the default ones, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curves", type=int, default=200, help="test runs of each kind")
    given = parser.parse_args()
    rule = EarlyWarning()
    results = {
        "measurements": MEASUREMENTS,
        "settings": rule.model_dump(),
        "test": [test(rule, kind, given.curves) for kind in KINDS],
        "calibration": calibration(given.curves),
        "recorded": recorded(rule),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    write_atomically(RESULTS, json.dumps(results, indent=1) + "\n")
    print("\n\n".join(tables(results)))


if __name__ == "__main__":
    main()
