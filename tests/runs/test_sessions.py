"""Each start of the program on a run is remembered, with its versions, commit and machine."""

from __future__ import annotations

import json

import numpy as np

from ragen2 import __version__
from ragen2.runs.machine import code_commit, this_machine
from ragen2.runs.sessions import FILE, installed_versions, read_sessions, record_session


def test_sessions_are_added_and_read_in_order(tmp_path):
    record_session(tmp_path, 0)
    record_session(tmp_path, 7)
    found = read_sessions(tmp_path)
    assert [one.step for one in found] == [0, 7]
    assert found[0].versions == installed_versions()
    assert found[0].versions["ragen2"] == __version__
    assert found[0].versions["numpy"] == np.__version__
    assert found[0].machine == this_machine()
    assert found[0].commit == code_commit()[0]


def test_a_line_from_before_machines_were_recorded_is_read(tmp_path):
    old = {"step": 2, "started": "2026-01-01T00:00:00+0000", "versions": {"ragen2": "0.1.0"}}
    (tmp_path / FILE).write_text(json.dumps(old) + "\n")
    (found,) = read_sessions(tmp_path)
    assert (found.step, found.commit, found.machine) == (2, "", None)


def test_a_line_that_a_crash_cut_short_is_left_out(tmp_path):
    record_session(tmp_path, 0)
    with (tmp_path / FILE).open("a") as file:
        file.write('{"step": 3, "sta')
    assert [one.step for one in read_sessions(tmp_path)] == [0]


def test_a_run_that_recorded_none_has_none(tmp_path):
    assert read_sessions(tmp_path) == []
