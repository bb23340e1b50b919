"""A run of 400 steps with 51,200 trajectories gives a page that memory and disk can bear."""

from __future__ import annotations

import subprocess
import sys

import pytest

from large_run import write_large_run

# The kernel's own mark of this program: a resource usage would begin at that of the process it came from.
REPORT = """
import re, sys
from pathlib import Path
from ragen2.reports.page import write_report
write_report([Path(sys.argv[1])], Path(sys.argv[2]))
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.slow
def test_a_report_of_51200_trajectories_needs_a_gigabyte_at_most(tmp_path):
    run = write_large_run(tmp_path / "run", steps=400, prompts=16, group_size=8)
    assert sum(1 for _ in (run / "rollouts").iterdir()) == 400
    page = tmp_path / "page.html"
    done = subprocess.run(
        [sys.executable, "-c", REPORT, run, page], capture_output=True, text=True, check=True
    )
    kilobytes = int(done.stdout)
    assert kilobytes < 1_000_000
    assert page.stat().st_size < 15_000_000
