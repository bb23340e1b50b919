"""What an experiment will run: each distinct run once, and the models that must be there before.

A run is named by its settings alone, so cells of different experiments that want the same run share it, and a
second start finds what the first one made.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ragen2.config import (
    FAMILIES,
    RunConfig,
    apply_override,
    dump_config,
    parse_config,
    with_kinds,
)
from ragen2.consent import PluginRule, find_risks, require_consent
from ragen2.errors import ConfigError
from ragen2.experiments.analyses import find_analysis
from ragen2.experiments.cells import Cells
from ragen2.experiments.grid import (
    Combination,
    Grid,
    Scale,
    Tables,
    combinations,
    load_grid,
    load_scale,
)
from ragen2.trainer.jobs.run import Job
from ragen2.trainer.warmstart import WarmstartConfig

WARM = "warm:"
"""A model path that begins so names a warm start of the scale."""
WHEEL = "wheel:"
"""A model path that begins so names a model inside a package-index wheel."""
RUNS, MODELS = "runs", "models"
MOST_MISTAKES = 5
"""Cells whose mistakes are listed; the others most often have the same."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model that a run starts from and that has to be made first."""

    name: str
    folder: Path
    recipe: WarmstartConfig | None
    """How it is made; None for one that is pulled from a wheel."""
    wheel: str = ""
    needs: str = ""
    """Name of the model that it is made from, if that has to be made too."""

    @property
    def log(self) -> Path:
        """What its process says."""
        return self.folder.parent / "logs" / f"{self.folder.name}.log"

    @property
    def recipe_file(self) -> Path:
        """The settings that its process is started with."""
        return self.log.with_suffix(".toml")

    @property
    def words(self) -> list[str]:
        """The command that makes it, after ``ragen2``."""
        if self.recipe is None:
            return ["pull", self.wheel, "--out", str(self.folder)]
        return ["warmstart", str(self.recipe_file), "--out", str(self.folder)]


@dataclass(frozen=True, slots=True)
class Cell:
    """One seed of one combination, and the run that is its."""

    labels: Mapping[str, str]
    seed: int
    job: Job
    model: str
    """Name of the model that has to be made for it; empty for none."""

    @property
    def run(self) -> str:
        """Name of the run: what decides its result. Cells that share it have the same one."""
        return self.job.folder.name


@dataclass(frozen=True)
class Plan:
    """An experiment with everything decided."""

    name: str
    grid: Grid
    scale: Scale | None
    out: Path
    cells: tuple[Cell, ...]
    models: tuple[Model, ...]

    @property
    def folder(self) -> Path:
        """Where its tables and figures go."""
        return self.out / self.name

    @cached_property
    def jobs(self) -> list[Job]:
        """Each distinct run once, in the order of the cells."""
        found: dict[str, Job] = {}
        for cell in self.cells:
            found.setdefault(cell.run, cell.job)
        return list(found.values())

    def commands(self) -> list[str]:
        """The commands that make its models and runs one by one, as a shell takes them."""
        made = [model.words for model in self.models]
        trained = [["train", str(job.run_file), "--out", str(job.folder)] for job in self.jobs]
        return [shlex.join(["ragen2", *words]) for words in [*made, *trained]]


def make_plan(
    name: str,
    *,
    scale: Scale | None,
    out: Path,
    seeds: int | None = None,
    overrides: Sequence[str] = (),
    plugins: PluginRule = "known",
) -> Plan:
    """Read a grid, check every cell, and name its runs; all mistakes are listed before anything starts."""
    grid = load_grid(name)
    analyse = find_analysis(grid.analysis)
    start, others = _split_overrides(overrides)
    of_models = [one for one in others if _is_of_model(one)]
    makers = _Makers(scale, out / MODELS, start, of_models, imports_plugins=plugins != "skip")
    cells: list[Cell] = []
    mistakes: list[str] = []
    combined = combinations(grid, scale, seeds)
    # Without a run it finds nothing, but it refuses lists that it cannot read.
    analyse(Cells([], plan=[one.labels for one in combined]))
    if start:
        _refuse_one_for_several(combined)
    own = _laid_over({}, others)
    combined = [
        one.model_copy(update={"settings": _laid_over(one.settings, others)}) for one in combined
    ]
    risks = [risk for one in combined for risk in find_risks(one.settings, own)]
    if plugins != "skip":
        require_consent(f"grid {name}", risks, trust=plugins == "trust")
    for one in combined:
        try:
            cells.extend(_cells(one, makers, out))
        except ConfigError as error:
            mistakes.append(f"{_cell_name(one.labels)}: {str(error).splitlines()[0]}")
    if mistakes:
        left = len(mistakes) - MOST_MISTAKES
        more = [f"and {left} more cells with mistakes"] if left > 0 else []
        raise ConfigError("\n".join([*mistakes[:MOST_MISTAKES], *more]))
    models = tuple(makers.in_order())
    return Plan(Path(name).stem, grid, scale, out, tuple(cells), models)


