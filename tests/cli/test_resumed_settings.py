"""A run goes on with the settings it was trained with: an edited run file is refused, --set is recorded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import Done, checkpoints, content, records, settings
from ragen2.runs.checkpoints import MANIFEST, SETTINGS, save_checkpoint

Program = Callable[..., Done]


@pytest.fixture
def run(short_run: tuple[Path, Done], tmp_path: Path) -> Path:
    """A copy of the finished short run."""
    return Path(shutil.copytree(short_run[0], tmp_path / "run"))


@pytest.fixture
def begun(run: Path) -> Path:
    """The same, killed before its first checkpoint."""
    shutil.rmtree(run / "checkpoints")
    return run


def edit(run: Path, old: str, new: str) -> None:
    """Change one line of run.toml."""
    text = (run / "run.toml").read_text()
    assert text.count(f"\n{old}\n") == 1
    (run / "run.toml").write_text(text.replace(f"\n{old}\n", f"\n{new}\n"))


def assert_refused(program: Program, run: Path, *words: str) -> list[str]:
    """Exit code 2 and not a byte changed; the lines that say why."""
    before = content(run)
    done = program(*words)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert content(run) == before
    return [line.removeprefix("ragen2: ") for line in done.stderr.splitlines()]


def test_an_empty_run_file_is_refused_with_all_that_it_lacks(program: Program, run: Path) -> None:
    (run / "run.toml").write_text("")
    first, *lines, cure = assert_refused(program, run, "train", "--resume", "run")
    assert first == "run/run.toml is not what the run was trained with:"
    assert "steps was 4, is 200" in lines
    assert "rollout.prompts was 2, is 8" in lines
    assert cure == (
        "put these values back (run/checkpoints/step_000004/settings.toml has them all), or change them "
        "with --set"
    )


def test_an_empty_run_file_is_refused_before_the_first_checkpoint_too(
    program: Program, begun: Path
) -> None:
    (begun / "run.toml").write_text("")
    _, *lines, cure = assert_refused(program, begun, "train", "--resume", "run")
    assert "steps was 4, is 200" in lines
    assert (
        cure == "put these values back (run/sessions.jsonl has them all), or change them with --set"
    )


def test_the_processes_of_a_job_are_not_even_started(program: Program, run: Path) -> None:
    edit(run, "steps = 4", "steps = 5")
    _, line, _ = assert_refused(program, run, "train", "--resume", "run", "--processes", "2")
    assert line == "steps was 4, is 5"


@pytest.mark.parametrize(
    "words",
    [("eval", "run"), ("eval", "run/checkpoints/step_000002"), ("probe", "run")],
    ids=" ".join,
)
def test_an_edited_task_is_not_evaluated(program: Program, run: Path, words: tuple[str]) -> None:
    edit(run, "max_turns = 5", "max_turns = 6")
    _, line, _ = assert_refused(program, run, *words)
    assert line == "env.max_turns was 5, is 6"


def test_what_an_evaluation_does_not_use_may_be_edited(program: Program, run: Path) -> None:
    edit(run, "steps = 4", "steps = 5")
    done = program("eval", "run", "--tasks", "2")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_change_that_was_asked_for_is_made_and_recorded(program: Program, run: Path) -> None:
    done = program("train", "--resume", "run", *settings("steps=6", "learner.lr=0.002"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "from step 5 on: steps is 6 (was 4), learner.lr is 0.002 (was 0.00015)" in done.stdout
    assert [record["step"] for record in records(run)] == list(range(7))
    assert checkpoints(run) == ["step_000004", "step_000006"]
    assert "steps = 6\n" in (run / "run.toml").read_text()
    assert "steps = 6\n" in (run / "checkpoints/step_000006" / SETTINGS).read_text()
    session = json.loads((run / "sessions.jsonl").read_text().splitlines()[-1])
    assert session["changed"] == ["steps is 6 (was 4)", "learner.lr is 0.002 (was 0.00015)"]
    assert session["settings"]["steps"] == 6
    done = program("train", "--resume", "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "run is finished: 6 of 6 steps are done" in done.stdout


def test_a_change_holds_where_the_checkpoint_after_it_is_lost(program: Program, run: Path) -> None:
    assert program("train", "--resume", "run", *settings("steps=6")).returncode == 0
    shutil.rmtree(run / "checkpoints/step_000006")
    done = program("train", "--resume", "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert records(run)[-1]["step"] == 6


def test_an_edit_that_is_asked_for_as_well_is_taken(program: Program, run: Path) -> None:
    edit(run, "steps = 4", "steps = 5")
    done = program("train", "--resume", "run", *settings("steps=5"))
    assert (done.returncode, done.stderr) == (0, "")
    assert records(run)[-1]["step"] == 5


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("seed=3", "seed is 0 for the whole run, --set says 3"),
        ("env.kind=Bandit", "env.kind is 'FrozenLake' for the whole run, --set says 'Bandit'"),
        ("model.lora_rank=4", "model.lora_rank is 0 for the whole run, --set says 4"),
    ],
)
def test_what_a_checkpoint_was_made_for_cannot_change(
    program: Program, run: Path, change: str, line: str
) -> None:
    told = assert_refused(program, run, "train", "--resume", "run", *settings(change))
    assert told == [f"{line}; start a new run with --set model.path=run"]


def rewrite_checkpoint(run: Path, write: Callable[[Path], Any]) -> None:
    """Change the newest checkpoint, hashes included."""
    old = run / "checkpoints" / "step_000004"
    kept = Path(shutil.copytree(old, run.parent / "kept"))
    (kept / MANIFEST).unlink()
    write(kept)
    save_checkpoint(run, 4, lambda new: shutil.copytree(kept, new, dirs_exist_ok=True), keep=2)


def forget_settings(run: Path) -> None:
    """What an older version recorded of a start."""
    (line,) = (run / "sessions.jsonl").read_text().splitlines()
    known = json.loads(line)
    old = {name: known[name] for name in ("step", "started", "versions", "commit", "machine")}
    (run / "sessions.jsonl").write_text(f"{json.dumps(old)}\n")


def test_an_emptied_run_file_of_an_older_version_is_refused(program: Program, run: Path) -> None:
    forget_settings(run)
    rewrite_checkpoint(run, lambda folder: (folder / SETTINGS).unlink())
    (run / "run.toml").write_text("")
    (line,) = assert_refused(program, run, "train", "--resume", "run")
    assert line.startswith("run/run.toml lacks seed, steps, env, ")


def test_an_emptied_run_file_with_records_alone_is_refused(program: Program, run: Path) -> None:
    forget_settings(run)
    shutil.rmtree(run / "checkpoints")
    (run / "run.toml").write_text("")
    (line,) = assert_refused(program, run, "train", "--resume", "run")
    assert line.startswith("run/run.toml lacks seed, steps, env, ")


def test_a_run_of_an_older_version_goes_on_with_its_run_file(program: Program, run: Path) -> None:
    forget_settings(run)
    rewrite_checkpoint(run, lambda folder: (folder / SETTINGS).unlink())
    edit(run, "steps = 4", "steps = 5")
    done = program("train", "--resume", "run")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line == (
        "WARNING an older version wrote run and recorded no settings: run.toml is taken as it is, and "
        "recorded from here on"
    )
    assert records(run)[-1]["step"] == 5
    edit(run, "steps = 5", "steps = 6")
    _, line, _ = assert_refused(program, run, "train", "--resume", "run")
    assert line == "steps was 5, is 6"


def test_settings_that_a_run_file_has_lost_are_put_back(program: Program, run: Path) -> None:
    """Those at their defaults change nothing today, and may in another version."""
    whole = (run / "run.toml").read_text()
    edit(run, "mass = 0.9", "")
    done = program("train", "--resume", "run")
    assert done.returncode == 0, done.stderr
    assert (run / "run.toml").read_text() == whole


def test_a_setting_that_is_new_in_this_version_is_no_change(program: Program, run: Path) -> None:
    def drop(folder: Path) -> None:
        text = (folder / SETTINGS).read_text()
        assert "rollouts_every = 1\n" in text
        (folder / SETTINGS).write_text(text.replace("rollouts_every = 1\n", ""))

    forget_settings(run)
    rewrite_checkpoint(run, drop)
    done = program("train", "--resume", "run")
    assert (done.returncode, done.stderr) == (0, "")
