"""The probe in words, and that the words do not promise too much."""

from __future__ import annotations

from pathlib import Path

from report_runs import bucket, probe_record

from ragen2.diagnostics.metrics.gradients import (
    GradientReport,
    NormTrend,
    ProbeRecord,
    PromptGradient,
    broken_numbers,
)
from ragen2.reports.data.probes import (
    COLUMNS,
    bucket_rows,
    gradient_verdict,
    probe_entry,
    probe_lines,
)
from ragen2.reports.figures import standalone
from ragen2.reports.paper import probe_figures

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "results" / "gradient_probe_tiny.json"


def test_a_record_survives_its_file():
    assert ProbeRecord.model_validate_json(probe_record().model_dump_json()) == probe_record()


def test_the_verdict_follows_the_numbers_either_way():
    assert gradient_verdict(probe_record().trends) == (
        "The task gradient grows with reward variance; KL and entropy are flat."
    )
    assert gradient_verdict(probe_record(kl=(3.0, 1.0, 1.1)).trends) == (
        "The task gradient grows with reward variance; entropy is flat; KL is not flat."
    )
    falling = [NormTrend("centred", 1.0, 0.5, -0.5, 2.0), NormTrend("kl", 0.0, 0.0, None, None)]
    assert gradient_verdict(falling) == (
        "The task gradient does not clearly grow with reward variance; KL is flat."
    )


def test_one_bucket_shows_no_trend():
    one = [NormTrend("task", 1.0, 1.0, None, 1.0), NormTrend("centred", 1.0, 1.0, None, 1.0)]
    assert gradient_verdict(one) == "Too few buckets with different reward variance to see a trend."


def test_readings_name_every_part_and_the_bound():
    lines = probe_lines(probe_record())
    assert lines[1] == (
        "task, centred returns: norm 0 in the lowest bucket, 0.6 in the highest; "
        "rank correlation with RV +1.00"
    )
    assert lines[-1] == (
        "4 of 4 prompts are inside their bound; rank correlation of norm and RV +1.00"
    )


def test_cells_say_what_was_not_measured():
    cells = bucket_rows([bucket("bucket_2", 0.25, {"task": 0.123456}, None)])
    assert len(cells[0]) == len(COLUMNS)
    assert cells == [["2", "0.25", "4", "0.123", "-", "-", "-", "-", "-0.25", "-", "-"]]


def test_what_is_not_finite_is_named():
    broken = bucket("bucket_1", 0.1, {"task": float("nan")})
    report = GradientReport((broken,), (PromptGradient(7, 0.1, float("inf"), 1.0),))
    assert broken_numbers(report) == ["task of bucket_1", "policy gradient of seed 7"]
    assert broken_numbers(probe_record().report) == []


def test_the_committed_probe_is_the_one_that_the_docs_show():
    found = ProbeRecord.model_validate_json(COMMITTED.read_text())
    page = (ROOT / "docs" / "gradient-probe.md").read_text()
    for cells in bucket_rows(found.buckets):
        assert f"| {' | '.join(cells)} |" in page
    assert gradient_verdict(found.trends) in page
    drawn = (ROOT / "docs" / "diagnostics" / "images" / "gradient-probe.svg").read_text()
    assert drawn == standalone(probe_figures(probe_entry(found)))
    for one in found.prompts:
        assert one.norm <= one.bound * (1 + 1e-6)
