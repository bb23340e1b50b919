"""What ``ragen2 experiment`` prints: the list of experiments, and what a plan will need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ragen2.config import RunConfig, unchecked_kinds
from ragen2.experiments.costs import CORE, H200, Device, ModelShape, RunCost, run_cost, shape_of
from ragen2.experiments.grid import experiment_names, load_grid
from ragen2.experiments.plan import Cell, Model, Plan

WIDE = 140
"""Columns where there is no terminal, so that no line is cut."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One combination of a plan: its labels, its seeds, and what a run of it will need."""

    labels: str
    config: RunConfig
    seeds: int
    needs: RunCost | None


def print_list() -> None:
    """Every embedded experiment with what it asks."""
    table = Table(box=None, pad_edge=False)
    for column in ("name", "paper", "question"):
        table.add_column(column, overflow="fold")
    for name in experiment_names():
        grid = load_grid(name)
        table.add_row(name, grid.paper, grid.question)
    _console().print(table)


def print_plan(plan: Plan) -> None:
    """Every cell with its memory and time, computed; then what they sum up to."""
    console = _console()
    device = CORE if plan.scale in {"tiny", None} else H200
    rows = list(_rows(plan, device))
    table = Table(box=None, pad_edge=False)
    table.add_column("cell", overflow="fold")
    for column in ("seeds", "steps", "P x G", "parameters", "GPU GiB", "minutes a run"):
        table.add_column(column, justify="right")
    for row in rows:
        needs = row.needs
        table.add_row(
            Text(row.labels),
            str(row.seeds),
            str(row.config.steps),
            f"{row.config.rollout.prompts} x {row.config.rollout.group_size}",
            f"{needs.parameters / 1e6:,.1f}M" if needs else "unknown",
            f"{needs.gpu_gib:.1f}" if needs else "unknown",
            f"{needs.minutes:.1f}" if needs else "unknown",
        )
    console.print(table)
    known = [row for row in rows if row.needs is not None]
    minutes = sum(row.needs.minutes * row.seeds for row in known if row.needs is not None)
    largest = max((row.needs.gpu_gib for row in known if row.needs is not None), default=0.0)
    lines = [
        f"{len(rows)} cells, {len(plan.jobs)} runs, {len(plan.models)} models to make first; every "
        f"cell's settings are valid{_unchecked(plan)}",
        f"memory and time are computed, not measured: {minutes / 60.0:,.1f} hours on {device.name} one "
        f"after another, {largest:.1f} GiB of GPU memory at most",
        f"{sum(job.folder.is_dir() for job in plan.jobs)} of {len(plan.jobs)} runs have begun in {plan.out}",
    ]
    large = sum(row.needs is not None and row.needs.gpu_gib > device.gib for row in rows)
    if large:
        lines.append(
            f"{large} cells need more than the {device.gib:.0f} GiB of {device.name}: train their run "
            "files with --processes or --engine verl, then give this command again"
        )
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _unchecked(plan: Plan) -> str:
    """What could not be checked without an import of plug-ins."""
    found = [unchecked_kinds(cell.job.config) for cell in plan.cells]
    kinds = {f"{path} {kind}" for one in found for path, kinds in one.items() for kind in kinds}
    named = ", ".join(sorted(kinds))
    return f", as far as a dry run can tell, which imports no plug-in: not {named}" if kinds else ""


def _rows(plan: Plan, device: Device) -> Iterator[_Row]:
    models = {model.name: model for model in plan.models}
    seeds: dict[tuple[str, ...], int] = {}
    first: dict[tuple[str, ...], Cell] = {}
    for cell in plan.cells:
        key = tuple(f"{axis}={label}" for axis, label in cell.labels.items())
        seeds[key] = seeds.get(key, 0) + 1
        first.setdefault(key, cell)
    for key, cell in first.items():
        config = cell.job.config
        shape = _shape(config, models.get(cell.model), models)
        is_known = shape is not None and not unchecked_kinds(config)
        needs = run_cost(config, shape, device) if shape and is_known else None
        yield _Row(" ".join(key) or "the only cell", config, seeds[key], needs)


def _shape(config: RunConfig, model: Model | None, models: dict[str, Model]) -> ModelShape | None:
    """Of the model that a run starts from, made or not yet."""
    while (
        model is not None and model.recipe is not None and model.recipe.new is None and model.needs
    ):
        model = models[model.needs]
    if model is None:
        return shape_of(config.model.path)
    if model.recipe is None:
        return shape_of(model.wheel)
    return shape_of(model.recipe.model.path, model.recipe.new)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDE)
