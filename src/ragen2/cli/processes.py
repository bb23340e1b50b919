"""``ragen2 train`` in several processes: starting them, what rank 0 and the others do, ending together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer

from ragen2.backends.distributed.rank import Rank
from ragen2.cli.outlasting import END_SIGNALS, results_are_saved
from ragen2.cli.shared import require_torch
from ragen2.errors import RunError

if TYPE_CHECKING:
    from ragen2.backends.agent import Agent
    from ragen2.backends.distributed.process_group import ProcessGroup
    from ragen2.config import RunConfig
    from ragen2.trainer.distributed import RankZero, Worker

GRACE_SECONDS = 30.0
"""For processes to end by themselves after one of them has failed."""
EXIT_USER = 2
PARENT_PIPE = "RAGEN2_PARENT_PIPE"
"""Set in processes whose standard input is a pipe that the launcher holds open, and never writes to."""
SECONDS_BETWEEN_POLLS = 0.1


@contextmanager
def open_rank_zero(config: RunConfig, rank: Rank) -> Iterator[RankZero]:
    """Open the model in all processes; what is given back shares its work out among them."""
    from ragen2.config import dump_config
    from ragen2.trainer.distributed import SHUTDOWN, RankZero

    processes = _join(rank)
    processes.broadcast(dump_config(config))
    worker = _open_worker(config, processes)
    try:
        yield RankZero(worker)
    finally:
        if not processes.is_busy:  # else the others are in the middle of a command, or gone
            processes.broadcast(SHUTDOWN)
            processes.leave()


def run_worker(rank: Rank) -> None:
    """What every process but rank 0 does: carry out its commands."""
    from ragen2.config import RunConfig, parse_config
    from ragen2.trainer.distributed import ReportedByRankZero

    processes = _join(rank)
    from ragen2.backends.distributed.process_group import LostProcess

    for number in END_SIGNALS:
        # Rank 0 decides when to stop, after a whole step: all end with it.
        signal.signal(number, signal.SIG_IGN)
    try:
        config = parse_config(RunConfig, tomllib.loads(processes.receive()))
        _open_worker(config, processes).run_until_shutdown()
    except ReportedByRankZero:
        return  # with exit code 0: torchrun would end rank 0 before it has reported
    except LostProcess:
        if PARENT_PIPE in os.environ:  # the launcher sees who is gone, and reports it once for all
            raise typer.Exit(EXIT_USER) from None
        raise
    processes.leave()


def resume_line(run: Path, processes: int) -> str:
    """What to type to go on."""
    return f"go on with: ragen2 train --resume {run} --processes {processes}"


def start_processes(arguments: Sequence[str], count: int, run: Path) -> int:
    """Start ``ragen2 train ARGUMENTS`` so many times as one job; the exit code of rank 0.

    When one fails, the others have a while to end by themselves. A process that a signal ended could not
    say so, so it is said here.
    """
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(_threads(count)),
        PARENT_PIPE: "stdin",
    }
    command = [sys.executable, "-m", "ragen2", "train", *arguments]
    job = [
        subprocess.Popen(  # noqa: S603 - our own program
            command,
            stdin=subprocess.PIPE,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            start_new_session=True,  # a Ctrl-C of the terminal reaches this program alone
        )
        for rank in range(count)
    ]

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        if job[0].poll() is None:
            job[0].send_signal(number)

    results_are_saved()
    for number in END_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    killed = ", ".join(_wait(job))
    code = int(job[0].returncode)
    if killed and code <= 0:
        raise RunError(f"{killed}; {resume_line(run, count)}")
    if killed:  # rank 0 has said how to go on
        print(f"ragen2: {killed}", file=sys.stderr)
    return code


def _wait(job: Sequence[subprocess.Popen[bytes]]) -> list[str]:
    """Until all have ended; names the signal for each process that one ended, unless it was ours."""
    killed: list[str] = []
    seen: set[int] = set()
    deadline: float | None = None
    while True:
        for rank, process in enumerate(job):
            if rank in seen or process.poll() is None:
                continue
            seen.add(rank)
            if process.returncode < 0 and not _is_over(deadline):
                name = signal.Signals(-process.returncode).name
                killed.append(f"process {rank} of {len(job)} was ended by {name}")
            if process.returncode and deadline is None:
                deadline = time.monotonic() + GRACE_SECONDS
        if len(seen) == len(job):
            return killed
        if _is_over(deadline):
            for process in job:
                process.kill()
        time.sleep(SECONDS_BETWEEN_POLLS)


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline


def _join(rank: Rank) -> ProcessGroup:
    if os.environ.get(PARENT_PIPE):
        threading.Thread(target=_end_with_launcher, args=(rank,), daemon=True).start()
    require_torch()
    from ragen2.backends.distributed.process_group import join_process_group

    return join_process_group(rank)


def _open_worker(config: RunConfig, processes: ProcessGroup) -> Worker:
    from ragen2.trainer.distributed import Worker, make_or_end_all

    agent: Agent = make_or_end_all(
        processes,
        lambda: require_torch().open_agent(
            config.model,
            config.learner,
            seed=config.seed,
            algorithm=config.algorithm,
            steps=config.steps,
            processes=processes,
        ),
    )
    return Worker(processes, agent.policy, agent.learner)


def _end_with_launcher(rank: Rank) -> None:
    """End this process when the launcher is gone: even a launcher that is killed closes its pipes.

    At once, as if killed too: nobody is left to wait for the end of a step, and a run directory can be
    resumed after any moment.
    """
    while os.read(0, 1):  # past Python's own buffer, whose lock would be held at a normal end
        pass
    if rank.is_zero:
        with suppress(OSError):  # whoever would have read it may be gone as well
            os.write(2, b"ragen2: the program that started this job is gone, so it ends\n")
    os._exit(EXIT_USER)


def _threads(count: int) -> int:
    """Threads for each process, so that all together load the cores once."""
    return max(1, (os.cpu_count() or 1) // count)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
