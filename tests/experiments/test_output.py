"""What is left behind: tables in three forms, figures, commands, raw records; and where they come from."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import pytest
from made_runs import STAND_IN

from ragen2.config import dump_config
from ragen2.errors import DependencyError
from ragen2.experiments import output as output_module
from ragen2.experiments.findings import Table
from ragen2.experiments.intervals import Estimate
from ragen2.experiments.output import csv_text, load_cells, made_on, provenance, write_results
from ragen2.experiments.plan import Plan, make_plan
from ragen2.experiments.running import run_plan
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory, record_session, this_machine
from ragen2.trainer.jobs.run import JobStatus, is_finished
from ragen2.trainer.state import TrainerState, write_state

GRID = """
title = "Mine"
question = "Does it work?"
run = "frozen_lake_grpo"
seeds = 2
settings = { steps = 2 }
[grid]
"filter.mass" = [0.5, 0.9]
[[claims]]
claim = "filter.mass 0.9 less 0.5"
about = "more mass"
says = "better"
expects = "above"
"""


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "mine.toml").write_text(GRID)
    return make_plan(str(tmp_path / "mine.toml"), scale=None, out=tmp_path / "out")


def finish(plan: Plan, best: dict[str, float]) -> None:
    """Every run whose label is in ``best`` as if it had been trained, with this peak success."""
    for cell in plan.cells:
        label = cell.labels["filter.mass"]
        if label not in best:
            continue
        run = RunDirectory.create(cell.job.folder, dump_config(cell.job.config))
        top = best[label] + 0.01 * cell.seed
        for step, value in enumerate([0.1, 0.123456789, top]):
            run.append(StepRecord(step=step, metrics={"eval/success": value}))
        folder = cell.job.folder / "checkpoints" / "step_000002"
        folder.mkdir(parents=True)
        write_state(folder, TrainerState(step=2))


def test_all_files_are_written_and_agree(plan):
    finish(plan, {"0.5": 0.3, "0.9": 0.5})
    statuses = run_plan(plan, at_once=2, program=STAND_IN)
    written = write_results(plan, statuses, "ragen2 experiment mine.toml")
    data = json.loads((plan.folder / "table.json").read_text())
    claim = data["claims"]["filter.mass 0.9 less 0.5"]
    assert (claim["value"], claim["num"]) == (pytest.approx(20.0), 2)
    assert data["paper"][0]["verdict"] == "supports"
    text = (plan.folder / "table.md").read_text()
    assert text.startswith(
        "# Mine\n\nDoes it work?\n\nScale own; 4 runs (4 finished, 0 failed); seeds 0, 1."
    )
    assert "| more mass | better | 20.0 [20.0, 20.0] points | 2 | supports |" in text
    lines = list(csv.DictReader(io.StringIO((plan.folder / "table.csv").read_text())))
    (peak,) = [one for one in lines if one["column"] == "peak, %" and one["row"] == "1"]
    assert float(peak["value"]) == pytest.approx(30.5)
    assert (peak["n"], peak["table"]) == ("2", "Cells")
    commands = (plan.folder / "commands.txt").read_text().splitlines()
    assert commands == ["ragen2 experiment mine.toml", *plan.commands()]
    figures = sorted(path.name for path in (plan.folder / "figures").iterdir())
    assert figures == ["success.png", "success.svg"]
    assert {path.name for path in written.files} >= {"table.md", "records.jsonl.gz", "success.svg"}


def test_raw_records_hold_every_step_of_every_run_shortened(plan):
    finish(plan, {"0.5": 0.3, "0.9": 0.5})
    write_results(plan, run_plan(plan, at_once=1, program=STAND_IN), "x")
    lines = gzip.decompress((plan.folder / "records.jsonl.gz").read_bytes()).decode().splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) == 4 * 3
    assert {one["run"] for one in records} == {job.folder.name for job in plan.jobs}
    assert {one["metrics"]["eval/success"] for one in records if one["step"] == 1} == {0.12346}


def test_runs_that_failed_are_listed_and_in_no_table(plan):
    """The stand-in trains what is not finished yet, and crashes on seed 1."""
    finish(plan, {"0.5": 0.3})
    statuses = run_plan(plan, at_once=1, program=STAND_IN)
    assert [(one.labels["filter.mass"], one.seed) for one in load_cells(plan).runs] == [
        ("0.5", 0),
        ("0.5", 1),
        ("0.9", 0),
    ]
    assert load_cells(plan).planned == [cell.labels for cell in plan.cells]
    write_results(plan, statuses, "x")
    text = (plan.folder / "table.md").read_text()
    assert "4 runs (3 finished, 1 failed)" in text
    told = text.partition("## Runs that are not in these tables\n\n")[2]
    assert told == "- 0.9 seed 1: failed RuntimeError: it broke\n"
    assert "| more mass | better | no estimate | - | no estimate |" in text
    data = json.loads((plan.folder / "table.json").read_text())
    assert (
        data["paper"][0]["verdict"] == "no estimate"
    )  # 0.9 has a run, but none with an evaluation
    assert [one["state"] for one in data["cells"]] == ["done", "done", "done", "failed"]
    assert data["num_starts"] == 3  # one that was trained, one that was tried twice


def test_a_claim_about_cells_without_a_run_is_not_run(plan):
    finish(plan, {"0.5": 0.3})
    statuses = [JobStatus(job, "done" if is_finished(job) else "queued") for job in plan.jobs]
    write_results(plan, statuses, "x")
    text = (plan.folder / "table.md").read_text()
    assert "| more mass | better | not run | - | not run |" in text


def test_where_numbers_come_from_is_told(plan):
    finish(plan, {"0.5": 0.3, "0.9": 0.5})
    write_results(plan, run_plan(plan, at_once=1, program=STAND_IN), "x")
    data = json.loads((plan.folder / "table.json").read_text())
    assert data["versions"]["ragen2"]
    assert data["hardware"]["cores"] >= 1
    assert len(data["cells"]) == 4
    (first, second) = data["settings"].values()
    assert (first["filter"]["mass"], first["steps"]) == (0.5, 2)
    kinds = {name: second[name]["kind"] for name in ("env", "filter", "algorithm")}
    assert kinds == {"env": "FrozenLake", "filter": "top_p", "algorithm": "grpo"}
    found = provenance()
    assert found["hardware"]["processor"]


def test_a_machine_without_the_history_is_told_the_commit(monkeypatch):
    monkeypatch.setenv("RAGEN2_COMMIT", "0123abc")
    found = provenance()
    assert found["commit"] == "0123abc"
    assert "commit_is_clean" not in found  # nobody looked


def test_machines_that_made_the_runs_are_counted(tmp_path, monkeypatch):
    for name, commit in (("a", "one"), ("b", "one"), ("c", "two")):
        (tmp_path / name).mkdir()
        monkeypatch.setenv("RAGEN2_COMMIT", commit)
        record_session(tmp_path / name, 0)
    record_session(tmp_path / "c", 1)  # resumed with the same code on the same machine: once
    found = made_on(tmp_path / name for name in "abc")
    assert [(one["commit"], one["runs"]) for one in found] == [("one", 2), ("two", 1)]
    assert found[0]["machine"] == this_machine().model_dump(mode="json")


def test_other_runs_of_the_folder_are_there_for_analyses_that_want_them(plan, monkeypatch):
    finish(plan, {"0.5": 0.3, "0.9": 0.5})
    smaller = make_plan(str(plan.out.parent / "mine.toml"), scale=None, out=plan.out, seeds=1)
    monkeypatch.setattr(output_module, "READS_OTHERS", {smaller.grid.analysis})
    cells = load_cells(smaller)
    assert (len(cells), len(cells.others)) == (2, 2)
    assert {one.seed for one in cells.others} == {1}


def test_a_broken_run_of_another_experiment_stops_nobody_who_does_not_read_it(plan):
    finish(plan, {"0.5": 0.3, "0.9": 0.5})
    broken = plan.out / "runs" / "Other-grpo-seed0"
    broken.mkdir()
    (broken / "run.toml").write_text("this is no run file")
    assert list(load_cells(plan).others) == []


def test_runs_of_tuning_seeds_are_no_evidence(plan, monkeypatch):
    monkeypatch.setattr(output_module, "READS_OTHERS", {plan.grid.analysis})
    text = (
        (plan.out.parent / "mine.toml")
        .read_text()
        .replace("[grid]", "[[block]]\nseeds = [1000]\n[block.grid]")
    )
    (plan.out.parent / "tuned.toml").write_text(text)
    finish(make_plan(str(plan.out.parent / "tuned.toml"), scale=None, out=plan.out), {"0.5": 0.3})
    assert list(load_cells(plan).others) == []


def test_without_matplotlib_everything_else_is_written(plan, monkeypatch):
    finish(plan, {"0.5": 0.3, "0.9": 0.5})

    def missing(*_: object) -> None:
        raise DependencyError("figures need matplotlib")

    monkeypatch.setattr(output_module, "save_figure", missing)
    written = write_results(plan, run_plan(plan, at_once=1, program=STAND_IN), "x")
    assert written.no_figures == "figures need matplotlib"
    assert (plan.folder / "table.md").is_file()


def test_written_twice_the_tables_are_the_same(plan):
    finish(plan, {"0.5": 0.3, "0.9": 0.5})
    statuses = run_plan(plan, at_once=1, program=STAND_IN)
    names = ("table.md", "table.csv", "records.jsonl.gz", "commands.txt", "figures/success.svg")
    write_results(plan, statuses, "x")
    before = [(plan.folder / name).read_bytes() for name in names]
    write_results(plan, statuses, "x")
    assert [(plan.folder / name).read_bytes() for name in names] == before


def test_csv_has_a_line_an_entry():
    table = Table("t", ("a", "b"), (("x", Estimate(1.0, 0.5, None, 3, "")), (None, 2.5)))
    assert list(csv.reader(io.StringIO(csv_text([table]))))[1:] == [
        ["t", "1", "a", "x", "", "", ""],
        ["t", "1", "b", "1.0", "0.5", "", "3"],
        ["t", "2", "a", "-", "", "", ""],
        ["t", "2", "b", "2.5", "", "", ""],
    ]