def config_key(config: RunConfig) -> str:
    """A short name of everything that decides a run's result, but for its seed.

    Settings that have their default are left out, so that a run keeps its name when a new one is added. Nor
    does it change when the folder with its plug-ins is moved.
    """
    plugins = tuple(Path(name).name for name in config.plugins)
    named = config.model_copy(update={"plugins": plugins})
    return _settings_key(named, named.model_dump(mode="json", exclude={"seed", "logging"}))


def changed_settings(config: RunConfig) -> Tables:
    """The settings of a run that are not defaults, and the kind of every component, but for the seed."""
    whole = config.model_dump(mode="json", exclude={"seed"})
    changed = config.model_dump(mode="json", exclude={"seed"}, exclude_defaults=True)
    bare = {name: _without_settings(whole[name]) for name in FAMILIES}
    return dict(_with_kind(bare | changed, whole))


def _laid_over(data: Tables, overrides: Sequence[str]) -> Tables:
    for override in overrides:
        data = with_kinds(apply_override(data, override), RunConfig)
    return data


def _cells(one: Combination, makers: _Makers, out: Path) -> Iterator[Cell]:
    data = one.settings
    model, folder = makers.resolve(_model_path(data), one.labels)
    # The name of a warm start holds its settings, so it may stand for it where the run is named.
    named = _with_path(data, model or folder)
    recipe = makers.found[model].recipe if model else None
    if recipe is not None:  # it need not be there yet, so nobody could look how it was taught
        named = {"prompt": recipe.prompt.model_dump(mode="json"), **named}
    config = parse_config(RunConfig, named, imports_plugins=makers.imports_plugins)
    kinds = "-".join([config.env.kind, config.algorithm.kind, config.filter.kind])
    stem = f"{kinds}-{config_key(config)}"
    located = config.model_copy(update={"model": config.model.model_copy(update={"path": folder})})
    for seed in one.seeds:
        shown = " ".join([*one.labels.values(), f"seed {seed}"])
        folder_of_run = out / RUNS / f"{stem}-seed{seed}"
        job = Job(shown, located.model_copy(update={"seed": seed}), folder_of_run)
        yield Cell(one.labels, seed, job, model)


class _Makers:
    """Finds, for a model path, the model that must be made; each is made once."""

    def __init__(
        self,
        scale: Scale | None,
        folder: Path,
        start: str,
        overrides: Sequence[str],
        *,
        imports_plugins: bool,
    ) -> None:
        self.recipes = load_scale(scale).warm_starts if scale else {}
        self.folder = folder
        self.start = start
        """What the user gave as the model to start from."""
        self.overrides = overrides
        self.imports_plugins = imports_plugins
        self.found: dict[str, Model] = {}

    def resolve(self, path: str, labels: Mapping[str, str]) -> tuple[str, str]:
        """Name of the model to make (empty for none) and the path that a run is given."""
        if not path.startswith(WARM):
            return self._plain(self.start or path)
        try:
            wanted = path.removeprefix(WARM).format_map(dict(labels))
        except KeyError as error:
            raise ConfigError(f"model.path {path} needs the list {error.args[0]!r}") from None
        except (IndexError, ValueError, AttributeError) as error:
            raise ConfigError(f"model.path {path} names no warm start: {error}") from None
        if wanted not in self.recipes:
            known = ", ".join(sorted(self.recipes)) or "none at this scale"
            raise ConfigError(f"there is no warm start {wanted!r}; known: {known}")
        model = self._warm_start(wanted)
        return model.name, str(model.folder)

    def in_order(self) -> list[Model]:
        """Those that others are made from come first."""
        return sorted(self.found.values(), key=lambda model: model.recipe is not None)

    def _warm_start(self, wanted: str) -> Model:
        data: Tables = with_kinds(self.recipes[wanted], WarmstartConfig)
        for override in self.overrides:
            data = apply_override(data, override)
        given = _model_path(data, WarmstartConfig().model.path)
        needs, folder = "", given
        if "new" not in data:
            needs, folder = self._plain(self.start or given)
        tables = _with_path(data, needs or folder)
        named = parse_config(WarmstartConfig, tables, imports_plugins=self.imports_plugins)
        key = _settings_key(named, named.model_dump(mode="json"))
        recipe = named.model_copy(update={"model": named.model.model_copy(update={"path": folder})})
        name = f"{wanted}-{key}"
        model = Model(name, self.folder / name, recipe, needs=needs)
        return self.found.setdefault(name, model)

    def _plain(self, path: str) -> tuple[str, str]:
        if not path.startswith(WHEEL):
            return "", path
        wheel = path.removeprefix(WHEEL)
        model = self.found.setdefault(wheel, Model(wheel, self.folder / wheel, None, wheel))
        return model.name, str(model.folder)


