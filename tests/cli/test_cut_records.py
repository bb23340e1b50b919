"""Records that were cut, damaged or doubled: the run goes back to where they are whole, or is left alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from command_line import Done, checkpoints, content, records

Program = Callable[..., Done]
Lines = list[bytes]


@pytest.fixture
def run(short_run: tuple[Path, Done], tmp_path: Path) -> Path:
    """A copy of the finished short run: steps 0 to 4, checkpoints of 2 and 4."""
    return Path(shutil.copytree(short_run[0], tmp_path / "run"))


def rewrite(run: Path, change: Callable[[Lines], Sequence[bytes]]) -> None:
    """Change the lines of steps.jsonl; each has its newline."""
    file = run / "steps.jsonl"
    file.write_bytes(b"".join(change(file.read_bytes().splitlines(keepends=True))))


def with_another_metric(line: bytes) -> bytes:
    """The record with one number changed."""
    record = json.loads(line)
    record["metrics"]["reward/mean"] = record["metrics"].get("reward/mean", 0.0) + 1.0
    return json.dumps(record).encode() + b"\n"


BEYOND_THE_FIRST_CHECKPOINT: dict[str, tuple[Callable[[Lines], Sequence[bytes]], str]] = {
    "cut": (lambda all_: all_[:4], "steps.jsonl ends with step 3"),
    "torn": (lambda all_: [*all_[:4], all_[4][:50]], "steps.jsonl ends with step 3"),
    "hole": (lambda all_: [*all_[:3], all_[4]], "steps.jsonl lacks step 3"),
    "garbage": (
        lambda all_: [*all_[:3], b"\xff\x00\n", all_[4]],
        "line 4 of steps.jsonl is damaged",
    ),
    "changed": (
        lambda all_: [*all_[:3], with_another_metric(all_[3]), all_[4]],
        "a record of steps 0 to 4 has changed",
    ),
    "doubled with other numbers": (
        lambda all_: [*all_[:4], with_another_metric(all_[3]), all_[4]],
        "line 5 of steps.jsonl is another record of step 3",
    ),
}


@pytest.mark.parametrize("fault", BEYOND_THE_FIRST_CHECKPOINT)
def test_a_checkpoint_that_the_records_do_not_reach_is_passed_over(
    program: Program, run: Path, short_run: tuple[Path, Done], fault: str
) -> None:
    change, problem = BEYOND_THE_FIRST_CHECKPOINT[fault]
    rewrite(run, change)
    done = program("train", "--resume", "run")
    assert done.returncode == 0, done.stderr
    passed_over, set_aside = done.stderr.splitlines()
    assert passed_over == (
        f"WARNING checkpoint step_000004 cannot be gone on from ({problem}); trying the one before"
    )
    assert set_aside.endswith(" and no longer used")
    assert records(run) == records(short_run[0])
    assert checkpoints(run) == ["step_000002", "step_000004"]


BEFORE_THE_FIRST_CHECKPOINT: dict[str, tuple[Callable[[Lines], Sequence[bytes]], str]] = {
    "cut": (lambda all_: all_[:2], "steps.jsonl ends with step 1"),
    "empty": (lambda _: [], "steps.jsonl holds no record"),
    "hole": (lambda all_: [all_[0], *all_[2:]], "steps.jsonl lacks step 1"),
    "garbage": (lambda all_: [all_[0], b"{}\n", *all_[2:]], "line 2 of steps.jsonl is damaged"),
    "changed": (
        lambda all_: [all_[0], with_another_metric(all_[1]), *all_[2:]],
        "a record of steps 0 to 2 has changed",
    ),
}


@pytest.mark.parametrize("fault", BEFORE_THE_FIRST_CHECKPOINT)
def test_a_run_whose_records_reach_no_checkpoint_is_refused_and_left_alone(
    program: Program, run: Path, fault: str
) -> None:
    change, problem = BEFORE_THE_FIRST_CHECKPOINT[fault]
    rewrite(run, change)
    before = content(run)
    done = program("train", "--resume", "run")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"ragen2: the records of run reach none of its checkpoints ({problem}); put steps.jsonl back, or "
        "start over beside it with: ragen2 train run/run.toml --out run-again"
    )
    assert content(run) == before


def test_without_its_records_a_run_is_refused(program: Program, run: Path) -> None:
    (run / "steps.jsonl").unlink()
    done = program("train", "--resume", "run")
    assert done.returncode == 2
    assert "(steps.jsonl holds no record)" in done.stderr.splitlines()[-1]


def test_records_that_were_written_twice_count_once(
    program: Program, run: Path, short_run: tuple[Path, Done]
) -> None:
    rewrite(run, lambda all_: [*all_[:3], all_[3], all_[3], all_[4], all_[4]])
    done = program("train", "--resume", "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert records(run) == records(short_run[0])


def test_a_finished_run_without_its_last_records_is_not_finished_for_a_sweep(
    program: Program, run: Path, short_run: tuple[Path, Done], tmp_path: Path
) -> None:
    rewrite(run, lambda all_: all_[:4])
    (tmp_path / "out").mkdir()
    run.rename(tmp_path / "out" / "run-seed0")
    shutil.copy(tmp_path / "out" / "run-seed0" / "run.toml", tmp_path / "run.toml")
    done = program("train", "run.toml", "--seeds", "1", "--out", "out")
    assert done.returncode == 0, done.stdout
    assert records(tmp_path / "out" / "run-seed0") == records(short_run[0])


def test_a_checkpoint_that_a_run_went_back_behind_is_set_aside(program: Program, run: Path) -> None:
    """Its records are gone: whoever opens the run must get what it goes on with."""
    rewrite(run, lambda all_: all_[:4])
    done = program("train", "--resume", "run", "--set", "steps=3")
    assert done.returncode == 0, done.stderr
    assert checkpoints(run) == ["step_000002", "step_000003"]
    (aside,) = (run / "checkpoints").glob("set_aside-step_000004-*")
    assert (
        f"checkpoint step_000004 is kept as run/checkpoints/{aside.name} and no longer used"
        in done.stderr
    )


def dangling(folder: Path) -> None:
    folder.symlink_to(folder.parent / "not_mounted")


@pytest.mark.parametrize("put", [dangling, Path.touch])
def test_checkpoints_that_cannot_be_listed_are_not_none(
    program: Program, run: Path, put: Callable[[Path], None]
) -> None:
    shutil.rmtree(run / "checkpoints")
    put(run / "checkpoints")
    before = content(run)
    done = program("train", "--resume", "run")
    assert done.returncode == 2
    assert "run/checkpoints" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert content(run) == before
