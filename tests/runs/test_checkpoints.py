"""Checkpoints: complete or absent; a damaged one gives way to the one before."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.errors import RunError
from ragen2.runs.checkpoints import (
    MANIFEST,
    checkpoint_folder,
    checkpoint_step,
    find_damage,
    list_checkpoints,
    newest_checkpoint,
    save_checkpoint,
)


def writer(text: str):
    def write(folder: Path) -> None:
        (folder / "weights").write_text(text)
        (folder / "state").write_text(f"state of {text}")

    return write


def failing(error: BaseException):
    def write(folder: Path) -> None:
        (folder / "weights").write_text("half")
        raise error

    return write


NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def steps(run: Path) -> list[int]:
    return [checkpoint_step(folder) for folder in list_checkpoints(run)]


def test_a_checkpoint_holds_what_was_written_and_a_manifest(tmp_path):
    folder = save_checkpoint(tmp_path, 7, writer("seven"), keep=2)
    assert folder == checkpoint_folder(tmp_path, 7) == tmp_path / "checkpoints" / "step_000007"
    assert sorted(os.listdir(folder)) == [MANIFEST, "state", "weights"]
    assert sorted(json.loads((folder / MANIFEST).read_text())) == ["state", "weights"]
    assert find_damage(folder) == ""


def test_a_kill_while_an_old_one_is_removed_leaves_no_half_of_it(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, writer("one"), keep=1)

    def killed(folder: Path, **_) -> None:
        (folder / "weights").unlink(missing_ok=True)
        if (folder / "state").exists():
            raise KeyboardInterrupt

    monkeypatch.setattr("ragen2.runs.checkpoints.shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 2, writer("two"), keep=1)
    assert steps(tmp_path) == [2]
    assert find_damage(checkpoint_folder(tmp_path, 2)) == ""


def test_an_old_one_that_cannot_be_removed_stays_whole_and_is_named(tmp_path, monkeypatch, caplog):
    save_checkpoint(tmp_path, 1, writer("one"), keep=1)
    real = Path.replace

    def refused(self: Path, target: Path) -> Path:
        if self.name == "step_000001":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(self, target)

    monkeypatch.setattr(Path, "replace", refused)
    save_checkpoint(tmp_path, 2, writer("two"), keep=1)
    assert steps(tmp_path) == [1, 2]
    assert caplog.messages == ["checkpoint step_000001 could not be removed: Input/output error"]
    assert find_damage(checkpoint_folder(tmp_path, 1)) == ""


def test_the_newest_ones_are_kept(tmp_path):
    for step in (1, 2, 3, 10):
        save_checkpoint(tmp_path, step, writer(str(step)), keep=2)
    assert steps(tmp_path) == [3, 10]


def test_protected_ones_are_kept_beside_the_newest(tmp_path):
    for step in (1, 2, 3, 10):
        save_checkpoint(tmp_path, step, writer(str(step)), keep=1, protected={2, 7})
    assert steps(tmp_path) == [2, 10]


def test_a_protected_one_among_the_newest_counts_as_one_of_them(tmp_path):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, writer(str(step)), keep=2, protected={3})
    assert steps(tmp_path) == [2, 3]


def test_what_is_no_longer_protected_is_removed(tmp_path):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, writer(str(step)), keep=1, protected={1})
    save_checkpoint(tmp_path, 3, writer("3"), keep=1)
    assert steps(tmp_path) == [3]


def test_a_step_saved_again_is_replaced(tmp_path):
    save_checkpoint(tmp_path, 1, writer("first"), keep=2)
    folder = save_checkpoint(tmp_path, 1, writer("second"), keep=2)
    assert (folder / "weights").read_text() == "second"
    assert find_damage(folder) == ""


def test_the_checkpoint_just_saved_is_never_removed(tmp_path):
    save_checkpoint(tmp_path, 20, writer("twenty"), keep=1)
    (checkpoint_folder(tmp_path, 20) / "weights").write_text("damaged")
    save_checkpoint(tmp_path, 5, writer("five"), keep=1)
    assert newest_checkpoint(tmp_path) == checkpoint_folder(tmp_path, 5)


def test_a_full_disk_says_so_and_leaves_the_older_ones(tmp_path):
    save_checkpoint(tmp_path, 1, writer("one"), keep=1)
    with pytest.raises(RunError) as caught:
        save_checkpoint(tmp_path, 2, failing(NO_SPACE), keep=1)
    assert str(caught.value) == (
        "checkpoint of step 2 could not be saved: No space left on device; mend that and continue with "
        f"--resume {tmp_path}, which goes on from the one before"
    )
    assert os.listdir(tmp_path / "checkpoints") == ["step_000001"]
    assert find_damage(checkpoint_folder(tmp_path, 1)) == ""


def test_a_full_disk_while_replacing_a_step_leaves_the_step(tmp_path):
    save_checkpoint(tmp_path, 1, writer("one"), keep=1)
    with pytest.raises(RunError):
        save_checkpoint(tmp_path, 1, failing(NO_SPACE), keep=1)
    assert (checkpoint_folder(tmp_path, 1) / "weights").read_text() == "one"


def test_a_writer_that_is_killed_half_way_leaves_no_checkpoint_of_that_step(tmp_path):
    save_checkpoint(tmp_path, 1, writer("one"), keep=1)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 2, failing(KeyboardInterrupt()), keep=1)
    assert newest_checkpoint(tmp_path) == checkpoint_folder(tmp_path, 1)
    assert steps(tmp_path) == [1]


def test_half_of_a_checkpoint_is_cleared_away_by_the_next_try(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 2, failing(KeyboardInterrupt()), keep=1)
    save_checkpoint(tmp_path, 2, lambda folder: (folder / "state").write_text("s"), keep=1)
    assert sorted(os.listdir(checkpoint_folder(tmp_path, 2))) == [MANIFEST, "state"]


def test_a_run_without_checkpoints_has_no_newest(tmp_path):
    assert newest_checkpoint(tmp_path) is None


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda folder: (folder / "weights").write_text("othex"), "weights has changed"),
        (lambda folder: (folder / "weights").write_bytes(b""), "weights has changed"),
        (lambda folder: (folder / "state").unlink(), "state is missing"),
        (lambda folder: (folder / MANIFEST).unlink(), "manifest unreadable"),
        (lambda folder: (folder / MANIFEST).write_text('{"wei'), "manifest unreadable"),
        (lambda folder: (folder / MANIFEST).write_text("[]"), "manifest unreadable"),
        (lambda folder: (folder / MANIFEST).write_text("null"), "manifest unreadable"),
        (lambda folder: (folder / MANIFEST).write_bytes(b"\xff\xfe"), "manifest unreadable"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_with_a_warning_that_says_why(
    tmp_path, caplog, damage, problem
):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, writer("other"), keep=2)
    damage(checkpoint_folder(tmp_path, 2))
    with caplog.at_level(logging.WARNING):
        assert newest_checkpoint(tmp_path) == checkpoint_folder(tmp_path, 1)
    assert f"checkpoint step_000002 is damaged ({problem}" in caplog.text


def test_when_all_are_damaged_there_is_none(tmp_path, caplog):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, writer("x"), keep=2)
        (checkpoint_folder(tmp_path, step) / "weights").write_text("y")
    assert newest_checkpoint(tmp_path) is None
    assert caplog.text.count("is damaged") == 2


@given(data=st.binary(min_size=1, max_size=200), place=st.integers(0), flip=st.integers(1, 255))
def test_one_changed_byte_is_noticed(tmp_path_factory, data, place, flip):
    run = tmp_path_factory.mktemp("run")
    folder = save_checkpoint(run, 1, lambda f: (f / "weights").write_bytes(data), keep=1)
    changed = bytearray(data)
    changed[place % len(data)] ^= flip
    (folder / "weights").write_bytes(bytes(changed))
    assert find_damage(folder) == "weights has changed"