def write_run_files(plan: Plan) -> None:
    """The settings of every run and warm start, so that the commands can be given one by one."""
    from ragen2.runs.files import write_atomically

    texts = {job.run_file: dump_config(job.config) for job in plan.jobs}
    texts |= {
        model.recipe_file: dump_config(model.recipe)
        for model in plan.models
        if model.recipe is not None
    }
    try:
        for file, text in texts.items():
            if file.is_file() and file.read_text(encoding="utf-8") == text:
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, text)
    except OSError as error:
        raise ConfigError(
            f"{plan.out} cannot be written: {error.strerror}; choose another folder with --out"
        ) from error


def _split_overrides(overrides: Sequence[str]) -> tuple[str, list[str]]:
    """``model.path=X`` is what warm starts begin with, where there are any; the rest is for all runs."""
    start = ""
    others = []
    for override in overrides:
        path, separator, value = override.partition("=")
        if separator and path.strip() == "model.path":
            start = value.strip().strip("\"'")
        else:
            others.append(override)
    return start, others


def _refuse_one_for_several(cells: Sequence[Combination]) -> None:
    """One model in the place of several would be one run under several labels."""
    paths = dict.fromkeys(_model_path(one.settings) for one in cells)
    plain = [path for path in paths if not path.startswith(WARM)]
    if len(plain) > 1:
        raise ConfigError(
            f"--set model.path would put one model in the place of {len(plain)}: {', '.join(plain)}; leave "
            "it out, or name your folders in a grid of your own"
        )


def _model_path(settings: Tables, default: str = "") -> str:
    model = settings.get("model", {})
    if not isinstance(model, Mapping):
        raise ConfigError(f"model must be a table of settings, got {model!r}")
    return str(model.get("path", default or RunConfig().model.path))


def _is_of_model(override: str) -> bool:
    """Whether it is about the device or precision, which a warm start has too."""
    return override.partition("=")[0].strip() in {"model.device", "model.precision", "model.engine"}


def _with_path(data: Tables, path: str) -> Tables:
    return {**data, "model": {**data.get("model", {}), "path": path}}


def _cell_name(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{axis} {label}" for axis, label in labels.items()) or "the only cell"


def _without_settings(component: Any) -> Any:
    return [{} for _ in component] if isinstance(component, list) else {}


def _with_kind(changed: Any, whole: Any) -> Any:
    """``changed`` as far as ``whole`` has it, and the kind of every component, which is always a default."""
    if isinstance(whole, dict):
        kind = {"kind": whole["kind"]} if "kind" in whole else {}
        return kind | {key: _with_kind(changed[key], whole[key]) for key in changed if key in whole}
    if isinstance(whole, list):
        return [_with_kind(*pair) for pair in zip(changed, whole, strict=True)]
    return changed


def _settings_key(config: BaseModel, whole: Mapping[str, Any]) -> str:
    """A short name of what ``whole`` has of the settings that are not defaults."""
    changed = _with_kind(config.model_dump(mode="json", exclude_defaults=True), whole)
    text = json.dumps(changed, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=5).hexdigest()
