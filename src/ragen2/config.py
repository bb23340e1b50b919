"""A run as a value: read TOML, apply overrides, report every mistake at once, write it back.

A run file is a TOML file whose tables are the fields below. ``base = "other.toml"`` starts from another
file, one level deep.
"""

from __future__ import annotations

import copy
import math
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import tomli_w
from pydantic import (
    BaseModel,
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ragen2.algorithms import GRPO, Algorithm
from ragen2.backends.settings import LearnerSettings, ModelSettings, ServerSettings
from ragen2.component import (
    LONGEST_VALUE,
    Component,
    Settings,
    UnknownKind,
    explain,
    installed_plugins,
    load_installed_plugins,
    load_plugin,
    shortened,
    suggest,
)
from ragen2.consent import PluginRule, absolute_plugins, find_risks, require_consent
from ragen2.curriculum import Curriculum
from ragen2.diagnostics import (
    Actions,
    Collapse,
    Diagnostic,
    Flow,
    Reward,
    Surface,
    Triage,
    Vision,
)
from ragen2.diagnostics.judging.warning import EarlyWarning
from ragen2.envs import Env, FrozenLake
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.errors import ConfigError
from ragen2.filtering import Filter, TopP
from ragen2.rollout.prompts import PromptSettings, taught_prompt
from ragen2.rollout.settings import Rollout
from ragen2.runs.loggers import LoggerName
from ragen2.runs.toml_files import parse_toml, read_toml_file, refuse_excess

Config = TypeVar("Config", bound=BaseModel)


class Evaluation(Settings):
    """Held-out evaluation during training."""

    every: int = Field(
        20, ge=1, description="evaluated at steps that are multiples of this, and at both ends"
    )
    tasks: int = Field(256, ge=1, le=100_000, description="held-out tasks, the same every time")
    own_tasks: bool = Field(
        False, description="whether each run seed has held-out tasks of its own, not all the same"
    )
    temperature: float = Field(1.0, gt=0.0, le=10.0, description="sampling temperature")
    second_temperature: float = Field(
        0.0, ge=0.0, le=10.0, description="the same tasks again at this temperature; 0 is off"
    )
    probe_prompts: int = Field(
        8, ge=0, le=100_000, description="held-out prompts cross-scored every time; 0 is off"
    )
    probe_traces: int = Field(8, ge=2, le=10_000, description="replies to each of them")

    def first_task(self, seed: int) -> int:
        """The number of a run's first held-out task; seeds far apart share theirs when all are used up."""
        return seed % (HELD_OUT_SEEDS // self.tasks) * self.tasks if self.own_tasks else 0

    @field_validator("probe_prompts")
    @classmethod
    def _enough_to_compare(cls, value: int) -> int:
        if value == 1:
            raise ValueError(
                "must be 0 (off) or at least 2, got 1: one prompt has nothing to be compared with"
            )
        return value


class Checkpoints(Settings):
    """What is kept on disk."""

    every: int = Field(
        10, ge=1, description="steps between checkpoints; the last step always has one"
    )
    keep: int = Field(2, ge=1, description="newest checkpoints to keep")
    rollouts_every: int = Field(1, ge=1, description="steps between saved rollouts")


class WarningSettings(EarlyWarning):
    """When a fall of MI or retrieval is an alarm, and what is done about it."""

    response: Literal["off", "warn", "checkpoint", "stop", "command"] = Field(
        "warn",
        description="nothing; a note; also the last healthy checkpoint kept and this state saved; "
        "also the run ended; or a note and `command` run",
    )
    command: str = Field(
        "", description="a program and its arguments, run without a shell when an alarm is raised"
    )
    timeout: float = Field(60.0, gt=0.0, description="seconds after which the command is ended")

    @field_validator("command")
    @classmethod
    def _can_be_split(cls, value: str) -> str:
        try:
            shlex.split(value)
        except ValueError as error:
            raise ValueError(f"{value!r} is not a command line: {error}") from error
        return value

    @model_validator(mode="after")
    def _command_and_response_agree(self) -> Self:
        if self.response == "command" and not self.command.strip():
            raise ValueError('response = "command" needs a command, got none; set warning.command')
        if self.response != "command" and self.command:
            raise ValueError(
                f'a command is run with response = "command" only, got {self.response!r}; '
                "change the response or remove the command"
            )
        return self


def default_diagnostics() -> tuple[Diagnostic, ...]:
    """All that is cheap at every step; wider scopes of collapse, and the flow, now and then.

    Vision is silent where no images are shown.
    Together they take less than a tenth of a step of the embedded default (docs/diagnostics/scopes.md).
    """
    wide = Collapse(scopes=("turns", "trajectory"), every=10, max_traces=16, interval="population")
    return (Surface(), Actions(), Reward(), Triage(), Collapse(), wide, Flow(), Vision())


class Stops(Settings):
    """When a run ends before its last step. 0 switches a rule off."""

    variance_steps: int = Field(
        10, ge=0, description="steps in a row with hardly any reward variance that end the run"
    )
    variance_share: float = Field(
        0.1, gt=0.0, lt=1.0, description="share of the first steps' reward std that is hardly any"
    )
    variance_baseline: int = Field(
        10, ge=1, description="first steps whose mean reward std is the baseline"
    )
    empty_steps: int = Field(
        5, ge=0, description="steps in a row from which the filter keeps nothing that end the run"
    )
    success_evaluations: int = Field(
        5, ge=0, description="evaluations in a row with hardly any success that end the run"
    )
    success_least: float = Field(
        0.01, ge=0.0, le=1.0, description="held-out success below which there is hardly any"
    )


class Probe(Settings):
    """When and how gradients are taken apart during training."""

    every: int = Field(
        0, ge=0, description="probed at steps that are multiples of this; 0 is never"
    )
    buckets: int = Field(6, ge=1, description="equal buckets of prompts by reward variance")
    edges: tuple[float, ...] = Field(
        (), description="lower edges of variance buckets from 0 up, in place of equal ones"
    )

    @field_validator("edges")
    @classmethod
    def _rise_from_zero(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        rises = all(low < high < math.inf for low, high in pairwise(value))
        if value and (value[0] != 0.0 or not rises):
            shown = ", ".join(f"{edge:g}" for edge in value)
            raise ValueError(f"must start at 0 and rise, got {shown}; for example 0, 0.05, 0.2")
        return value


class Logging(Settings):
    """Loggers that see every record. The run directory has them all in any case."""

    to: tuple[LoggerName, ...] = Field((), description="each needs the extra of its name")
    project: str = Field(
        "ragen2", min_length=1, description="what wandb, trackio and mlflow file the run under"
    )

    @field_validator("to")
    @classmethod
    def _each_once(cls, value: tuple[LoggerName, ...]) -> tuple[LoggerName, ...]:
        for name in value:
            if value.count(name) > 1:
                raise ValueError(f"names {name!r} more than once; once is enough")
        return value


class RunConfig(Settings):
    """Everything that decides a run's result."""

    seed: int = Field(0, ge=0, description="names every random stream of the run")
    steps: int = Field(200, ge=1, description="rollout-update iterations")
    plugins: tuple[str, ...] = Field(
        (), description="modules, or .py files beside this one, that bring more kinds"
    )
    loss_scale: Literal["none", "linear", "sqrt"] = Field(
        "none", description="multiply the loss by the kept ratio, its square root, or 1"
    )
    env: SerializeAsAny[Env] = Field(default_factory=FrozenLake, description="the task")
    model: ModelSettings = Field(default_factory=ModelSettings, description="the agent")
    rollout: Rollout = Field(default_factory=Rollout, description="how episodes are played")
    prompt: PromptSettings = Field(
        default_factory=PromptSettings, description="what the agent is shown besides observations"
    )
    curriculum: Curriculum = Field(
        default_factory=Curriculum, description="how hard training tasks are"
    )
    filter: SerializeAsAny[Filter] = Field(default_factory=TopP, description="prompts to update on")
    algorithm: SerializeAsAny[Algorithm] = Field(default_factory=GRPO, description="the loss")
    learner: LearnerSettings = Field(default_factory=LearnerSettings, description="the optimiser")
    diagnostics: tuple[SerializeAsAny[Diagnostic], ...] = Field(
        default_factory=default_diagnostics, description="what is measured"
    )
    evaluation: Evaluation = Field(default_factory=Evaluation, description="held-out success")
    warning: WarningSettings = Field(
        default_factory=WarningSettings, description="the alarm at early collapse"
    )
    stops: Stops = Field(default_factory=Stops, description="when a run ends by itself")
    probe: Probe = Field(default_factory=Probe, description="gradients by reward variance")
    checkpoints: Checkpoints = Field(
        default_factory=Checkpoints, description="what is kept on disk"
    )
    logging: Logging = Field(default_factory=Logging, description="loggers of other makers")
    server: ServerSettings = Field(
        default_factory=ServerSettings, description="how a served model is asked"
    )

    @model_validator(mode="after")
    def _choose_style(self) -> Self:
        """A model of ours goes on with the prompt it was taught with, all others begin with the reference."""
        if self.prompt.style == "auto":
            taught = taught_prompt(self.model.path) or {"style": "reference"}
            own = {name: getattr(self.prompt, name) for name in self.prompt.model_fields_set}
            self.__dict__["prompt"] = PromptSettings(**{**taught, **own, "style": taught["style"]})
        return self

    @field_validator("curriculum")
    @classmethod
    def _curriculum_is_possible(cls, value: Curriculum, info: ValidationInfo) -> Curriculum:
        env, rollout = info.data.get("env"), info.data.get("rollout")
        if env is None or rollout is None or not env.is_checked:  # their mistakes are told first
            return value
        if problem := value.problem(env, rollout.prompts):
            raise ValueError(problem)
        return value


FAMILIES: Mapping[str, type[Component]] = {
    "env": Env,
    "filter": Filter,
    "algorithm": Algorithm,
    "diagnostics": Diagnostic,
}


RECIPES = Path(str(resources.files("ragen2") / "recipes"))
WARM_STARTS = "ragen2_tiny"
"""How the names of those recipes begin that are for ``ragen2 warmstart``; the others are run files."""


def default_run_file() -> Path:
    """The embedded default: tiny model, FrozenLake, GRPO, SNR filter, diagnostics on."""
    return RECIPES / "frozen_lake_tiny.toml"


def recipe_names() -> list[str]:
    """The embedded run files, by the names that stand for them."""
    return sorted(
        file.stem for file in RECIPES.glob("*.toml") if not file.stem.startswith(WARM_STARTS)
    )


def warm_start_names() -> list[str]:
    """The embedded recipes of ``ragen2 warmstart``, by the names that stand for them."""
    return sorted(file.stem for file in RECIPES.glob(f"{WARM_STARTS}*.toml"))


def find_run_file(file: Path) -> Path:
    """``file`` itself, or the embedded recipe when it is a bare name that no file here has."""
    return _find(file, recipe_names(), "neither a run file nor an embedded recipe")


def find_warm_start(file: Path) -> Path:
    """``file`` itself, or the embedded recipe of a warm start."""
    return _find(file, warm_start_names(), "neither a recipe file nor an embedded warm start")


def _find(file: Path, names: list[str], otherwise: str) -> Path:
    is_bare_name = len(file.parts) == 1 and not file.suffix
    if file.exists() or not is_bare_name:
        return file
    if file.name not in names:
        raise ConfigError(f"{file.name} is {otherwise}; {suggest(file.name, names)}")
    return RECIPES / f"{file.name}.toml"


def load_run(
    file: Path | None, overrides: Sequence[str] = (), *, plugins: PluginRule = "known"
) -> RunConfig:
    """Read a run file, an embedded recipe by its name, or the default; apply ``path=value`` overrides."""
    found = find_run_file(file) if file else default_run_file()
    return load_config(RunConfig, found, overrides, plugins=plugins)


def load_config(
    model: type[Config],
    file: Path,
    overrides: Sequence[str] = (),
    *,
    plugins: PluginRule = "known",
) -> Config:
    """Read ``file`` and apply overrides, as any configuration model.

    A file whose code the user has not agreed to is refused; ``plugins="trust"`` agrees, and ``"skip"``
    imports nothing: settings of kinds that are then unknown stay unchecked.
    """
    return resolve_config(model, read_toml(file, model), overrides, f"run file {file}", plugins)


def resolve_config(
    model: type[Config],
    data: Mapping[str, Any],
    overrides: Sequence[str],
    source: str,
    plugins: PluginRule,
) -> Config:
    """The tables of a file with overrides laid over them; ``source`` names the file."""
    own: dict[str, Any] = {}
    for override in overrides:
        own = apply_override(own, override)
    data = with_overrides(data, overrides, model)
    risks = find_risks(data, own)
    if plugins != "skip":
        require_consent(source, risks, trust=plugins == "trust")
    return parse_config(model, data, imports_plugins=plugins != "skip")


def read_toml(file: Path, model: type[BaseModel] = RunConfig) -> dict[str, Any]:
    """A TOML file as a dictionary, laid over its ``base`` if it names one.

    Tables get their default kinds before anything is laid over them: naming the same kind above is
    no change of kind, and must not drop the other settings.
    """
    data = _with_absolute_paths(_parse_file(file), file.parent)
    if "prompt" not in data and (file.parent / "steps.jsonl").exists():
        data["prompt"] = {"style": "brief"}  # a run of a version that had no other
    base = data.pop("base", None)
    if base is None:
        return with_kinds(data, model)
    if not isinstance(base, str):
        raise ConfigError(f"run file {file}: base must be a path to a TOML file, got {base!r}")
    lower = file.parent / base
    below = _with_absolute_paths(_parse_file(lower), lower.parent)
    if "base" in below:
        raise ConfigError(
            f"run file {file}: {base} has a base of its own; bases go one level deep, name that one"
        )
    return with_kinds(merge(with_kinds(below, model), data), model)


def with_kinds(data: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Give every component's table without a ``kind`` the default one of ``model``."""
    named = dict(data)
    for name in FAMILIES.keys() & data.keys() & model.model_fields.keys():
        value = data[name]
        if isinstance(value, Mapping) and "kind" not in value:
            default = model.model_fields[name].get_default(call_default_factory=True)
            if isinstance(default, Component):
                named[name] = {"kind": default.model_dump()["kind"], **value}
    return named


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one table over another; a table whose ``kind`` changes replaces the old one whole."""
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        is_new_kind = _kind(value) not in (None, _kind(old))
        if isinstance(value, Mapping) and isinstance(old, Mapping) and not is_new_kind:
            merged[name] = merge(old, value)
        else:
            merged[name] = value
    return merged


def apply_override(data: Mapping[str, Any], override: str) -> dict[str, Any]:
    """Apply ``path.to.setting=value``; the value is TOML, or plain text when it is not.

    ``path.to.list+=value`` adds to a list.
    """
    path, separator, text = override.partition("=")
    adds, path = path.endswith("+"), path.removesuffix("+")
    names = [name.strip() for name in path.split(".")]
    if not separator or not all(names):
        raise ConfigError(
            f"--set takes path=value, got {shortened(override)}; for example --set filter.mass=0.8"
        )
    try:
        value = _value(text)
        if adds:
            value = _added(data, names, value)
        for name in reversed(names):
            value = {name: value}
        refuse_excess(value)
    except ValueError as error:
        raise ConfigError(f"--set {path[:LONGEST_VALUE]}: {error}") from error
    return merge(copy.deepcopy(dict(data)), value)


def _added(data: Any, names: Sequence[str], more: Any) -> list[Any]:
    """The list that ``names`` lead to, or none, with one more value or several."""
    for name in names:
        data = data.get(name) if isinstance(data, Mapping) else None
    if not isinstance(data, list | tuple | None):
        raise ValueError(  # noqa: TRY004 - a user's mistake
            f"+= adds to a list, and it is {shortened(data)}; use ="
        )
    return [*(data or ()), *(more if isinstance(more, list) else [more])]


def _value(text: str) -> Any:
    """A TOML value, or the text itself."""
    try:
        return parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def with_overrides(
    data: Mapping[str, Any], overrides: Sequence[str], model: type[BaseModel] = RunConfig
) -> dict[str, Any]:
    """Apply overrides in their order; each may count on the default kinds of what came before."""
    done = with_kinds(data, model)
    for override in overrides:
        done = with_kinds(apply_override(done, override), model)
    return done


def parse_config(
    model: type[Config], data: Mapping[str, Any], *, imports_plugins: bool = True
) -> Config:
    """Check a dictionary against a configuration model; all mistakes are reported, one per line.

    Its plug-ins are imported without a question: a dictionary is the caller's own.
    """
    mistakes: list[str] = []
    data = _with_absolute_paths(data, Path())
    plugins = data.get("plugins", ())
    names = [str(name) for name in plugins] if isinstance(plugins, list | tuple) else []
    if len(set(names)) < len(names):  # one of the file's, named again
        data["plugins"] = names = list(dict.fromkeys(names))
    if imports_plugins:
        load_installed_plugins()
        for name in names:
            load_plugin(name)
    knows_all = imports_plugins or not (names or installed_plugins())
    ready: dict[str, Any] = {}
    for name, value in with_kinds(data, model).items():
        family = FAMILIES.get(name) if name in model.model_fields else None
        try:
            ready[name] = (
                value if family is None else _build(family, value, name, knows_all=knows_all)
            )
        except ConfigError as error:
            mistakes.extend(str(error).splitlines())
    try:
        config = model.model_validate(ready)
    except ValidationError as error:
        mistakes.extend(explain(error, model))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return config


def dump_config(config: BaseModel) -> str:
    """The resolved configuration as TOML that ``load_config`` reads back to the same value."""
    try:
        return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))
    except (ValueError, TypeError) as error:  # a plug-in's
        raise ConfigError(f"a setting has a value that no run file can hold: {error}") from error


def changed_settings(config: BaseModel) -> dict[str, Any]:
    """The settings that differ from their defaults, as tables that ``parse_config`` reads back.

    A component's table is held against the defaults of its kind, and names the kind; the prompt against
    that which the model would have by itself.
    """
    defaults = _defaults(type(config))
    if isinstance(config, RunConfig):
        defaults["prompt"] = RunConfig(model=config.model).prompt
    return _changed(config, defaults)


def unchecked_kinds(config: BaseModel) -> dict[str, list[str]]:
    """Kinds of plug-ins that were not imported, by the setting that names them."""
    found: dict[str, list[str]] = {}
    for name in FAMILIES.keys() & type(config).model_fields.keys():
        value = getattr(config, name)
        for one in value if isinstance(value, tuple) else (value,):
            if not one.is_checked:
                found.setdefault(name, []).append(one.kind)
    return found


def count_settings(tables: Any) -> int:
    """Values in a configuration's tables; one in a list of tables counts in each of them."""
    if isinstance(tables, Mapping):
        return sum(map(count_settings, tables.values()))
    if isinstance(tables, list) and any(isinstance(one, Mapping) for one in tables):
        return sum(map(count_settings, tables))
    return 1


def _changed(config: BaseModel, defaults: Mapping[str, Any]) -> dict[str, Any]:
    dumped = config.model_dump(mode="json", exclude_none=True)
    found: dict[str, Any] = {}
    for name, default in defaults.items():
        value = getattr(config, name)
        if name not in dumped or value == default:
            continue
        if isinstance(value, Component):
            found[name] = _changed_component(value)
        elif isinstance(value, BaseModel) and isinstance(default, BaseModel):
            found[name] = _changed(value, dict(default))
        elif isinstance(value, tuple) and any(isinstance(one, Component) for one in value):
            found[name] = [_changed_component(one) for one in value]
        else:
            found[name] = dumped[name]
    return found


def _changed_component(component: Component) -> dict[str, Any]:
    if not component.is_checked:
        return component.model_dump()
    kind = component.model_dump()["kind"]
    return {"kind": kind, **_changed(component, _defaults(type(component)))}


def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    fields = model.model_fields.items()
    return {name: field.get_default(call_default_factory=True) for name, field in fields}


def _build(family: type[Component], value: Any, name: str, *, knows_all: bool) -> Any:
    if name == "diagnostics":
        if not isinstance(value, list):
            raise ConfigError(
                f"{name} must be a list of tables, got {shortened(value)}; write [[{name}]]"
            )
        return _build_list(family, value, name, knows_all=knows_all)
    return _build_one(family, value, name, knows_all=knows_all)


def _build_list(
    family: type[Component], tables: list[Any], path: str, *, knows_all: bool
) -> tuple[Component, ...]:
    built: list[Component] = []
    mistakes: list[str] = []
    for index, table in enumerate(tables):
        try:
            built.append(_build_one(family, table, f"{path}[{index}]", knows_all=knows_all))
        except ConfigError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return tuple(built)


def _build_one(family: type[Component], value: Any, path: str, *, knows_all: bool) -> Component:
    if isinstance(value, Component):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path} must be a table with a kind, got {shortened(value)}")
    try:
        return family.from_dict(value, path)
    except UnknownKind:
        if knows_all:
            raise
        return family.stand_in(value)


def _kind(table: Any) -> Any:
    kind = table.get("kind") if isinstance(table, Mapping) else None
    return kind.lower() if isinstance(kind, str) else kind


def _with_absolute_paths(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Relative plug-ins and templates are beside the file that names them."""
    plugins, prompt = data.get("plugins"), data.get("prompt")
    named: dict[str, Any] = (
        {"plugins": absolute_plugins(plugins, folder)} if isinstance(plugins, list) else {}
    )
    if (
        isinstance(prompt, Mapping)
        and isinstance(prompt.get("template"), str)
        and prompt["template"]
    ):
        named["prompt"] = {**prompt, "template": str(folder / prompt["template"])}
    return {**data, **named}


def _parse_file(file: Path) -> dict[str, Any]:
    try:
        return read_toml_file(file)
    except OSError as error:
        raise ConfigError(f"run file {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"run file {file} is not UTF-8 text; is it a TOML file?") from error
    except ValueError as error:
        raise ConfigError(f"run file {file} is not valid TOML: {error}") from error
