"""One writer per folder; the end of a process, however it comes, is the end of its lock."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import environment
from ragen2.errors import RunError
from ragen2.runs.checkpoints import save_checkpoint
from ragen2.runs.files import MANIFEST, fill_folder
from ragen2.runs.lock import LOCK, LockedError, WriterLock, one_writer, try_lock
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory, record_session
from ragen2.trainer.jobs.logged_process import lock_log

HOLDER = """
import os, sys, time
from pathlib import Path
from ragen2.runs.lock import one_writer
with one_writer(Path(sys.argv[1])):
    if sys.argv[2:] == ["fork"]:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        print(child, flush=True)
    print("held", flush=True)
    time.sleep(60)
"""


def hold(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Another process that holds the lock of ``folder``."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, folder, *words],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_second_writer_is_told_who_the_first_is(tmp_path):
    with hold(tmp_path) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        found = (
            rf"is written by process {other.pid} on {socket.gethostname()} since .*; wait for it"
        )
        with pytest.raises(LockedError, match=found), one_writer(tmp_path):
            pytest.fail("two writers")
        other.kill()
    with one_writer(tmp_path):
        assert f"process {os.getpid()} " in (tmp_path / LOCK).read_text()


def test_a_forked_child_does_not_keep_the_lock_of_a_killed_parent(tmp_path):
    with hold(tmp_path, "fork") as other:
        assert other.stdout is not None
        child = int(other.stdout.readline())
        assert other.stdout.readline() == "held\n"
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        try:
            with one_writer(tmp_path):
                assert Path(f"/proc/{child}").exists()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_writer_may_begin_twice_and_end_twice(tmp_path):
    lock = WriterLock(tmp_path)
    lock.acquire()
    lock.acquire()
    with pytest.raises(LockedError, match="another part of this program"):
        WriterLock(tmp_path).acquire()
    lock.release()
    lock.release()
    with one_writer(tmp_path):
        pass


@pytest.mark.parametrize("told", [b"", b"\xff\xfe" * 500, b"\n\n"])
def test_whatever_the_lock_file_says_the_refusal_is_one_line(tmp_path, told):
    with one_writer(tmp_path):
        (tmp_path / LOCK).write_bytes(told)
        with pytest.raises(LockedError) as refusal, one_writer(tmp_path):
            pytest.fail("two writers")
    assert len(str(refusal.value).splitlines()) == 1


def test_a_file_system_without_locks_is_named_and_the_writer_goes_on(
    tmp_path, monkeypatch: pytest.MonkeyPatch, caplog
):
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with one_writer(tmp_path):
        pass
    assert "this file system has no locks (No locks available)" in caplog.text


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="file/run cannot be written: Not a directory"):
        WriterLock(tmp_path / "file" / "run").acquire()


WRITERS = {
    LOCK: lambda run: WriterLock(run).acquire(),
    "sessions.jsonl": lambda run: record_session(run, 1),
    "run.log": lambda run: lock_log(run / "run.log").__enter__(),
    "steps.jsonl": lambda run: RunDirectory(run).append(StepRecord(step=1, metrics={})),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_link_in_a_run_directory_is_not_written_through(tmp_path, name):
    target = tmp_path / "precious"
    target.write_text("")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(target)
    with pytest.raises((RunError, OSError), match=f"{name} is a link, not a file"):
        WRITERS[name](tmp_path / "run")
    assert target.read_text() == ""


def test_a_folder_that_was_moved_is_not_written_any_more(tmp_path):
    run = RunDirectory(tmp_path / "run")
    with one_writer(run.path):
        run.append(StepRecord(step=1, metrics={}))
        run.path.rename(tmp_path / "elsewhere")
        for made in (False, True):
            if made:
                run.path.mkdir()
                (run.path / LOCK).touch()
            with pytest.raises(RunError, match="was moved or removed while it was written"):
                run.append(StepRecord(step=2, metrics={}))
            with pytest.raises(RunError, match="was moved or removed"):
                save_checkpoint(run.path, 2, lambda folder: None, keep=1)
            with pytest.raises(RunError, match="was moved or removed"):
                run.save_rollouts(2, [])
    assert not (run.path / "rollouts").exists()
    assert [one.step for one in RunDirectory(tmp_path / "elsewhere").records()] == [1]


def test_a_program_that_changes_its_folder_writes_nowhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    run = RunDirectory(Path("run"))
    with one_writer(run.path):
        monkeypatch.chdir("other")
        with pytest.raises(RunError, match="run was moved or removed"):
            run.append(StepRecord(step=1, metrics={}))
    assert not any(Path.cwd().iterdir())


def test_two_writers_of_one_process_are_two(tmp_path):
    with (
        one_writer(tmp_path),
        pytest.raises(LockedError, match="by another part of this program"),
        one_writer(tmp_path),
    ):
        pytest.fail("two writers")


def test_two_processes_do_not_build_one_folder(tmp_path):
    def write(partial: Path) -> None:
        handle = os.open(partial, os.O_RDONLY)
        assert not try_lock(handle, tries=1)
        os.close(handle)
        with pytest.raises(RunError, match="another process is writing it"):
            fill_folder(tmp_path / "model", lambda other: None, {})
        (partial / "weights").touch()

    fill_folder(tmp_path / "model", write, {"card": ""})
    assert {one.name for one in (tmp_path / "model").iterdir()} == {"weights", "card", MANIFEST}
