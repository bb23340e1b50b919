"""Readers of settings, run directories and audits."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from fuzzing.logs import SAMPLES, audit_of
from fuzzing.mutations import BYTES, JSON, JSON_LINES, TOML, Form, packed
from fuzzing.reader import Make, Reader, written


def settings_reader(folder: Path) -> Reader:
    """Run files."""
    from ragen2.config import default_run_file, find_run_file, load_run, recipe_names

    files = [default_run_file(), *(find_run_file(Path(name)) for name in recipe_names()[:6])]
    for one in files:  # some build on others
        shutil.copy(one, folder)
    file = folder / "run.toml"
    return Reader(TOML, [one.read_bytes() for one in files], written(file, lambda: load_run(file)))


def override_reader(folder: Path) -> Reader:
    """Values of ``--set``."""
    from ragen2.config import load_run

    del folder
    words = (
        "steps=3|env.size=4|filter.mass=0.9|env={kind='Bandit'}|seed=1|diagnostics=[]|stops.x=1.5"
    )
    return Reader(
        BYTES,
        [one.encode() for one in words.split("|")],
        lambda data: load_run(None, [data.decode("utf-8", "replace")]),
    )


def grid_reader(folder: Path) -> Reader:
    """Files of experiments."""
    from ragen2.experiments.grid import FOLDER, combinations, load_grid

    file = folder / "grid.toml"
    seeds = [one.read_bytes() for one in sorted(FOLDER.rglob("*.toml"))[:6]]
    return Reader(TOML, seeds, written(file, lambda: combinations(load_grid(str(file)), "tiny", 1)))


def run_reader(name: str, form: Form) -> Make:
    """One file of a run directory: the page of a report, then what a resumed run reads."""

    def make(folder: Path) -> Reader:
        run = make_run(folder / "run")
        return Reader(form, [(run / name).read_bytes()], written(run / name, lambda: read_run(run)))

    return make


def make_run(path: Path) -> Path:
    """A small run with rollouts, scores, images, a probe, sessions and a checkpoint's state."""
    from ragen2.backends.scripted import ScriptedPolicy
    from ragen2.config import RunConfig, dump_config
    from ragen2.diagnostics import measure
    from ragen2.envs import FrozenLake
    from ragen2.rollout import Rollout, Task, play
    from ragen2.runs.checkpoints import save_checkpoint
    from ragen2.runs.record import StepRecord
    from ragen2.runs.scores import RowSource, ScopeScores
    from ragen2.runs.store import RunDirectory, record_session
    from ragen2.trainer.state import TrainerState, write_state
    from ragen2.types import Image, ScoreMatrix

    run = RunDirectory.create(path, dump_config(RunConfig(steps=2)))
    policy = ScriptedPolicy(lambda prompt, rng: "north is safe</think><answer>Up</answer>")
    tasks = [[Task(seed, luck) for luck in range(2)] for seed in (3, 4)]
    groups = play(FrozenLake(), policy, tasks, Rollout(), key=("fuzz",))
    owner_N = np.arange(4) % 2
    matrix = ScoreMatrix(np.linspace(-9.0, -1.0, 8).reshape(4, 2), np.full(4, 5), owner_N)
    image = Image(np.zeros((4, 4, 3), dtype=np.uint8))
    sources = [
        RowSource(text=f"t{n}", label=f"l{n}", prompt=f"p{p}", prompt_label="p", image=image.digest)
        for n, p in enumerate(owner_N)
    ]
    found = measure(matrix.logp_NP, matrix.length_N, matrix.owner_N, resamples=20)
    metrics = {f"collapse/first_turn/{name}": value for name, value in found.items()}
    metrics |= {
        "reward/mean": 0.1,
        "reward/variance": 0.1,
        "rollout/success": 0.5,
        "filter/kept": 1.0,
    }
    metrics |= {"triage/live": 0.5, "probe/bucket_1/task_norm": 1.0, "eval/success": 0.4}
    run.append(StepRecord(step=0, metrics={"eval/success": 0.1}))
    for step in (1, 2):
        run.save_rollouts(step, groups)
        run.save_scores(step, [ScopeScores.of("first_turn", matrix, sources, [image])])
        run.append(
            StepRecord(
                step=step,
                metrics=metrics,
                kept=[True, False],
                scores=[0.1, 0.0],
                seeds=[3, 4],
                regime="grounded",
                note="early warning: x",
                seconds={"step": 1.0, "rollout": 0.5},
                absent={"probe/x": "y"},
            )
        )
    record_session(path, 0)
    record_session(path, 1)
    save_checkpoint(path, 2, lambda folder: write_state(folder, TrainerState(step=2)), keep=1)
    (path / "probe" / "one").mkdir(parents=True)
    (path / "probe" / "one" / "probe.json").write_bytes(probe_record())
    return path


