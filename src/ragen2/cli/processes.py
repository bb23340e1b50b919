"""``ragen2 train`` in several processes: starting them, leading them, following, and ending together."""

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

from ragen2.backends.distributed.world import World
from ragen2.cli.shared import require_torch
from ragen2.errors import RunError

if TYPE_CHECKING:
    from ragen2.backends.distributed.process_group import Crew
    from ragen2.backends.open import Agent
    from ragen2.config import RunConfig
    from ragen2.trainer.processes import Hand, Lead

GRACE = 30.0
"""Seconds that processes have to end by themselves after one of them has failed."""
EXIT_USER = 2
LIFELINE = "RAGEN2_LIFELINE"
"""Set in processes whose standard input is a pipe that the launcher holds open, and never writes to."""
LOOKS = 0.1
"""Seconds between two looks at the processes."""


@contextmanager
def lead(config: RunConfig, world: World) -> Iterator[Lead]:
    """Open the model in all processes; what is given back shares its work out among them."""
    from ragen2.config import dump_config
    from ragen2.trainer.processes import END, Lead

    crew = _join(world)
    crew.tell(dump_config(config))
    hand = _open_hand(config, crew)
    try:
        yield Lead(hand)
    finally:
        if not crew.is_busy:  # else the others are in the middle of something, or gone
            crew.tell(END)
            crew.leave()


def follow_leader(world: World) -> None:
    """What every process but the first does: nothing but orders."""
    from ragen2.config import RunConfig, parse_config
    from ragen2.trainer.processes import ToldByLeader, follow

    crew = _join(world)
    from ragen2.backends.distributed.process_group import LostProcess

    for number in (signal.SIGINT, signal.SIGTERM):
        # A wish to stop is the first process's business: all end with it.
        signal.signal(number, signal.SIG_IGN)
    try:
        config = parse_config(RunConfig, tomllib.loads(crew.hear()))
        follow(_open_hand(config, crew))
    except ToldByLeader:
        return  # with exit code 0: torchrun would end the first process before it has spoken
    except LostProcess:
        if LIFELINE in os.environ:  # the launcher sees who is gone, and says it once for all
            sys.exit(EXIT_USER)
        raise
    crew.leave()


def resume_line(run: Path, processes: int) -> str:
    """What to type to go on."""
    return f"go on with: ragen2 train --resume {run} --processes {processes}"


def start_processes(words: Sequence[str], count: int, run: Path) -> int:
    """Start ``ragen2 train WORDS`` so many times as one job; the exit code of the first process.

    When one fails, the others have a while to end by themselves. A process that a signal ended has no
    last words, so they are said here.
    """
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(_threads(count)),
        LIFELINE: "stdin",
    }
    command = [sys.executable, "-m", "ragen2", "train", *words]
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

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    killed = ", ".join(_wait(job))
    code = int(job[0].returncode)
    if killed and code <= 0:
        raise RunError(f"{killed}; {resume_line(run, count)}")
    if killed:  # the first process has said how to go on
        print(f"ragen2: {killed}", file=sys.stderr)
    return code


def _wait(job: Sequence[subprocess.Popen[bytes]]) -> list[str]:
    """Until all have ended; says of each that a signal ended, not ours, which one it was."""
    told: list[str] = []
    seen: set[int] = set()
    deadline: float | None = None
    while True:
        for rank, process in enumerate(job):
            if rank in seen or process.poll() is None:
                continue
            seen.add(rank)
            if process.returncode < 0 and not _is_over(deadline):
                name = signal.Signals(-process.returncode).name
                told.append(f"process {rank} of {len(job)} was ended by {name}")
            if process.returncode and deadline is None:
                deadline = time.monotonic() + GRACE
        if len(seen) == len(job):
            return told
        if _is_over(deadline):
            for process in job:
                process.kill()
        time.sleep(LOOKS)


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline


def _join(world: World) -> Crew:
    if os.environ.get(LIFELINE):
        threading.Thread(target=_end_with_launcher, args=(world,), daemon=True).start()
    require_torch()
    from ragen2.backends.distributed.process_group import join_process_group

    return join_process_group(world)


def _open_hand(config: RunConfig, crew: Crew) -> Hand:
    from ragen2.trainer.processes import Hand, agreed

    agent: Agent = agreed(
        crew,
        lambda: require_torch().open_agent(
            config.model,
            config.learner,
            seed=config.seed,
            algorithm=config.algorithm,
            steps=config.steps,
            crew=crew,
        ),
    )
    return Hand(crew, agent.policy, agent.learner)


def _end_with_launcher(world: World) -> None:
    """End this process when the launcher is gone: even a launcher that is killed closes its pipes.

    At once, as if killed too: nobody is left to wait for the end of a step, and a run directory can be
    resumed after any moment.
    """
    while os.read(0, 1):  # past Python's own buffer, whose lock would be held at a normal end
        pass
    if world.leads:
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
