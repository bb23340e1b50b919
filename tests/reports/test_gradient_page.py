"""The probe's figures and page: what is drawn, what is said, and that neither promises too much."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from ragen2.diagnostics.gradients import BucketGradient, GradientReport, PromptGradient, Trend
from ragen2.diagnostics.probe_record import ProbeRecord, broken_numbers
from ragen2.reports.figures import as_html
from ragen2.reports.gradients import (
    COLUMNS,
    bound_figure,
    norms_figure,
    online_section,
    picture,
    readings,
    render_probe,
    rows,
    verdict,
)
from ragen2.reports.load import Run
from ragen2.reports.page import render_page
from ragen2.runs.record import StepRecord

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "results" / "gradient_probe_tiny.json"


def bucket(name: str, variance: float, norms: dict[str, float], snr: float | None = 2.0):
    return BucketGradient(name, 4, 32, variance, variance, variance, norms, {"task_kl": -0.25}, snr)


def record(run: str = "try", *, kl: tuple[float, float, float] = (1.0, 1.2, 1.1)) -> ProbeRecord:
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


def test_a_record_survives_its_file():
    assert ProbeRecord.model_validate_json(record().model_dump_json()) == record()


def test_norms_have_a_line_for_each_part_and_the_whole_batch_is_no_bucket():
    figure = norms_figure(record().buckets)
    assert figure.body.count('<polyline class="line') == 4
    assert [name for _, name in figure.keys] == ["as trained", "centred", "KL", "entropy"]
    assert figure.body.count("<circle") == 4 * 3


def test_every_prompt_has_a_dot_and_its_bound():
    body = bound_figure(record().report).body
    assert body.count('class="dot s0"') == body.count('class="start"') == 4
    dots = re.findall(r'class="dot s0" cx="([\d.]+)" cy="([\d.]+)"', body)
    rings = re.findall(r'class="start" cx="([\d.]+)" cy="([\d.]+)"', body)
    for (dot_x, dot_y), (ring_x, ring_y) in zip(dots, rings, strict=True):
        assert dot_x == ring_x
        assert float(ring_y) <= float(dot_y), "a bound is drawn above what it bounds"
    assert body.count('<polyline class="level"') == 1


def test_prompts_without_any_variance_are_drawn_without_a_line():
    flat = GradientReport((), (PromptGradient(1, 0.0, 0.0, 0.0), PromptGradient(2, 0.0, 0.0, 0.0)))
    body = bound_figure(flat).body
    assert body.count('class="dot s0"') == 2
    assert 'class="level"' not in body
    assert "not measured" in as_html(bound_figure(GradientReport((), ())))


def test_the_verdict_follows_the_numbers_either_way():
    assert verdict(record().trends) == (
        "The task gradient grows with reward variance; KL and entropy are flat."
    )
    assert verdict(record(kl=(3.0, 1.0, 1.1)).trends) == (
        "The task gradient grows with reward variance; entropy is flat; KL is not flat."
    )
    falling = [Trend("centred", 1.0, 0.5, -0.5, 2.0), Trend("kl", 0.0, 0.0, None, None)]
    assert verdict(falling) == (
        "The task gradient does not clearly grow with reward variance; KL is flat."
    )


def test_one_bucket_shows_no_trend():
    one = [Trend("task", 1.0, 1.0, None, 1.0), Trend("centred", 1.0, 1.0, None, 1.0)]
    assert verdict(one) == "Too few buckets with different reward variance to see a trend."


def test_readings_name_every_part_and_the_bound():
    lines = readings(record())
    assert lines[1] == (
        "task, centred returns: norm 0 in the lowest bucket, 0.6 in the highest; "
        "rank correlation with RV +1.00"
    )
    assert lines[-1] == (
        "4 of 4 prompts are inside their bound; rank correlation of norm and RV +1.00"
    )


def test_cells_say_what_was_not_measured():
    cells = rows([bucket("bucket_2", 0.25, {"task": 0.123456}, None)])
    assert len(cells[0]) == len(COLUMNS)
    assert cells == [["2", "0.25", "4", "0.123", "-", "-", "-", "-", "-0.25", "-", "-"]]


def test_the_page_is_self_contained_and_names_are_text():
    page = render_probe(record("<script>alert(1)</script>"))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"(src|href)=", page)
    assert page.count("<figure>") == 2


def test_the_picture_is_an_svg_of_its_own():
    drawn = picture(record())
    ElementTree.fromstring(drawn)  # noqa: S314 - our own text
    assert not re.search(r"var\(|url\(|href|<script|@import", drawn)


def test_what_is_not_finite_is_named():
    broken = bucket("bucket_1", 0.1, {"task": float("nan")})
    report = GradientReport((broken,), (PromptGradient(7, 0.1, float("inf"), 1.0),))
    assert broken_numbers(report) == ["task of bucket_1", "policy gradient of seed 7"]
    assert broken_numbers(record().report) == []


def run_of(*steps: dict[str, float]) -> Run:
    records = [StepRecord(step=n, metrics=metrics) for n, metrics in enumerate(steps)]
    return Run(Path("run"), {}, tuple(records))


def test_a_run_that_probed_has_a_section_of_the_newest_probe():
    run = run_of({"reward/mean": 0.1}, record().report.metrics(), record().report.metrics())
    section = online_section(run)
    assert "By bucket, step 2" in section
    assert section.count("<figure>") == 2
    assert section.count('<figure class="empty">') == 1, "this batch has no SNR"
    assert "<h2>Gradients by reward variance</h2>" in render_page([run])


def test_a_run_that_did_not_probe_has_none():
    run = run_of({"reward/mean": 0.1, "collapse/probe/mi_estimate": 0.5})
    assert online_section(run) == ""
    assert "Gradients by reward variance" not in render_page([run])


def test_buckets_of_a_step_are_put_in_the_order_of_their_numbers():
    many = tuple(bucket(f"bucket_{i}", 0.1 * i, {"task": float(i)}) for i in range(1, 12))
    section = online_section(run_of({}, GradientReport(many, ()).metrics()))
    line = re.search(r'<polyline class="line s0" points="([^"]*)"', section)[1]
    heights = [float(point.split(",")[1]) for point in line.split()]
    assert heights == sorted(heights, reverse=True)
    assert len(heights) == 11


def test_the_committed_probe_is_the_one_that_the_docs_show():
    found = ProbeRecord.model_validate_json(COMMITTED.read_text())
    page = (ROOT / "docs" / "gradient-probe.md").read_text()
    for cells in rows(found.buckets):
        assert f"| {' | '.join(cells)} |" in page
    assert verdict(found.trends) in page
    drawn = (ROOT / "docs" / "diagnostics" / "images" / "gradient-probe.svg").read_text()
    assert drawn == picture(found)
    for one in found.prompts:
        assert one.norm <= one.bound * (1 + 1e-6)
