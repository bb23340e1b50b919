"""The whole object behind the page: as documented, complete, and safe whatever runs hold."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import tomli_w
from report_runs import FIRST, audit_record, make_run, probe_record

from large_run import write_large_run
from ragen2.config import RunConfig, dump_config
from ragen2.errors import RunError
from ragen2.reports.data import build_report
from ragen2.reports.data.report import distinct_names, probe_report
from ragen2.reports.load import Run, load
from ragen2.reports.page import write_report
from ragen2.runs.scores import list_scores
from ragen2.runs.store import RunDirectory

DOCS = Path(__file__).parents[2] / "docs" / "report-data.md"


def documented(heading: str) -> set[str]:
    """Fields in the table under a heading of the contract."""
    part = DOCS.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE))


def write_audit(folder: Path, **more: object) -> Path:
    folder.mkdir()
    (folder / "audit.json").write_text(audit_record(**more).model_dump_json())
    return folder


def test_the_object_has_the_documented_fields(tmp_path):
    paths = [make_run(tmp_path / "a"), make_run(tmp_path / "b"), write_audit(tmp_path / "audit")]
    report = build_report(paths)
    assert set(report.data) == documented("Top level")
    for run in report.data["runs"]:
        assert set(run) == documented("Run")
    assert set(report.data["compare"]) == documented("Compare")
    assert set(report.data["runs"][0]["reward"]) == documented("Reward")
    (block, *_) = report.all_blocks().values()
    assert set(block) == documented("Scores: the retrieval matrix")


def test_every_block_that_is_named_is_there_and_all_of_it_is_json(tmp_path, group_of):
    path = make_run(tmp_path / "run")
    RunDirectory(path).save_rollouts(1, [group_of([0.0, 1.0])])
    report = build_report([path, path])
    named = [
        entry["block"] for run in report.data["runs"] for entry in (*run["scores"], *run["replays"])
    ]
    assert sorted(named) == sorted(report.blocks)
    assert len(set(named)) == len(named)
    json.dumps([report.data, report.all_blocks()], allow_nan=False)


def test_one_run_is_not_compared(tmp_path):
    assert build_report([make_run(tmp_path / "run")]).data["compare"] is None


def test_a_collapsed_run_is_told_as_the_issue_asks(tmp_path):
    run = build_report([make_run(tmp_path / "run", steps=6, collapse_at=4)]).data["runs"][0]
    assert run["verdict"]["word"] == "Template collapse since step 4"
    assert run["verdict"]["text"].startswith(
        "0% of reasoning traces are as much about their prompt as at steps 1 to 3. "
    )
    assert "filter.kind=top_p" in run["verdict"]["next"]
    assert run["verdict"]["certainty"].startswith("95% interval 0% to ")
    assert run["plane"]["points"][-1]["regime"] == "template_collapse"
    assert [(event["step"], event["kind"]) for event in run["events"]] == [(4, "regime")]


@pytest.mark.parametrize("lines", [0, 1])
def test_a_run_with_no_or_one_record_has_a_page(tmp_path, lines):
    path = make_run(tmp_path / "run", steps=1)
    steps = path / "steps.jsonl"
    steps.write_text("".join(steps.read_text().splitlines(keepends=True)[:lines]))
    page = write_report([path], tmp_path / "page.html")
    assert page.stat().st_size > 100_000
    run = build_report([path]).data["runs"][0]
    assert run["state"] == ("empty" if lines == 0 else "unfinished")
    assert run["scores"] == []


def test_a_run_before_its_first_record_has_a_page(tmp_path):
    RunDirectory.create(tmp_path / "run", dump_config(RunConfig()))
    run = build_report([tmp_path / "run"]).data["runs"][0]
    assert (run["state"], run["steps"]) == ("empty", [])
    assert run["notes"] == ["The run has no record yet."]


def test_a_run_killed_in_the_middle_of_a_line_has_a_page_of_what_is_whole(tmp_path):
    path = make_run(tmp_path / "run", steps=3)
    steps = path / "steps.jsonl"
    steps.write_bytes(steps.read_bytes()[:-200])
    assert build_report([path]).data["runs"][0]["steps"] == [0, 1, 2]


def test_a_run_that_kept_no_matrices_says_so(tmp_path):
    path = make_run(tmp_path / "run", steps=1)
    for _, file in list_scores(path):
        file.unlink()
    (note,) = build_report([path]).data["runs"][0]["notes"]
    assert note.startswith("This run kept no score matrices")


def test_runs_of_one_name_are_told_apart(tmp_path):
    runs = [Run(tmp_path / name / "run", {}, ()) for name in ("a", "b")]
    assert distinct_names(runs) == ["a/run", "b/run"]
    assert distinct_names([runs[0], runs[0]]) == ["a/run (1)", "a/run (2)"]
    assert distinct_names([Run(tmp_path / "x", {}, ()), *runs[:1]]) == ["x", "run"]


def test_an_audit_tells_what_became_of_the_log(tmp_path):
    run = build_report([write_audit(tmp_path / "audit", unreadable={"a.csv": "empty"})]).data[
        "runs"
    ][0]
    assert (run["kind"], run["name"]) == ("audit", "verl")
    assert run["audit"]["rows"] == [["read", 10], ["used", 9], ["not used: no prompt", 1]]
    assert run["audit"]["unreadable"] == [["a.csv", "empty"]]
    assert "wording" in run["audit"]["basis"]


def test_a_probe_alone_is_a_page_of_the_probe():
    report = probe_report(probe_record())
    (run,) = report.data["runs"]
    assert set(run) == documented("Run")
    assert [probe["step"] for probe in run["probes"]] == [6]
    assert run["verdict"]["text"].startswith("The task gradient grows")
    assert run["facts"][0][1].startswith("FrozenLake · grpo")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist; check the path"),
        (lambda path: path.mkdir(), "is neither a run directory"),
        (lambda path: path.write_text("x"), "is neither a run directory"),
    ],
)
def test_what_is_no_run_is_named(tmp_path, make, message):
    make(tmp_path / "it")
    with pytest.raises(RunError, match=message):
        load(tmp_path / "it")


@pytest.mark.parametrize("text", ["{", "{}", '{"schema_version": 9}'])
def test_a_broken_audit_is_named(tmp_path, text):
    (tmp_path / "audit.json").write_text(text)
    with pytest.raises(
        RunError, match=r"audit\.json is not an audit of this version .*; audit again"
    ):
        load(tmp_path)


def test_a_report_in_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RunError, match="cannot be written: No such file or directory"):
        write_report([make_run(tmp_path / "run")], tmp_path / "gone" / "report.html")


def test_hostile_texts_cannot_end_the_data(tmp_path):
    hostile = "</script><script>alert(1)</script>\u2028<!--"
    settings = tomli_w.dumps({"steps": 1, hostile: hostile, "env": {"kind": hostile}})
    path = make_run(tmp_path / "<img src=x onerror=alert(1)>", steps=1, settings=settings)
    page = write_report([path], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "alert(1)</script>" not in page
    assert "<img src=x" not in page
    assert "\u2028" not in page
    data = re.search(r'id="report-data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["runs"][0]["settings"][0][1][1] == [hostile, hostile]


def test_a_large_run_is_sampled_and_its_numbers_are_all_there(tmp_path):
    path = write_large_run(tmp_path / "large", steps=60, prompts=4, group_size=16, collapse_at=31)
    report = build_report([path])
    (run,) = report.data["runs"]
    assert len(run["steps"]) == 61
    assert len(run["metrics"][f"{FIRST}mi_estimate"]["values"]) == 61
    assert len(run["scores"]) == len(run["replays"]) == 40
    assert run["verdict"]["word"] == "Template collapse while entropy rises since step 31"
    assert any("40 of 60 steps" in note for note in run["notes"])
    last = report.blocks[run["replays"][-1]["block"]]()["episodes"]
    assert len(last) == 24
    assert last[0]["turns"][0]["seen"]["board"]["rows"][0] == ["#"] * 6
    phrases = report.blocks[run["scores"][-1]["block"]]()["phrases"]
    assert phrases[0]["text"].startswith("let me think step by step")
    assert phrases[0]["prompts"] == phrases[0]["of"]