def probe_record() -> bytes:
    """A gradient probe of two buckets."""
    from ragen2.diagnostics.metrics.gradients import (
        BucketGradient,
        GradientReport,
        ProbeRecord,
        PromptGradient,
    )

    buckets = tuple(
        BucketGradient(
            name=f"bucket_{n}",
            variance_low=0.1 * n,
            variance_high=0.2 * n,
            variance_mean=0.15 * n,
            prompts=2,
            trajectories=4,
            norms={"task": 1.0 * n, "centred": 1.0, "kl": 0.5, "entropy": 0.1},
            cosines={"task_kl": 0.1},
            snr=1.0,
        )
        for n in (1, 2)
    )
    prompts = tuple(PromptGradient(seed=n, variance=0.1 * n, norm=0.5, bound=1.0) for n in range(3))
    report = GradientReport(buckets, prompts)
    words = dict.fromkeys(("run", "model", "env", "algorithm", "aggregation", "kl_estimator"), "x")
    return (
        ProbeRecord(
            **words,
            step=1,
            num_prompts=3,
            group_size=2,
            edges=(),
            buckets=report.buckets,
            prompts=report.prompts,
            trends=report.trends(),
            prompt_correlation=report.prompt_correlation(),
            seconds={"rollout": 1.0},
        )
        .model_dump_json()
        .encode()
    )


def read_run(path: Path) -> None:
    """Whatever a page shows of a run, and what a resumed one reads."""
    from ragen2.errors import RunError
    from ragen2.integrations.datasets import run_rows
    from ragen2.reports.data.report import report_of
    from ragen2.reports.load import load
    from ragen2.reports.page import write_page
    from ragen2.reports.watch import Followed
    from ragen2.runs.checkpoints import newest_checkpoint
    from ragen2.runs.store import RunDirectory
    from ragen2.trainer.state import read_state

    problems = []
    for read in (
        lambda: newest_checkpoint(path),
        lambda: read_state(path / "checkpoints" / "step_000002"),
        lambda: RunDirectory.open(path).images.has("x"),
        lambda: run_rows(path, 1),
        lambda: Followed([path]).runs(),
    ):
        try:
            read()
        except RunError as error:
            problems.append(error)
    write_page(report_of([load(path)]), path / "report.html")
    if problems:
        raise problems[0]


def audit_record_reader(folder: Path) -> Reader:
    """audit.json, as a report shows it."""
    from ragen2.reports.data.report import report_of
    from ragen2.reports.load import load
    from ragen2.reports.page import write_page

    record = audit_of([SAMPLES / "ragen" / "rollouts.jsonl"])
    return Reader(
        JSON,
        [record.model_dump_json().encode()],
        written(
            folder / "audit.json",
            lambda: write_page(report_of([load(folder)]), folder / "report.html"),
        ),
    )


def png_reader(folder: Path) -> Reader:
    """Images of a run directory."""
    from ragen2.errors import RunError
    from ragen2.runs.trajectories import png_bytes, read_png

    del folder

    def read(data: bytes) -> None:
        try:
            read_png(data)
        except ValueError as error:  # its contract; whoever calls names the file
            raise RunError(str(error)) from error

    pixels = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    return Reader(BYTES, [png_bytes(pixels), png_bytes(pixels * 0)], read)


RUNS: dict[str, Make] = {
    "run file": settings_reader,
    "--set": override_reader,
    "grid file": grid_reader,
    "run: run.toml": run_reader("run.toml", TOML),
    "run: steps.jsonl": run_reader("steps.jsonl", JSON_LINES),
    "run: sessions.jsonl": run_reader("sessions.jsonl", JSON_LINES),
    "run: rollouts": run_reader("rollouts/step_000001.jsonl", JSON_LINES),
    "run: scores": run_reader("scores/step_000002.json.gz", packed(JSON)),
    "run: images": run_reader("images/step_000001.zip", BYTES),
    "run: probe.json": run_reader("probe/one/probe.json", JSON),
    "run: manifest.json": run_reader("checkpoints/step_000002/manifest.json", JSON),
    "run: trainer_state.json": run_reader("checkpoints/step_000002/trainer_state.json", JSON),
    "run: PNG": png_reader,
    "audit.json": audit_record_reader,
}
"""By name."""
