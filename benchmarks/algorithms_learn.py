"""Does every algorithm learn FrozenLake from the embedded model, with and without a filter?

Trains each recipe by `ragen2 train NAME` in a process of its own and gathers success on held-out tasks before
and after. Rows go into DIR/algorithms_learn.json as jobs end; a row of the same recipe, seed and settings is
replaced.

    python benchmarks/algorithms_learn.py --out runs/learn --jobs 2             # all recipes, one thread each
    python benchmarks/algorithms_learn.py --out runs/learn --only frozen_lake_ppo --set algorithm.lam=0.95
    python benchmarks/algorithms_learn.py --publish runs/learn/algorithms_learn.json

The last one trains nothing: it puts the rows into results/ and their table into docs/recipes.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from ragen2.config import load_run, recipe_names  # noqa: E402 - runs from a checkout, uninstalled
from ragen2.runs.files import write_atomically  # noqa: E402
from ragen2.runs.record import StepRecord  # noqa: E402
from ragen2.runs.store import RunDirectory  # noqa: E402

RESULTS = ROOT / "results" / "algorithms_learn.json"
PAGE = ROOT / "docs" / "recipes.md"
START, END = "<!-- learning -->\n", "\n<!-- /learning -->"
RETRIEVAL = "collapse/probe/retrieval_accuracy"
GAIN, SECONDS = 0.15, 300.0
"""What every recipe must reach: points of held-out success, within this time."""


@dataclass(frozen=True, slots=True)
class Job:
    """One recipe to train, with one seed."""

    recipe: str
    seed: int
    overrides: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Name of its run directory."""
        changed = "".join(f"-{one}" for one in self.overrides)
        return f"{self.recipe}-seed{self.seed}{changed}".replace("/", "_").replace(" ", "")


