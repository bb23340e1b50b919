"""How much longer do N training runs take side by side than one alone?

Trains the same run once, then with N seeds side by side, each in a process of its own, as
`ragen2 train --jobs` does; timed from the start of the first process to the end of the last. Prints one JSON
object: one_s, n_s, ratio, and whether NVIDIA MPS shared the GPU between them.

    python benchmarks/many_runs.py 12 --set steps=20 --set model.path=models/smol
    python benchmarks/many_runs.py 12 --run frozen_lake_tiny --no-mps
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from ragen2.config import RunConfig, load_run  # noqa: E402 - runs from a checkout, uninstalled
from ragen2.trainer.jobs.mps import Sharing, has_gpu, shared_gpu  # noqa: E402
from ragen2.trainer.jobs.run import Job, JobStatus, run_jobs  # noqa: E402


def timed(config: RunConfig, count: int, out: Path, sharing: Sharing) -> tuple[float, float]:
    """Seconds of ``count`` runs side by side, and the mean of their steps; the program ends if one fails."""
    jobs = [
        Job(f"seed{seed}", config.model_copy(update={"seed": seed}), out / f"seed{seed}")
        for seed in range(config.seed, config.seed + count)
    ]
    started = time.perf_counter()
    statuses = run_jobs(jobs, at_once=count, variables=sharing.variables, on_change=tell)
    seconds = time.perf_counter() - started
    for status in statuses:
        if status.state != "done":
            sys.exit(f"{status.job.name} {status.state}: {status.problem}")
    return seconds, sum(status.seconds_per_step or 0.0 for status in statuses) / count


def tell(statuses: Sequence[JobStatus]) -> None:
    """How far the slowest is; on standard error, which is not the result."""
    slowest = min(statuses, key=lambda status: status.step)
    print(f"{slowest.job.name} {slowest.step}/{slowest.job.config.steps}", file=sys.stderr)


def measure(config: RunConfig, count: int, *, mps: bool) -> dict[str, Any]:
    """Time one and then many."""
    with tempfile.TemporaryDirectory(prefix="ragen2-many-") as folder:
        one, step = timed(config, 1, Path(folder) / "one", Sharing())
        is_wanted = mps and count > 1 and config.model.device != "cpu" and has_gpu()
        with shared_gpu() if is_wanted else contextlib.nullcontext(Sharing()) as sharing:
            many, many_step = timed(config, count, Path(folder) / "many", sharing)
    return {
        "jobs": count,
        "steps": config.steps,
        "model": config.model.path,
        "one_s": round(one, 2),
        "n_s": round(many, 2),
        "ratio": round(many / one, 3),
        "one_step_s": round(step, 4),
        "n_step_s": round(many_step, 4),
        "mps": sharing.is_mps,
        "note": sharing.note,
        "cores": len(os.sched_getaffinity(0)),
    }


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", type=int)
    parser.add_argument("--run", type=Path, help="run file or recipe; left out, the default")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--no-mps", action="store_true")
    asked = parser.parse_args()
    path = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(part for part in path if part)  # for the children
    config = load_run(asked.run, asked.set)
    print(json.dumps(measure(config, asked.jobs, mps=not asked.no_mps)))


if __name__ == "__main__":
    main()
