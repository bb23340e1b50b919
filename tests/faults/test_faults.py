"""A slice of the fault suite: nothing is lost in silence (``make faults`` runs all of it)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from command_line import start_python

EVERY = 9


@pytest.mark.slow
def test_disturbed_programs_end_as_undisturbed_ones_or_say_why_not(tmp_path, monkeypatch):
    monkeypatch.setattr("command_line.TIMEOUT", 900)
    suite = Path(__file__).with_name("run.py")
    done = start_python(tmp_path, suite, "--step", str(EVERY), "--jobs", "1")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    (schedules,) = re.findall(r"^(\d+) schedules in .* bad seeds: none$", done.stdout, re.MULTILINE)
    assert int(schedules) > 50
