"""How much memory an audit of a large log takes: writes one, audits it in a child, and looks.

    python benchmarks/audit_memory.py --gigabytes 1

The log has 200 steps in the form of verl's dumps, 256 prompts per step with 8 replies each until it is
full, and one broken line in twenty. Dependence on the prompt fades from full to none over the steps.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

STEPS = 200
PROMPTS = 256
BROKEN_EVERY = 20
WORDS = [f"word{index}" for index in range(2000)]


def write_log(path: Path, num_bytes: int) -> tuple[int, int]:
    """Rows and broken lines written."""
    rng = np.random.default_rng(0)
    pool = [" ".join(rng.choice(WORDS, size=60)) for _ in range(4096)]
    rows = broken = written = 0
    members = max(1, num_bytes // (STEPS * PROMPTS * 1700))
    with path.open("w", encoding="utf-8") as file:
        for step in range(1, STEPS + 1):
            for prompt in range(PROMPTS):
                for member in range(members):
                    line = _row(rng, pool, step, prompt, member)
                    rows += 1
                    if rows % BROKEN_EVERY == 0:
                        line, broken = line[: len(line) // 2], broken + 1
                    written += file.write(line + "\n")
    return rows, broken


def _row(rng: np.random.Generator, pool: list[str], step: int, prompt: int, member: int) -> str:
    task = " ".join(f"item{step}x{prompt}y{part}" for part in range(12))
    named = task if rng.random() > step / STEPS else "something else"
    drawn = rng.integers(len(pool), size=3)
    reasoning = f"{pool[drawn[0]]} about {named} {pool[drawn[1]]} {pool[drawn[2]]}"
    return json.dumps(
        {
            "input": f"system\nBe brief.\nuser\n{task}\nassistant\n",
            "output": f"<think>{reasoning}</think><answer>{member % 3}</answer>",
            "score": float(member % 2),
            "step": step,
            "uid": f"{step}-{prompt}",
        }
    )


def main() -> None:
    """Write the log, audit it, and write what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=Path("results/audit_memory.json"))
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        rows, broken = write_log(log, int(settings.gigabytes * 1e9))
        started = time.monotonic()
        command = [sys.executable, "-m", "ragen2", "audit", str(log), "--out", f"{folder}/audit"]
        subprocess.run(command, check=True)  # noqa: S603 - our own program on our own file
        seconds = time.monotonic() - started
        record = json.loads((Path(folder) / "audit" / "audit.json").read_text())
        found = {
            "log_bytes": log.stat().st_size,
            "rows": rows,
            "broken_lines": broken,
            "rows_read": record["rows"]["read"],
            "unused": record["rows"]["unused"],
            "steps_measured": len(record["steps"]),
            "regimes": [record["steps"][0]["regime"], record["regime"]],
            "seconds": round(seconds, 1),
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        }
    settings.out.parent.mkdir(exist_ok=True)
    settings.out.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
