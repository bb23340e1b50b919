"""The fault suite: ``make faults`` runs every schedule, ``make faults ARGS="--seed 137"`` repeats one.

A schedule kills a program, fills its disk, damages its files, jumps its clock, takes its reader away, or
starts a second writer. The program then goes on, and must end as if nothing had happened, or say why not.
"""

# ruff: noqa: T201 - a program that prints
from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from programs import Program, preload, scratch  # noqa: E402
from schedules import (  # noqa: E402
    BROKEN,
    DISTURBED,
    EQUAL,
    LOST,
    NAMED,
    PAIRS,
    REFUSED,
    Reference,
    perform,
    prepare,
)

SCHEDULES = 520
OUTCOMES = (EQUAL, NAMED, REFUSED, LOST, BROKEN)


def make_references(folder: Path, names: set[str]) -> dict[str, Reference]:
    """Each program once, undisturbed; what it imported is imported here, for all that follow.

    Those that others read come first, and are made in any case.
    """
    found: dict[str, Reference] = {}
    for subject in DISTURBED:
        if subject.name not in names | {"train", "warmstart"}:
            continue
        place, log = folder / subject.name, folder / f"{subject.name}.points"
        place.mkdir()
        prepare(subject, found, place)
        ended = Program(place, subject.program, log=log).wait()
        assert ended is not None
        assert ended.code == 0, (subject.name, ended)
        preload(log.with_suffix(".modules").read_text().splitlines())
        points = len(log.read_text().splitlines()) if log.exists() else 0
        found[subject.name] = Reference(place, subject.state(place), points, ended.cpu)
        assert found[subject.name].state, subject.name
    return found


def print_table(counts: dict[str, Counter[str]], title: str) -> None:
    """Outcomes by row."""
    print(f"\n{title:14}{'schedules':>11}" + "".join(f"{name:>21}" for name in OUTCOMES))
    for name, row in [*sorted(counts.items()), ("all", sum(counts.values(), Counter()))]:
        print(f"{name:14}{row.total():11}" + "".join(f"{row[one]:21}" for one in OUTCOMES))


def write_counts(file: Path, counts: dict[tuple[str, str], Counter[str]]) -> None:
    """By program and kind of fault; programs that the file has and that were left out here stay."""
    found = json.loads(file.read_text()) if file.exists() else {}
    found |= {subject: {} for subject, _ in counts}
    for (subject, kind), row in counts.items():
        found[subject][kind] = {"schedules": row.total()} | {one: row[one] for one in OUTCOMES}
    file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="this schedule alone, with all that it did")
    parser.add_argument("--schedules", type=int, default=SCHEDULES, help="seeds 0 to this number")
    parser.add_argument("--step", type=int, default=1, help="only every so many of them")
    parser.add_argument("--only", nargs="+", help="programs, or kinds of faults")
    parser.add_argument("--jobs", type=int, default=2, help="schedules at a time")
    parser.add_argument("--json", type=Path, help="write the counts here")
    given = parser.parse_args()
    seeds = [given.seed] if given.seed is not None else list(range(0, given.schedules, given.step))
    for word in given.only or ():
        names = {at: (one.name, kind) for at, (one, kind) in enumerate(PAIRS)}
        seeds = [seed for seed in seeds if word in names[seed % len(PAIRS)]]
    started, bad = time.monotonic(), []
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    preload()
    with scratch() as folder:
        references = make_references(folder, {PAIRS[seed % len(PAIRS)][0].name for seed in seeds})
        with multiprocessing.get_context("fork").Pool(given.jobs) as pool:
            done = pool.imap_unordered(partial(perform, references=references), seeds)
            for seed, subject, kind, outcome, story in done:
                counts[subject, kind][outcome] += 1
                print(f"seed {seed}: {subject}, {kind}: {outcome}", flush=True)
                if outcome in {LOST, BROKEN}:
                    bad.append(seed)
                if seed in (*bad, given.seed):
                    print("".join(f"    {line}\n" for line in story), end="", flush=True)
    for at, axis in enumerate(("program", "fault")):
        rows: dict[str, Counter[str]] = defaultdict(Counter)
        for names, row in counts.items():
            rows[names[at]] += row
        print_table(rows, axis)
    seconds = time.monotonic() - started
    print(f"\n{len(seeds)} schedules in {seconds:.0f} s; bad seeds: {sorted(bad) or 'none'}")
    if given.json:
        write_counts(given.json, counts)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
