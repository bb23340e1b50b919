"""Runs side by side: peaks and ends, what the filter changed, what goes with success."""

from __future__ import annotations

import math
from typing import Any

import pytest
from report_runs import FIRST, audit_record, run_of, success

from ragen2.reports.data.compare import (
    StepValue,
    compare_data,
    difference,
    filter_deltas,
    final,
    peak,
    success_metric,
)
from ragen2.reports.load import Run, as_run
from ragen2.reports.verdict import judge
from ragen2.runs.record import StepRecord


def run_with(
    *values: float, settings: dict[str, Any] | None = None, **collapse: list[float]
) -> Run:
    records = [
        StepRecord(
            step=10 * index,
            metrics=success(value)
            | {f"{FIRST}{name}": numbers[index] for name, numbers in collapse.items()},
            regime="diverse_grounded",
        )
        for index, value in enumerate(values)
    ]
    return run_of(*records, settings=settings)


def filtered(kind: str, seed: int = 0, **more: Any) -> dict[str, Any]:
    return {"seed": seed, "filter": {"kind": kind} | more}


def test_the_peak_is_the_earliest_largest_and_the_final_the_last():
    run = run_with(0.2, 0.6, 0.6, 0.4)
    best, last = peak(run, "eval/success"), final(run, "eval/success")
    assert best is not None
    assert last is not None
    assert (best.value, best.step, last.value, last.step) == (0.6, 10, 0.4, 30)
    assert (last.low, last.high) == pytest.approx((0.3, 0.5))
    assert peak(run, "nothing") is None


def test_a_difference_has_newcombes_interval():
    found = difference(StepValue(0.6, 0.5, 0.65), StepValue(0.4, 0.3, 0.48))
    assert found is not None
    assert found.value == pytest.approx(0.2)
    assert found.low == pytest.approx(0.2 - math.hypot(0.1, 0.08))
    assert found.high == pytest.approx(0.2 + math.hypot(0.05, 0.1))
    plain = difference(StepValue(0.6), StepValue(0.4, 0.3, 0.5))
    assert plain is not None
    assert (plain.low, plain.high) == (None, None)
    assert difference(None, StepValue(0.4)) is None


def test_the_unfiltered_run_is_what_a_filter_is_compared_with():
    without = run_with(0.2, settings=filtered("keep_all"))
    top = run_with(0.6, settings=filtered("top_p", mass=0.9))
    (found,) = filter_deltas([without, top], "eval/success")
    assert (found["with"], found["without"]) == ("r1", "r0")
    assert found["differs"] == "filter top_p against keep_all"
    assert found["final"]["value"] == pytest.approx(0.4)
    assert found["text"] == ("final eval/success differs by +0.4 (+0.259 to +0.541), beyond chance")


def test_runs_that_differ_in_more_or_in_nothing_are_no_pair():
    without = run_with(0.2, settings=filtered("keep_all"))
    other_seed = run_with(0.6, settings=filtered("top_p", seed=1))
    same = run_with(0.3, settings=filtered("keep_all"))
    assert filter_deltas([without, other_seed, same], "eval/success") == []


def test_where_runs_were_logged_to_does_not_part_them():
    without = run_with(0.2, settings=filtered("keep_all") | {"logging": {"to": ["tensorboard"]}})
    top = run_with(0.6, settings=filtered("top_p") | {"logging": {"to": []}})
    assert len(filter_deltas([without, top], "eval/success")) == 1


def test_filters_of_one_kind_are_told_apart_by_their_settings():
    runs = [run_with(0.5, settings=filtered("top_p", mass=mass)) for mass in (0.9, 0.5)]
    (found,) = filter_deltas(runs, "eval/success")
    assert found["differs"] == "filter.mass 0.9 against 0.5"
    assert found["text"].endswith("within what chance allows")


def test_information_that_rises_with_success_correlates_and_entropy_that_falls_does_the_other_way():
    runs = [
        run_with(0.1, 0.3, 0.5, mi_estimate=[0.1, 0.2, 0.4], conditional_entropy=[0.9, 0.8, 0.7]),
        run_with(0.2, 0.4, mi_estimate=[0.15, 0.3], conditional_entropy=[0.85, 0.75]),
        run_with(0.6, 0.7, mi_estimate=[0.5, 0.6], conditional_entropy=[0.6, 0.5]),
    ]
    found = {(one["metric"], one["over"]): one for one in compare_data(runs)["correlations"]}
    assert found["mi_estimate", "checkpoints"]["rho"] == pytest.approx(1.0)
    assert found["conditional_entropy", "checkpoints"]["rho"] == pytest.approx(-1.0)
    over_checkpoints = found["mi_estimate", "checkpoints"]
    assert over_checkpoints["n"] == len(over_checkpoints["points"]) == 7
    assert over_checkpoints["p"] == pytest.approx(2 / math.factorial(7), abs=1e-6)
    over_runs = found["mi_estimate", "runs"]
    assert [(point["run"], point["step"]) for point in over_runs["points"]] == [
        ("r0", 20),
        ("r1", 10),
        ("r2", 10),
    ]
    assert "too confident" in over_checkpoints["text"]


def test_the_table_has_a_row_a_run_with_its_verdict():
    runs = [run_with(0.2, 0.5, mi_estimate=[0.1, 0.25]), run_of()]
    table = compare_data(runs)["table"]
    assert [row["run"] for row in table] == ["r0", "r1"]
    assert table[0]["verdict"] == judge(runs[0]).word
    assert table[0]["peak"] == {"value": 0.5, "low": 0.4, "high": 0.6, "step": 10}
    assert table[0]["cells"] == ["-", "0.25", "-"]
    assert (table[1]["peak"], table[1]["tone"]) == (None, "unknown")


def test_runs_without_held_out_success_are_compared_by_what_they_have(tmp_path):
    assert success_metric([run_of(), run_with(0.5)]) == "eval/success"
    plain = run_of(StepRecord(step=1, metrics={"rollout/success": 0.5, "reward/mean": 0.1}))
    assert success_metric([plain]) == "rollout/success"
    audit = as_run(audit_record(), tmp_path)
    assert success_metric([audit, run_of(StepRecord(step=1, metrics={"reward/mean": 0.1}))]) == (
        "reward/mean"
    )
    assert compare_data([audit, audit])["filter_delta"] == []
