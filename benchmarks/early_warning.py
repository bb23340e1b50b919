"""The early warning on simulated training runs: false alarms, misses and delay; and how it was set.

Three sets of runs, all through the real ``measure``: healthy ones to calibrate on, then 100 healthy and 100
collapsing ones to test on. The thresholds of the rule come from the first set alone. An EWMA of the same
drops is calibrated in the same way, for comparison.

Run it with `python benchmarks/early_warning.py`; it takes about seven minutes on one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ragen2.diagnostics import EarlyWarning, Regime, regime
from ragen2.reports.figures import Chart, chart_figure, standalone
from ragen2.reports.load import Series
from ragen2.runs.files import write_atomically
from ragen2.types import FloatArray
from training_curves import (
    MEASUREMENTS,
    Fate,
    calibrate,
    draw_fate,
    outcome,
    simulate,
    statistics,
)

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "early_warning.json"
FIGURE = ROOT / "docs" / "diagnostics" / "images" / "early-warning.svg"
TEST_SEED, CALIBRATION_SEED = 0, 1
RATES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2)
"""Shares of false alarms to calibrate to."""
TOLERATED = (0.1, 0.2, 0.3, 0.4, 0.5)
EWMA_WEIGHTS = (0.1, 0.2, 0.4, 0.6)
OTHER_SIZES = ((4, 4), (16, 4), (8, 2))
COLLAPSED = {Regime.TEMPLATE_COLLAPSE, Regime.LOW_ENTROPY_COLLAPSE}

Statistic = Callable[[Sequence[dict[str, float]]], FloatArray]
Followed = tuple[FloatArray, Fate]
"""A statistic at each measurement of a run, and what happened to the run."""


@dataclass(frozen=True, slots=True)
class Run:
    """A simulated run: what happened to it, and what was measured."""

    fate: Fate
    curve: list[dict[str, float]]


def runs(number: int, seed: int, *, is_collapsing: bool, **size: int) -> list[Run]:
    """Simulate."""
    fates = [draw_fate(index, seed, is_collapsing=is_collapsing) for index in range(number)]
    return [Run(fate, simulate(i, seed, fate, **size)) for i, fate in enumerate(fates)]


def ewma(rule: EarlyWarning, weight: float) -> Statistic:
    """The alternative: a moving average of the drops that the rule sums up."""

    def statistic(curve: Sequence[dict[str, float]]) -> FloatArray:
        state, averages, found = rule.start(), np.zeros(2), []
        for metrics in curve:
            state = rule.update(state, metrics)
            drops = np.array([state.mi.drop, state.retrieval.drop])
            averages += weight * (drops - averages)
            found.append(averages.max())
        return np.array(found)

    return statistic


def judge(followed: Sequence[Followed], threshold: float) -> dict[str, Any]:
    """False alarms, misses and delays at one threshold."""
    found = [outcome(statistic_T, threshold, fate) for statistic_T, fate in followed]
    healthy = [one for one in found if one.onset is None]
    collapsing = [one for one in found if one.onset is not None]
    delays = [one.delay for one in collapsing if one.delay is not None]
    return {
        "threshold": round(threshold, 3),
        "healthy_runs": len(healthy),
        "false_alarms": sum(one.is_false_alarm for one in healthy),
        "collapsing_runs": len(collapsing),
        "alarms_before_onset": sum(one.is_false_alarm for one in collapsing),
        "missed": sum(one.is_missed for one in collapsing),
        "delay_median": float(np.median(delays)),
        "delay_mean": round(float(np.mean(delays)), 2),
        "delay_90": round(float(np.quantile(delays, 0.9)), 1),
        "delay_largest": max(delays),
    }


def follow(statistic: Statistic, tested: Sequence[Run]) -> list[Followed]:
    """The statistic over each run."""
    return [(statistic(run.curve), run.fate) for run in tested]


def calibrated(
    statistic: Statistic, calibration: Sequence[Run], tested: Sequence[Run], rates: Sequence[float]
) -> list[dict[str, Any]]:
    """Thresholds from the calibration set, each judged on the test set."""
    healthy = [statistic_T for statistic_T, _ in follow(statistic, calibration)]
    followed = follow(statistic, tested)
    return [{"calibrated_to": rate} | judge(followed, calibrate(healthy, rate)) for rate in rates]


def compare_with_regime(rule: EarlyWarning, tested: Sequence[Run]) -> dict[str, Any]:
    """How much was left when the alarm came, and how the verdicts on single batches would have done."""
    left, lead, wrong = [], [], 0
    for run in tested:
        verdicts = [regime(metrics, run.curve[0]) in COLLAPSED for metrics in run.curve]
        onset = MEASUREMENTS if run.fate.onset is None else run.fate.onset
        wrong += any(verdicts[:onset])
        found = outcome(statistics(rule, run.curve), rule.threshold, run.fate)
        if found.delay is not None and found.alarm is not None:
            left.append(run.fate.groundedness_T[found.alarm] / run.fate.groundedness_T[onset - 1])
            lead += [verdicts.index(True, onset) - found.alarm] if any(verdicts[onset:]) else []
    return {
        "groundedness_left_median": round(float(np.median(left)), 3),
        "runs_with_a_wrong_regime_before_any_collapse": wrong,
        "measurements_before_the_regime_median": float(np.median(lead)),
    }


def figure(by_rate: Sequence[dict[str, Any]], average: Sequence[dict[str, Any]]) -> str:
    """Delay against the false alarms that were calibrated to."""
    percent = tuple(round(100 * row["calibrated_to"]) for row in by_rate)

    def chart(title: str, name: str) -> Chart:
        lines = [
            Series(label, percent, tuple(row[name] for row in rows))
            for label, rows in (("running sum", by_rate), ("moving average", average))
        ]
        return Chart(
            title, lines, unit="measurements", floor=0.0, across="% of healthy runs with an alarm"
        )

    charts = [chart("Mean delay", "delay_mean"), chart("Delay of 90%", "delay_90")]
    return standalone([chart_figure(one) for one in charts])


def cusum(rule: EarlyWarning) -> Statistic:
    """The statistic of the rule itself."""
    return lambda curve: statistics(rule, curve)


def at_other_sizes(rule: EarlyWarning, number: int) -> list[dict[str, Any]]:
    """The default threshold on batches it was not calibrated on."""
    rows = []
    for prompts, traces in OTHER_SIZES:
        tested = [
            run
            for kind in (False, True)
            for run in runs(number, TEST_SEED, is_collapsing=kind, prompts=prompts, traces=traces)
        ]
        row = judge(follow(cusum(rule), tested), rule.threshold)
        rows.append({"prompts": prompts, "traces": traces} | row)
    return rows


def main() -> None:
    """Simulate, calibrate, test, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calibration", type=int, default=200, help="healthy runs to calibrate on")
    parser.add_argument("--curves", type=int, default=100, help="test runs of each kind")
    given = parser.parse_args()
    rule = EarlyWarning()
    calibration = runs(given.calibration, CALIBRATION_SEED, is_collapsing=False)
    tested = [
        run for kind in (False, True) for run in runs(given.curves, TEST_SEED, is_collapsing=kind)
    ]
    others = [rule.model_copy(update={"tolerated": share}) for share in TOLERATED]

    by_rate = calibrated(cusum(rule), calibration, tested, RATES)
    averages = [
        (weight, calibrated(ewma(rule, weight), calibration, tested, RATES))
        for weight in EWMA_WEIGHTS
    ]
    best = min((rows for _, rows in averages), key=lambda rows: float(rows[1]["delay_mean"]))
    results = {
        "measurements": MEASUREMENTS,
        "calibration_runs": given.calibration,
        "settings": rule.model_dump(),
        "default": judge(follow(cusum(rule), tested), rule.threshold)
        | compare_with_regime(rule, tested),
        "default_false_alarms_in_calibration": sum(
            bool((statistic_T >= rule.threshold).any())
            for statistic_T, _ in follow(cusum(rule), calibration)
        ),
        "by_false_alarms": by_rate,
        "by_tolerated": [
            {"tolerated": other.tolerated}
            | calibrated(cusum(other), calibration, tested, [0.02])[0]
            for other in others
        ],
        "ewma": [{"weight": weight} | row for weight, rows in averages for row in rows],
        "other_sizes": at_other_sizes(rule, given.curves // 4),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    FIGURE.parent.mkdir(exist_ok=True)
    write_atomically(RESULTS, json.dumps(results, indent=1) + "\n")
    write_atomically(FIGURE, figure(by_rate, best))
    print(json.dumps(results["default"], indent=1))


if __name__ == "__main__":
    main()
