"""Random masked batches, the same for us and for a peer that runs in another process."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
COUNT = 200
Batch = dict[str, np.ndarray]


def random_batch(seed: int) -> Batch:
    """B rows of T tokens. ``mask`` ends each row early; ``holes`` also cuts observations out of it."""
    rng = np.random.default_rng(seed)
    groups, size, width = int(rng.integers(1, 5)), int(rng.integers(2, 6)), int(rng.integers(2, 24))
    rows = groups * size
    lengths = rng.integers(1, width + 1, rows)
    mask = (np.arange(width)[None] < lengths[:, None]).astype(np.float32)
    holes = mask * (rng.random((rows, width)) < 0.7)
    holes[np.arange(rows), lengths - 1] = 1.0
    scores = rng.choice([0.0, 1.0], rows) if seed % 2 else rng.normal(0, 3, rows)
    rewards = np.zeros((rows, width), dtype=np.float32)
    rewards[np.arange(rows), lengths - 1] = scores
    old = rng.uniform(-4, -0.05, (rows, width))
    batch = {
        "mask": mask,
        "holes": holes,
        "rewards": rewards,
        "dense_rewards": rng.normal(0, 1, (rows, width)) * holes,
        "values": rng.normal(0, 1, (rows, width)),
        "index": np.repeat(np.arange(groups), size),
        "old": old,
        "new": old + rng.normal(0, 0.6, (rows, width)),
        "ref": old + rng.normal(0, 0.6, (rows, width)),
        "advantages": rng.normal(0, 1, (rows, width)) * holes,
        "logits": rng.normal(0, 1.5, (rows, width, 7)),
        "ids": rng.integers(0, 7, (rows, width)),
        "gamma": np.array(rng.uniform(0.8, 1.0)),
        "lam": np.array(rng.uniform(0.5, 1.0)),
    }
    # Log-probs near those of the logits: where TRL's KL is not clamped and ours is not either.
    scale = np.log(np.exp(batch["logits"]).sum(-1, keepdims=True))
    chosen = np.take_along_axis(batch["logits"] - scale, batch["ids"][..., None], -1)[..., 0]
    batch["near_old"] = chosen + rng.normal(0, 0.5, (rows, width))
    batch["near_ref"] = chosen + rng.normal(0, 0.5, (rows, width))
    return {name: value.astype(np.float64) for name, value in batch.items()}


def ask_peer(peer: str, script: str, folder: Path) -> list[Batch]:
    """Write all batches, let ``script`` work on them in the peer's own venv, read its answers."""
    python = ROOT / f".venv-{peer}" / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"{python} is missing; make it with: make peers")
    for seed in range(COUNT):
        np.savez(folder / f"in_{seed}.npz", **random_batch(seed))
    done = subprocess.run(
        [str(python), str(Path(__file__).parent / script), str(folder), str(COUNT)],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [dict(np.load(folder / f"out_{seed}.npz")) for seed in range(COUNT)]
