"""Simulated runs: their fates, and the early warning on a reduced set of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from early_warning import RESULTS, ROOT, tables
from ragen2.diagnostics import EarlyWarning
from training_curves import MEASUREMENTS, Fate, Outcome, draw_fate, first_alarm, simulate

RULE = EarlyWarning()


@pytest.mark.parametrize("index", range(20))
def test_a_collapsing_run_loses_nine_tenths_between_onset_and_end(index):
    fate = draw_fate(index, 0, is_collapsing=True)
    assert MEASUREMENTS // 8 <= fate.onset < MEASUREMENTS // 2
    assert 1 <= fate.duration <= 50
    path, end = fate.groundedness_T, fate.onset + fate.duration - 1
    assert path[end:].max() <= 0.1 * 0.95 + 1e-12


@pytest.mark.parametrize("autocorrelation", [0.0, 0.5, 0.9])
def test_healthy_runs_wander_with_their_autocorrelation(autocorrelation):
    paths = [
        draw_fate(
            index, 0, is_collapsing=False, autocorrelation=autocorrelation, wander=(0.1, 0.1)
        ).groundedness_T
        for index in range(60)
    ]
    flat = [path / path.mean() - 1.0 for path in paths if path.max() < 0.95]
    lagged = np.mean([np.corrcoef(one[1:], one[:-1])[0, 1] for one in flat])
    # A third of the runs rises too, which correlates neighbours; slow wander looks less correlated.
    assert abs(lagged - autocorrelation) < 0.15
    assert all(draw_fate(i, 0, is_collapsing=False).onset is None for i in range(5))


def test_the_same_name_gives_the_same_run():
    first, again = (draw_fate(3, 1, is_collapsing=True) for _ in range(2))
    np.testing.assert_array_equal(first.groundedness_T, again.groundedness_T)
    short = Fate(first.groundedness_T[:4])
    assert simulate(3, 1, short, draws=2) == simulate(3, 1, short, draws=2)
    assert simulate(3, 1, short, draws=2) != simulate(3, 2, short, draws=2)


def test_measurements_follow_groundedness():
    path = np.array([0.9, 0.5, 0.1, 0.0])
    found = simulate(0, 0, Fate(path), sizes=((4, 16),), draws=1)
    values = [metrics["mi_estimate"] for metrics in found]
    assert values == sorted(values, reverse=True)
    assert all((m["num_prompts"], m["num_traces"]) == (4.0, 64.0) for m in found)


def test_batches_change_their_size_once():
    found = simulate(0, 0, Fate(np.full(MEASUREMENTS, 0.5)), sizes=((4, 2), (2, 2)), draws=1)
    prompts = [metrics["num_prompts"] for metrics in found]
    change = prompts.index(2.0)
    assert 10 <= change < MEASUREMENTS - 20
    assert prompts == [4.0] * change + [2.0] * (MEASUREMENTS - change)


@pytest.mark.parametrize(
    ("alarm", "onset", "is_false", "is_missed", "delay"),
    [
        (None, None, False, False, None),
        (5, None, True, False, None),
        (None, 5, False, True, None),
        (4, 5, True, False, None),
        (5, 5, False, False, 0),
        (8, 5, False, False, 3),
    ],
)
def test_an_alarm_is_judged_by_the_onset(alarm, onset, is_false, is_missed, delay):
    found = Outcome(alarm, onset)
    assert (found.is_false_alarm, found.is_missed, found.delay) == (is_false, is_missed, delay)


# --- the rule, on a few runs of each kind; benchmarks/early_warning.py has them all ------------------


@pytest.mark.parametrize("sizes", [((8, 4),), ((16, 4), (4, 4))])
def test_every_collapse_is_found_soon_and_no_healthy_run_raises_an_alarm(sizes):
    def outcomes(*, is_collapsing: bool) -> list[Outcome]:
        # Every fourth run has the same source, so that measurements can be used again.
        fates = [
            (4 * index, draw_fate(index, 5, is_collapsing=is_collapsing)) for index in range(4)
        ]
        curves = [simulate(index, 5, fate, sizes=sizes, draws=1) for index, fate in fates]
        return [
            Outcome(first_alarm(RULE, curve), fate.onset)
            for curve, (_, fate) in zip(curves, fates, strict=True)
        ]

    assert not any(one.is_false_alarm for one in outcomes(is_collapsing=False))
    found = outcomes(is_collapsing=True)
    assert not any(one.is_false_alarm or one.is_missed for one in found)
    assert np.median([one.delay for one in found]) <= 15


def test_the_docs_show_the_saved_results():
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))
    page = (ROOT / "docs/diagnostics/regimes-and-warnings.md").read_text(encoding="utf-8")
    for table in tables(saved):
        assert table in page
    assert saved["settings"] == RULE.model_dump()
    assert all(one["false_alarms"] <= 0.02 * one["healthy_runs"] for one in saved["test"])
