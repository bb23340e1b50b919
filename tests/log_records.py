"""A program that logs made-up records, as a run would: LOGGER RUN_DIR NEXT_STEP LAST_STEP HOW_IT_ENDS.

It is a process of its own because the packages read the environment once, when they are imported, and
because it is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from ragen2.runs.loggers import LoggedRun, open_loggers
from ragen2.runs.record import StepRecord

MI = "collapse/first_turn/mi_estimate"
AT_2 = "collapse/first_turn/retrieval_accuracy@2"
NOTES = {2: "early warning: MI fell", 4: "no update: <b>nothing</b> kept"}
REGIMES = {0: None, 1: "diverse_grounded", 2: "diverse_grounded"}
LATER = "template_collapse"


def made_up(step: int, next_step: int) -> StepRecord:
    """Numbers that a 32-bit float holds exactly, and that tell a first try (0) from a later one."""
    return StepRecord(
        step=step,
        metrics={MI: next_step + step / 8, AT_2: 1 / 2**step},
        note=NOTES.get(step, ""),
        regime=REGIMES.get(step, LATER),
        seconds={"rollout": 0.25 * step},
    )


def main(name: str, directory: Path, next_step: int, last_step: int, ends: str) -> None:
    """Log the steps from ``next_step`` to ``last_step``, then end as asked."""
    settings = {"steps": 6, "filter": {"kind": "top_p", "mass": 0.9}, "diagnostics": [{"every": 1}]}
    run = LoggedRun.of(directory, "some-project", settings, next_step)
    with open_loggers([name], run) as (sink,):
        for step in range(next_step, last_step + 1):
            sink.phase("rollout")
            sink.record(made_up(step, next_step))
        if ends == "killed":
            time.sleep(2)  # trackio writes twice a second
            os.kill(os.getpid(), signal.SIGKILL)
        if ends == "interrupted":
            raise KeyboardInterrupt


if __name__ == "__main__":
    words = sys.argv[1:]
    main(words[0], Path(words[1]), int(words[2]), int(words[3]), words[4])
