"""What is shown of several runs, and which exit code they end with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from ragen2.cli.jobs import exit_code, name_jobs
from ragen2.cli.views.live import JobsView, clock, job_line, jobs_table, jobs_view
from ragen2.config import RunConfig
from ragen2.errors import ConfigError
from ragen2.runs.record import StepRecord
from ragen2.trainer.jobs.run import Job, JobStatus, State


def status(state: State = "running", step: int = 0, *, name: str = "a", **more) -> JobStatus:
    records = [StepRecord(step=0, metrics={"eval/success": 0.5})] + [
        StepRecord(
            step=number,
            metrics={
                "rollout/success": number / 100,
                "collapse/first_turn/retrieval_accuracy": 0.9,
            },
            seconds={"step": 1.5},
        )
        for number in range(1, step + 1)
    ]
    job = Job(name, RunConfig(steps=40), Path(name))
    return JobStatus(job, state, tuple(records), **more)


def as_text(table: object, width: int = 120) -> list[str]:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


# --- names -----------------------------------------------------------------------------------------


def test_without_a_file_the_default_is_trained_with_seeds_from_its_own() -> None:
    jobs = name_jobs([], ["seed=3"], 2, Path("out"))
    assert [job.name for job in jobs] == ["frozen_lake_tiny-seed3", "frozen_lake_tiny-seed4"]
    assert [job.config.seed for job in jobs] == [3, 4]
    assert jobs[1].folder == Path("out/frozen_lake_tiny-seed4")


def test_every_run_gets_every_seed_and_every_override(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text("seed = 7\n")
    files = [Path("frozen_lake_ppo"), tmp_path / "one.toml"]
    jobs = name_jobs(files, ["steps=2"], 2, tmp_path)
    assert [job.folder.name for job in jobs] == [
        "frozen_lake_ppo-seed0",
        "frozen_lake_ppo-seed1",
        "one-seed7",
        "one-seed8",
    ]
    assert {job.config.steps for job in jobs} == {2}
    assert [job.config.algorithm.kind for job in jobs] == ["ppo", "ppo", "grpo", "grpo"]


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for folder in "xy":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.toml").write_text("")
    files = [tmp_path / "x" / "run.toml", tmp_path / "y" / "run.toml"]
    assert [job.name for job in name_jobs(files, [], 1, tmp_path)] == ["x-run-seed0", "y-run-seed0"]
    with pytest.raises(ConfigError, match=r"two runs would be called x-run .*use --seeds"):
        name_jobs([files[0], files[0]], [], 1, tmp_path)


def test_a_mistake_in_any_file_is_found_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run file nowhere.toml cannot be read"):
        name_jobs([Path("frozen_lake_ppo"), Path("nowhere.toml")], [], 1, tmp_path)


# --- exit codes ------------------------------------------------------------------------------------


def ends(*states: State, codes: Sequence[int | None]) -> list[JobStatus]:
    return [status(state, exit_code=code) for state, code in zip(states, codes, strict=True)]


@pytest.mark.parametrize(
    ("states", "codes", "expected"),
    [
        (("done", "done"), (0, None), 0),
        (("done", "failed"), (0, 1), 1),
        (("done", "failed"), (0, 2), 1),
        (("failed", "failed"), (2, 2), 2),
        (("failed", "failed"), (2, 1), 1),
        (("failed", "failed"), (2, -9), 1),
        (("stopped", "done"), (130, 0), 130),
        (("stopped", "failed"), (130, 2), 1),
    ],
)
def test_the_exit_code_follows_from_how_jobs_ended(states, codes, expected) -> None:
    assert exit_code(ends(*states, codes=codes)) == expected


# --- the table and the lines -----------------------------------------------------------------------


def test_a_line_has_what_is_known() -> None:
    assert job_line(status(step=12)) == (
        "a  running  step 12/40  success 0.12  held out 0.50  retrieval 0.90  s per step 1.50  left 0:42"
    )
    assert job_line(JobStatus(status().job)) == "a  queued  step 0/40"
    assert job_line(status("failed", 1, problem="it broke")).endswith("s per step 1.50  it broke")


def test_the_table_has_a_row_a_job_and_counts_them() -> None:
    rows = as_text(jobs_table([status(step=12), status("done", 40, name="b")]))
    (first,) = [row for row in rows if row.startswith("│ a")]
    cells = [cell.strip() for cell in first.strip("│").split("│")]
    assert cells == ["a", "running", "12/40", "0.12", "0.50", "0.90", "1.50", "0:42"]
    assert rows[-1].strip() == "1 running, 1 done"


def test_a_long_name_is_folded_and_never_cut() -> None:
    name = "a_run_file_with_a_long_name-seed12345"
    rows = as_text(jobs_table([status(step=3, name=name)]), width=80)
    column = [row.split("│")[1].strip() for row in rows if row.startswith("│")]
    assert "".join(column) == name


def test_on_a_low_terminal_those_that_go_on_or_went_wrong_are_shown() -> None:
    many = [status("done", 40, name=f"d{i}") for i in range(20)]
    rows = as_text(jobs_table([*many, status("failed", name="f"), status(name="r")], 2))
    shown = [row.split("│")[1].strip() for row in rows if row.startswith("│")]
    assert shown == ["r", "f"]
    assert rows[-1].strip() == "1 running, 20 done, 1 failed"


def test_without_a_terminal_a_job_has_at_most_ten_progress_lines() -> None:
    console = Console(width=120, no_color=True)
    view = JobsView(console)
    with console.capture() as capture:
        view.update([JobStatus(status().job)])
        for step in range(41):
            view.update([status(step=step)])
            view.update([status(step=step)])
        view.update([status("done", 40)])
    lines = [line.split("  ")[1:3] for line in capture.get().splitlines()]
    assert lines[0] == ["running", "step 0/40"]
    assert [line[1] for line in lines[1:-1]] == [f"step {step}/40" for step in range(4, 41, 4)]
    assert lines[-1] == ["done", "step 40/40"]


def test_the_view_says_where_runs_are_and_how_they_share(capsys: pytest.CaptureFixture) -> None:
    with jobs_view(Path("out"), "jobs take turns on the GPU") as view:
        view.update([status("done", 40)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["runs and logs in out", "jobs take turns on the GPU"]
    assert lines[-1].strip() == "1 done"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0:00"), (59.6, "1:00"), (61, "1:01"), (3723, "1:02:03")]
)
def test_time_left_is_a_clock(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


def test_the_table_of_jobs_fits_80_columns_and_cuts_no_number() -> None:
    found = [status("running", 30, name="frozen_lake_reinforce_plus-seed0"), status("queued")]
    shown = as_text(jobs_table(found, width=80), 80)
    assert max(map(len, shown)) <= 80
    assert "…" not in "".join(shown)
    assert [word.strip() for word in shown[1].strip("┃").split("┃")] == [
        *("job", "state", "step", "success", "held out", "left"),
    ]
    wide = as_text(jobs_table(found, width=120), 120)
    assert "s per step" in wide[1]
