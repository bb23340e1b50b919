"""Atomic files and folders: the old one or the new one, never half of either."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ragen2.errors import RunError
from ragen2.runs.checkpoints import find_damage
from ragen2.runs.files import MANIFEST, fill_folder, flush_folder, write_atomically


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_is_written_whole(tmp_path):
    write_atomically(tmp_path / "a.txt", "caf√ é\n")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "caf√ é\n"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_file_that_is_there_is_replaced(tmp_path):
    write_atomically(tmp_path / "a.txt", "old, and longer")
    write_atomically(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "new"


def test_of_two_writers_at_once_each_publishes_a_whole_file(tmp_path, monkeypatch):
    flush = os.fsync

    def meet_another(handle: int) -> None:
        monkeypatch.setattr(os, "fsync", flush)
        write_atomically(tmp_path / "a.txt", "second")
        assert (tmp_path / "a.txt").read_text() == "second"
        flush(handle)

    monkeypatch.setattr(os, "fsync", meet_another)
    write_atomically(tmp_path / "a.txt", "first, but slower")
    assert (tmp_path / "a.txt").read_text() == "first, but slower"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_half_of_the_new_one(tmp_path, monkeypatch, broken):
    write_atomically(tmp_path / "a.txt", "old")
    if broken == "fsync":
        monkeypatch.setattr(os, "fsync", full_disk)
    else:
        monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space left on device"):
        write_atomically(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_text_that_cannot_be_encoded_leaves_the_old_file(tmp_path):
    write_atomically(tmp_path / "a.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "a.txt", "half of it \ud800")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_flushing_a_folder_changes_nothing_in_it(tmp_path):
    (tmp_path / "a").write_text("x")
    (tmp_path / "inner").mkdir()
    flush_folder(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["a", "inner"]


def test_a_folder_appears_whole(tmp_path):
    folder = tmp_path / "deep" / "model"
    fill_folder(folder, lambda f: (f / "weights").write_text("w"), {"recipe.toml": "x = 1"})
    assert sorted(os.listdir(folder)) == [MANIFEST, "recipe.toml", "weights"]
    assert find_damage(folder) == ""
    assert os.listdir(folder.parent) == ["model"]


def test_a_folder_that_cannot_be_filled_does_not_appear(tmp_path):
    def write(folder: Path) -> None:
        (folder / "half").write_text("w")
        full_disk()

    with pytest.raises(RunError, match="model cannot be written: No space left on device"):
        fill_folder(tmp_path / "model", write, {})
    assert os.listdir(tmp_path) == []
