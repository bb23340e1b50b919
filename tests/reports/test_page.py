"""The page: self-contained, well-formed, and deaf to what runs are called."""

from __future__ import annotations

import errno
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import tomli_w

from ragen2.config import RunConfig, dump_config
from ragen2.diagnostics import Evidence, Reward, Surface, measure
from ragen2.errors import RunError
from ragen2.reports.load import load_run_directory
from ragen2.reports.page import charts, render_page, write_report
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory
from ragen2.trainer.evaluate import evaluation_metrics

HOSTILE = "<script>alert('1')</script>&\"' onload=x"
VOID = {"meta", "br", "line", "circle", "polyline", "polygon", "link"}


class Tags(HTMLParser):
    """Collects tags and attributes, and checks that they nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag


def parse(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == []
    return tags


def make_run(path: Path, steps: int = 3, *, settings: str | None = None, note: str = "") -> Path:
    run = RunDirectory.create(path, settings or dump_config(RunConfig()))
    run.append(StepRecord(step=0, metrics={"eval/success": 0.2}))
    collapse = measure([[-1.0, -9.0], [-9.0, -1.0]] * 4, [5] * 8, [0, 1] * 4, resamples=100)
    for step in range(1, steps):
        metrics = {
            "rollout/success": 0.1 * step,
            "reward/mean": 0.1 * step,
            "reward/variance": 0.2,
            "filter/kept": 4.0,
            **{f"collapse/first_turn/{name}": value for name, value in collapse.items()},
        }
        run.append(StepRecord(step=step, metrics=metrics, regime="diverse_grounded", note=note))
    return path


def test_a_page_is_written_with_verdict_curves_and_settings(tmp_path):
    run = make_run(tmp_path / "my-run")
    page = write_report([run], tmp_path / "report.html").read_text(encoding="utf-8")
    parse(page)
    assert "Healthy: reasoning is varied and depends on its prompt." in page
    assert "my-run" in page
    assert "env.kind" in page
    for title in ("Success", "Retrieval accuracy", "Regime plane", "Entropy", "Reward"):
        assert f"<figcaption>{title}" in page


def test_a_page_needs_nothing_from_elsewhere(tmp_path):
    run = make_run(tmp_path / "run")
    tags = parse(render_page([load_run_directory(run)]))
    assert not {"script", "link", "img", "iframe", "object"} & set(tags.tags)
    assert not [value for name, value in tags.attributes if name in {"src", "href"}]


def test_curves_that_were_not_measured_say_so(tmp_path):
    run = make_run(tmp_path / "run", steps=1)
    figures = charts(load_run_directory(run))
    assert sum("not measured in this run" in figure for figure in figures) == len(figures) - 1


def test_several_runs_share_a_page(tmp_path):
    runs = [make_run(tmp_path / name) for name in ("one", "two")]
    tags = parse(render_page([load_run_directory(run) for run in runs]))
    assert tags.tags.count("section") == 2


def test_hostile_names_and_settings_are_text_and_not_markup(tmp_path):
    settings = tomli_w.dumps(
        {"seed": 1, HOSTILE: HOSTILE, "env": {HOSTILE: [HOSTILE], "kind": HOSTILE}}
    )
    name = "<img src=x onerror=alert(1)>&\"'"
    run = make_run(tmp_path / name, settings=settings, note=HOSTILE)
    page = render_page([load_run_directory(run)])
    tags = parse(page)
    assert not {"script", "img"} & set(tags.tags)
    assert not [attribute for attribute, _ in tags.attributes if attribute.startswith("on")]
    assert "&lt;script&gt;" in page
    assert "&lt;img src=x" in page


def test_the_page_is_the_same_for_the_same_run(tmp_path):
    loaded = load_run_directory(make_run(tmp_path / "run"))
    assert render_page([loaded]) == render_page([loaded])


def test_a_run_without_records_is_named(tmp_path):
    RunDirectory.create(tmp_path / "run", "seed = 1")
    with pytest.raises(RunError, match="run has no records yet; train it first"):
        write_report([tmp_path / "run"], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_full_disk_leaves_the_old_report(tmp_path, monkeypatch):
    def full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run, out = make_run(tmp_path / "run"), tmp_path / "report.html"
    out.write_text("old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(RunError, match=r"report\.html cannot be written: No space left on device"):
        write_report([run], out)
    assert out.read_text() == "old"


def test_a_report_in_a_folder_that_is_not_there_is_named(tmp_path):
    run = make_run(tmp_path / "run")
    with pytest.raises(RunError, match="cannot be written: No such file or directory"):
        write_report([run], tmp_path / "gone" / "report.html")


def test_every_curve_names_a_metric_that_a_run_records(group_of):
    evidence = Evidence(1, [group_of([0.0, 1.0])])
    recorded = {*Surface().measure(evidence), *Reward().measure(evidence), "filter/kept"}
    recorded |= set(evaluation_metrics(evidence.groups))
    source = Path(render_page.__code__.co_filename).read_text(encoding="utf-8")
    named = set(re.findall(r'"((?:rollout|reward|filter|eval)/\w+)"', source))
    assert "rollout/success" in named
    assert named <= recorded
