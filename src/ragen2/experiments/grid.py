"""A grid as a value: read its TOML, lay a scale under it, and expand its lists into cells.

A grid names lists; every combination of them is a cell, and every seed of a cell is a run. A name in a list
is either a choice (several settings under one name, from the scale or the grid itself) or, where the list is
called by the path of a setting, a plain value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator

from ragen2.component import Settings, explain, suggest
from ragen2.config import RunConfig as _RunConfig
from ragen2.config import find_run_file, merge, read_toml, with_kinds
from ragen2.consent import absolute_plugins
from ragen2.errors import ConfigError
from ragen2.runs.toml_files import read_toml_file

FOLDER = Path(str(resources.files("ragen2.experiments")))
Scale = Literal["tiny", "small", "full"]
SCALES: tuple[Scale, ...] = ("tiny", "small", "full")
Model = TypeVar("Model", bound=Settings)
Tables = dict[str, Any]
"""Settings of a run, as a run file holds them; not checked yet."""


def _checked(lists: dict[str, list[Any]]) -> dict[str, list[Any]]:
    for axis, values in lists.items():
        if not values:
            raise ValueError(f"the list {axis} is empty; give it a value or remove it")
        if len({str(value) for value in values}) < len(values):
            raise ValueError(f"the list {axis} holds a value twice; once is enough")
    return lists


MOST_SEEDS = 1000
"""Of a cell."""
MOST_CELLS = 10_000
Seed = Annotated[int, Field(ge=0)]
Lists = Annotated[dict[str, list[Any]], AfterValidator(_checked)]


class GridBlock(Settings):
    """Lists whose every combination is a cell."""

    name: str = Field("", description="label of its cells, where a grid has several blocks")
    grid: Lists = Field({}, description="axis: choices by name, or a setting's values")
    settings: Tables = Field({}, description="settings of all its cells")
    seeds: tuple[Seed, ...] = Field((), description="these seeds in place of the experiment's")
    only: tuple[Scale, ...] = Field(SCALES, description="scales that have this block")


class PaperRow(Settings):
    """What the paper says about one number that an analysis finds."""

    claim: str = Field(description="name of the number in the analysis")
    about: str = Field(description="the number in words")
    says: str = Field(description="the paper's value, as printed; empty where it has none")
    expects: Literal["above", "below", "near", "open"] = Field(
        description="the side of 0 that the paper's value, or its argument, puts it on; open: it says nothing"
    )
    value: float | None = Field(
        None, description="the paper's number, in the unit of ours; none where it has words alone"
    )
    within: float | None = Field(
        None, gt=0.0, description="for near: distance from 0 up to which a number counts as none"
    )
    only: tuple[Scale, ...] = Field(SCALES, description="scales whose number it is held against")

    @model_validator(mode="after")
    def _has_a_margin(self) -> Self:
        if (self.expects == "near") != (self.within is not None):
            raise ValueError(f'{self.claim}: `within` goes with expects = "near", and only with it')
        return self


class ScaleChanges(Settings):
    """What one scale has otherwise."""

    settings: Tables = Field({}, description="settings of all cells")
    grid: Lists = Field({}, description="lists in place of those of the same name")
    choices: dict[str, dict[str, Tables]] = Field({}, description="names for several settings")
    seeds: int | None = Field(None, ge=1, le=MOST_SEEDS, description="seeds of every cell, from 0")


class Grid(Settings):
    """An experiment's file."""

    title: str = Field("", description="what it is, in a line")
    question: str = Field("", description="what it asks")
    paper: str = Field("", description="table or figure of the paper")
    analysis: str = Field("summary", description="how its runs are read")
    run: str = Field("", description="run file or recipe below all cells, in place of a scale")
    like: str = Field("", description="an embedded grid whose blocks are also this one's")
    seeds: int = Field(3, ge=1, le=MOST_SEEDS, description="seeds of every cell, from 0")
    settings: Tables = Field({}, description="settings of all cells")
    grid: Lists = Field({}, description="the lists, where there is one block")
    block: tuple[GridBlock, ...] = Field((), description="several blocks of lists")
    choices: dict[str, dict[str, Tables]] = Field({}, description="names for several settings")
    scales: dict[Scale, ScaleChanges] = Field({}, description="what a scale has otherwise")
    claims: tuple[PaperRow, ...] = Field((), description="what the paper says")

    @model_validator(mode="after")
    def _has_one_kind_of_lists(self) -> Self:
        given = [name for name in ("grid", "block", "like") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other; keep one of them")
        return self

    def claims_at(self, scale: Scale | None) -> tuple[PaperRow, ...]:
        """What the paper says about the numbers of a scale; without a scale, everything."""
        return tuple(row for row in self.claims if scale is None or scale in row.only)

    @property
    def words(self) -> frozenset[str]:
        """The labels of all its lists at any scale: what the name of a claim may speak of."""
        blocks = [block for scale in (None, *SCALES) for block in self.blocks(scale)]
        lists = [values for block in blocks for values in block.grid.values()]
        return frozenset(_label(value) for values in lists for value in values)

    def blocks(self, scale: Scale | None) -> tuple[GridBlock, ...]:
        """Its blocks at a scale, with the lists that this scale has otherwise."""
        own = self.block or (GridBlock(grid=self.grid),)
        changed = self.scales[scale].grid if scale in self.scales else {}
        there = [block for block in own if scale is None or scale in block.only]
        axes = {axis for block in there for axis in block.grid}
        unknown = [axis for axis in changed if axis not in axes]
        if unknown:
            raise ConfigError(
                f"scales.{scale}.grid has the list {unknown[0]!r}, which no block has; "
                f"{suggest(unknown[0], axes)}"
            )
        return tuple(
            block.model_copy(
                update={"grid": {axis: changed.get(axis, v) for axis, v in block.grid.items()}}
            )
            for block in there
        )


class CommonFile(Settings):
    """Names that mean the same at every scale."""

    choices: dict[str, dict[str, Tables]]


class ScaleFile(Settings):
    """What an experiment runs on at one scale: base settings, named choices, warm starts."""

    title: str
    keep_weights: bool = Field(description="whether the weights of finished runs stay on disk")
    side_by_side: bool = Field(
        description="whether as many runs as there are cores go on by default"
    )
    settings: Tables
    choices: dict[str, dict[str, Tables]]
    warm_starts: dict[str, Tables] = Field({}, description="recipes by name")


class Combination(Settings):
    """One cell before its seed: labels of its axes, and its settings."""

    labels: dict[str, str]
    settings: Tables
    seeds: tuple[int, ...]


def experiment_names() -> list[str]:
    """The embedded grids."""
    return sorted(file.stem for file in (FOLDER / "grids").glob("*.toml"))


def load_grid(name: str) -> Grid:
    """An embedded grid by its name, or a file."""
    is_ours, file = name in experiment_names(), Path(name)
    if not is_ours and file.suffix != ".toml" and not file.is_file():
        raise ConfigError(
            f"{name} is neither a grid file nor an experiment; {suggest(name, experiment_names())}"
        )
    grid = _read(Grid, FOLDER / "grids" / f"{name}.toml" if is_ours else file)
    if not grid.like:
        return grid
    if grid.like not in experiment_names():
        raise ConfigError(
            f"like = {grid.like!r} is no embedded grid; {suggest(grid.like, experiment_names())}"
        )
    other = load_grid(grid.like)
    return grid.model_copy(
        update={
            "block": other.block or (GridBlock(grid=other.grid),),
            "settings": merge(other.settings, grid.settings),
            "choices": _joined(other.choices, grid.choices),
            "scales": {**other.scales, **grid.scales},
        }
    )


def load_scale(scale: Scale) -> ScaleFile:
    """The embedded file of a scale, with the names that mean the same at every scale."""
    common = _read(CommonFile, FOLDER / "scales" / "common.toml")
    own = _read(ScaleFile, FOLDER / "scales" / f"{scale}.toml")
    return own.model_copy(update={"choices": _joined(common.choices, own.choices)})


def combinations(grid: Grid, scale: Scale | None, seeds: int | None) -> list[Combination]:
    """Every cell of a grid in the order of its lists; the last list changes fastest."""
    return [one for block in grid.blocks(scale) for one in _block_cells(grid, block, scale, seeds)]


def base_settings(grid: Grid, scale: Scale | None) -> Tables:
    """What lies below all cells."""
    if scale is None:
        data = read_toml(find_run_file(Path(grid.run))) if grid.run else {}
    else:
        data = with_kinds(load_scale(scale).settings, _RunConfig)
        changes = grid.scales.get(scale, ScaleChanges())
        return _laid(data, [grid.settings, changes.settings])
    return _laid(data, [grid.settings])


def _block_cells(
    grid: Grid, block: GridBlock, scale: Scale | None, seeds: int | None
) -> Iterator[Combination]:
    choices = grid.choices
    count = seeds or grid.seeds
    if scale is not None:
        changes = grid.scales.get(scale, ScaleChanges())
        choices = _joined(load_scale(scale).choices, choices, changes.choices)
        count = seeds or changes.seeds or grid.seeds
    cells = math.prod(len(values) for values in block.grid.values())
    if cells > MOST_CELLS:
        raise ConfigError(f"the lists make {cells:,} cells; at most {MOST_CELLS:,} can be trained")
    below = _laid(base_settings(grid, scale), [block.settings])
    for values in product(*block.grid.values()):
        chosen = dict(zip(block.grid, values, strict=True))
        tables = [_tables(axis, value, choices) for axis, value in chosen.items()]
        labels = {axis: _label(value) for axis, value in chosen.items()}
        if block.name:
            labels = {"block": block.name, **labels}
        yield Combination(
            labels=labels,
            settings=_laid(below, tables),
            seeds=block.seeds or tuple(range(count)),
        )


def _tables(axis: str, value: Any, choices: Mapping[str, Mapping[str, Tables]]) -> Tables:
    """The settings that a value of an axis stands for."""
    if axis in choices:
        if str(value) not in choices[axis]:
            raise ConfigError(f"unknown {axis} {value!r}; {suggest(str(value), choices[axis])}")
        return dict(choices[axis][str(value)])
    if "." not in axis and axis not in _RunConfig.model_fields:
        known = [*choices, *_RunConfig.model_fields]
        raise ConfigError(
            f"the list {axis!r} is neither a choice nor the path of a setting; {suggest(axis, known)}"
        )
    for name in reversed(axis.split(".")):
        value = {name: value}
    return dict(value)


def _laid(below: Tables, above: Sequence[Tables]) -> Tables:
    data = below
    for table in above:
        data = with_kinds(merge(data, table), _RunConfig)
    return data


def _joined(*layers: Mapping[str, Mapping[str, Tables]]) -> dict[str, dict[str, Tables]]:
    """Choices of several files; a name in a later one replaces that of an earlier."""
    found: dict[str, dict[str, Tables]] = {}
    for layer in layers:
        for axis, names in layer.items():
            found[axis] = {**found.get(axis, {}), **names}
    return found


def _label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _read(model: type[Model], file: Path) -> Model:
    try:
        data = read_toml_file(file)
    except FileNotFoundError:
        raise ConfigError(f"grid file {file} does not exist; check the path") from None
    except OSError as error:
        raise ConfigError(f"grid file {file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"grid file {file} is not valid TOML: {error}") from error
    try:
        return model.model_validate(_with_absolute_plugins(data, file.parent))
    except ValidationError as error:
        raise ConfigError("\n".join(explain(error, model))) from error


def _with_absolute_plugins(value: Any, folder: Path) -> Any:
    """Plug-ins are beside the grid that names them, in whichever of its tables it does."""
    if isinstance(value, list):
        return [_with_absolute_plugins(one, folder) for one in value]
    if not isinstance(value, Mapping):
        return value
    return {
        name: absolute_plugins(inner, folder)
        if name == "plugins"
        else _with_absolute_plugins(inner, folder)
        for name, inner in value.items()
    }