def train(job: Job, out: Path, threads: int) -> dict[str, Any]:
    """Run one job to its end; its row, which says so when the program failed."""
    path = out / job.folder
    settings = [f"seed={job.seed}", *job.overrides]
    words = [word for one in settings for word in ("--set", one)]
    path_of_code = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    started = time.perf_counter()
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "ragen2", "train", job.recipe, *words, "--out", str(path)],
        cwd=out,
        env=os.environ
        | {
            "PYTHONPATH": path_of_code,
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    about = {
        "recipe": job.recipe,
        "seed": job.seed,
        "overrides": list(job.overrides),
        "threads": threads,
        "seconds": round(time.perf_counter() - started, 1),
    }
    if done.returncode:
        return about | {"failed": (done.stderr or done.stdout)[-2000:]}
    return about | measured(RunDirectory.open(path).records())


def measured(records: Sequence[StepRecord]) -> dict[str, Any]:
    """What a finished run shows: success at every evaluation, and means over its steps."""
    evaluations = [record for record in records if "eval/success" in record.metrics]
    first, last, steps = evaluations[0], evaluations[-1], records[1:]
    return {
        "steps": last.step,
        "before": success(first),
        "after": success(last),
        "gain": round(last.metrics["eval/success"] - first.metrics["eval/success"], 4),
        "kept_ratio": mean(steps, "filter/kept_ratio"),
        "rounds": mean(steps, "filter/rounds"),
        "grad_norm": mean(steps, "update/grad_norm"),
        "explained_variance_last": last.metrics.get("update/explained_variance"),
        "retrieval_before": first.metrics.get(RETRIEVAL),
        "retrieval_after": last.metrics.get(RETRIEVAL),
        "seconds_training": round(sum(sum_of(record) for record in records), 1),
        "curve": [[record.step, record.metrics["eval/success"]] for record in evaluations],
        "train_reward": [round(record.metrics["reward/mean"], 3) for record in steps],
        "notes": [f"step {record.step}: {record.note}" for record in steps if record.note],
    }


def success(record: StepRecord) -> dict[str, float]:
    """Held-out success with its 95% interval."""
    names = {"success": "eval/success", "low": "eval/success_low", "high": "eval/success_high"}
    return {short: round(record.metrics[name], 4) for short, name in names.items()}


def mean(records: Sequence[StepRecord], name: str) -> float | None:
    """Mean over the steps that have the metric; None when none has."""
    values = [record.metrics[name] for record in records if name in record.metrics]
    return round(sum(values) / len(values), 4) if values else None


def sum_of(record: StepRecord) -> float:
    """Seconds of one record; the evaluation before training has no total of its own."""
    return record.seconds.get("step", sum(record.seconds.values()))


def merged(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows by recipe, seed and settings; new ones take the place of old ones."""

    def key(row: dict[str, Any]) -> tuple[str, int, tuple[str, ...]]:
        return row["recipe"], row["seed"], tuple(row["overrides"])

    rows = {key(row): row for row in (*old, *new)}
    return [rows[name] for name in sorted(rows)]


def write_rows(file: Path, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lay ``rows`` over those in ``file``; all of them."""
    old = json.loads(file.read_text())["rows"] if file.exists() else []
    together = merged(old, rows)
    write_atomically(file, json.dumps({**machine(), "rows": together}, indent=1) + "\n")
    return together


def machine() -> dict[str, Any]:
    """Where it ran."""
    return {"cores": os.cpu_count(), "machine": platform.machine(), "processor": processor()}


def processor() -> str:
    """The CPU's name where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of unchanged recipes as Markdown."""
    lines = [
        "| recipe | steps | success before | after | gain | prompts kept | retrieval after | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["overrides"] or "failed" in row:
            continue
        before, after = (
            f"{100 * row[when]['success']:.0f} ({100 * row[when]['low']:.0f} to "
            f"{100 * row[when]['high']:.0f})"
            for when in ("before", "after")
        )
        name = f"`{row['recipe']}`" + (f", seed {row['seed']}" if row["seed"] else "")
        lines.append(
            f"| {name} | {row['steps']} | {before} | {after} | {100 * row['gain']:+.0f} | "
            f"{100 * row['kept_ratio']:.0f}% | {row['retrieval_after']:.2f} | {row['seconds']:.0f} |"
        )
    return "\n".join(lines)


def publish(file: Path) -> None:
    """The rows of ``file`` into results/, their table into the docs."""
    found = json.loads(file.read_text())
    found["rows"] = [row for row in found["rows"] if not row["overrides"]]
    write_atomically(RESULTS, json.dumps(found, indent=1) + "\n")
    before, start, rest = PAGE.read_text().partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise SystemExit(f"{PAGE} has no place for the table between {START!r} and {END!r}")
    write_atomically(PAGE, before + START + table(found["rows"]) + END + after)


def verdict(row: dict[str, Any]) -> str:
    """One line of progress."""
    name = f"{row['recipe']} seed {row['seed']} {' '.join(row['overrides'])}".strip()
    if "failed" in row:
        return f"{name}: FAILED after {row['seconds']} s: {row['failed']}"
    is_enough = row["gain"] >= GAIN and row["seconds"] <= SECONDS
    return (
        f"{name}: {row['before']['success']:.3f} -> {row['after']['success']:.3f} "
        f"({100 * row['gain']:+.1f} points, {row['steps']} steps, {row['seconds']:.0f} s, "
        f"kept {row['kept_ratio']}) {'enough' if is_enough else 'NOT ENOUGH'}"
    )


def learning_recipes() -> list[str]:
    """Each algorithm with and without a filter; the default itself is one of them under its own name."""
    text_games = [name for name in recipe_names() if name.startswith("frozen_lake_")]
    return [name for name in text_games if name != "frozen_lake_tiny"]


def main() -> None:
    """Train, gather, or publish."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="recipe; may be given often"
    )
    parser.add_argument("--seed", action="append", type=int, help="may be given often; left out: 0")
    parser.add_argument("--out", type=Path, default=Path("runs/algorithms_learn"))
    parser.add_argument("--threads", type=int, default=1, help="torch threads of each job")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE"
    )
    parser.add_argument("--publish", type=Path, metavar="FILE", help="only write results and docs")
    given = parser.parse_args()
    if given.publish:
        publish(given.publish)
        return
    jobs = [
        Job(name, seed, tuple(given.overrides))
        for name in given.only or learning_recipes()
        for seed in given.seed or [0]
    ]
    for job in jobs:
        load_run(
            Path(job.recipe), job.overrides
        )  # a wrong setting shows before anything is trained
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(given.jobs) as pool:
        for future in as_completed([pool.submit(train, job, out, given.threads) for job in jobs]):
            row = future.result()
            write_rows(out / RESULTS.name, [row])
            print(verdict(row), flush=True)


if __name__ == "__main__":
    main()
