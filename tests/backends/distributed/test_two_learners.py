"""Two real processes that share a learner's work get what one gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import run_python

PROGRAM = Path(__file__).with_name("two_learners.py")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_two_learners_do_what_one_does(mode: str, tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = run_python(tmp_path, *torchrun, PROGRAM, mode, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["same", "same"]
