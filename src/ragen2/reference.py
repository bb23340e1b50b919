"""Writes docs/run-file.md and the table of docs/environments.md from the code, pictures from real runs.

What docs/metrics.md says of each metric goes the other way, into the file that the report page reads.

``python -m ragen2.reference docs`` writes the pages; with ``--grounded RUN --ungrounded RUN`` it also
draws the pictures from those two run directories.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ragen2.component import Component
from ragen2.config import FAMILIES, RunConfig, default_run_file
from ragen2.curriculum import levels_of
from ragen2.envs import Env
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.errors import ConfigError
from ragen2.reports.data import charts
from ragen2.reports.figures import Chart, Figure, chart_figure, plane_figure, standalone
from ragen2.reports.load import Run, load_run_directory
from ragen2.runs.files import write_atomically
from ragen2.runs.trajectories import png_bytes
from ragen2.trainer.warmstart import WarmstartConfig

PAGE = "run-file.md"
METRICS_PAGE = "metrics.md"
ENVIRONMENTS_PAGE = "environments.md"
METRICS = Path(charts.__file__).with_name(charts.METRICS_FILE)
COLLAPSE = "collapse/first_turn/"
CHANGED_MOST = (
    "steps",
    "seed",
    "env.kind",
    "env.observation",
    "model.path",
    "rollout.prompts",
    "rollout.group_size",
    "rollout.max_tokens",
    "filter.kind",
    "filter.mass",
    "algorithm.kind",
    "learner.lr",
    "learner.minibatches",
    "evaluation.every",
    "evaluation.tasks",
)
"""What recipes, experiments and the commands of the docs set most often."""
INTRODUCTION = """\
# Run file

This page is made by `make docs` from the settings in the code; do not edit it.

A run file says what is trained, on what and how. These are the settings that people change; all others are
further down, table by table.

{changed_most}
`env.observation` and `filter.mass` are those of the default kinds; other kinds have settings of their own.

A run file is a TOML file, and each table below is a table of the file. The embedded default, which
`ragen2 train` uses without a file:

```toml
{default}```

A setting that is left out has its default. An unknown name, a wrong type or a value out of range is an
error, and all mistakes of a file are reported at once, each on its own line.

- `--set path=value` overrides one setting: `--set filter.mass=0.8`. The value is TOML; what is not TOML
  is taken as text.
- `base = "other.toml"` at the top starts from another file in the same folder; this file's settings lie
  over it. A table whose `kind` changes replaces the old table whole.
- `kind` chooses a member of a family (`env`, `filter`, `algorithm`, `diagnostics`); the other settings of
  the table are those of that member. [extending.md](extending.md) says how to add one.
- `--dry-run` prints the settings that differ from their defaults and trains nothing; `--dry-run --full`
  prints every setting. Either output is a run file that gives the same run. The full one is saved as
  `run.toml` in the run directory.
"""
WARMSTART = """\
## Warm-start recipe

`ragen2 warmstart` takes a recipe instead of a run file. `[env]`, `[model]`, `[rollout]` and `[learner]`
are the tables above{exceptions}.
"""


TABLE_BEGIN, TABLE_END = "<!-- begin: written by make docs -->", "<!-- end -->"
LEVELS_BEGIN, LEVELS_END = "<!-- levels: written by make docs -->", "<!-- end of levels -->"
TABLE_HEADER = ("Environment", "Stochastic", "Multi-turn", "State", "Reward")
BOARD_PIXELS = 40
"""Size of a cell in the pictures of boards."""


def main() -> None:
    """Write the page, and the pictures when two runs are given."""
    parser = argparse.ArgumentParser(prog="python -m ragen2.reference", description=__doc__)
    parser.add_argument("folder", type=Path, help="the docs folder")
    parser.add_argument("--grounded", type=Path, metavar="RUN", help="a healthy run")
    parser.add_argument("--ungrounded", type=Path, metavar="RUN", help="a collapsed run")
    given = parser.parse_args()
    if (given.grounded is None) != (given.ungrounded is None):
        parser.error("--grounded and --ungrounded go together")
    write_atomically(given.folder / PAGE, run_file_page())
    metrics = given.folder / METRICS_PAGE
    if metrics.is_file():  # a folder that is not this repository's has no list of metrics
        write_atomically(METRICS, metrics_file(metrics.read_text("utf-8")))
    environments = given.folder / ENVIRONMENTS_PAGE
    if environments.is_file():
        write_atomically(environments, with_environments(environments.read_text("utf-8")))
    boards = given.folder / "environments" / "images"
    boards.mkdir(parents=True, exist_ok=True)
    for name, picture in board_pictures().items():
        (boards / name).write_bytes(picture)
    if given.grounded is not None:
        (given.folder / "images").mkdir(exist_ok=True)
        grounded, ungrounded = (
            load_run_directory(path) for path in (given.grounded, given.ungrounded)
        )
        for name, figures in pictures(grounded, ungrounded).items():
            write_atomically(given.folder / "images" / name, standalone(figures))


def run_file_page() -> str:
    """The whole page as Markdown."""
    default = default_run_file().read_text(encoding="utf-8")
    parts = [INTRODUCTION.format(changed_most=_changed_most(), default=default)]
    parts.append(f"## Top level\n\n{_table(RunConfig)}")
    for name, field in RunConfig.model_fields.items():
        family, inner = FAMILIES.get(name), _inner_model(field)
        if family is not None:
            parts.extend(_family(name, family, field))
        elif inner is not None:
            parts.append(f"## `[{name}]`\n\n{_first_line(inner)}\n\n{_table(inner)}")
    shared = {name for name in RunConfig.model_fields if name in WarmstartConfig.model_fields}
    parts.append(WARMSTART.format(exceptions=_exceptions(shared)) + f"\n{_table(WarmstartConfig)}")
    for name, field in WarmstartConfig.model_fields.items():
        inner = _inner_model(field)
        if inner is not None and name not in shared:
            parts.append(f"### `[{name}]`\n\n{_first_line(inner)}\n\n{_table(inner)}")
    return "\n".join(parts)


def _changed_most() -> str:
    """One row for each setting of ``CHANGED_MOST``."""
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for path in CHANGED_MOST:
        table, _, name = path.rpartition(".")
        field = RunConfig.model_fields[table or name]
        model = type(field.get_default(call_default_factory=True)) if table else RunConfig
        setting = model.model_fields[name]
        meaning = f"{field.description}; see [`[{table}]`](#{table})"
        if name != "kind":
            meaning = _meaning(setting)
        rows.append(f"| `{path}` | `{_default(setting)}` | {_cell(meaning)} |")
    return "\n".join(rows) + "\n"


def metrics_file(page: str) -> str:
    """Unit and meaning of every metric of docs/metrics.md, as JSON."""
    rows = charts.read_page(page)
    return json.dumps(rows, ensure_ascii=False, indent=1) + "\n"


def built_in_kinds(family: type[Component]) -> list[type[Component]]:
    """Members that come with the package; plug-ins describe themselves."""
    members = [family.find(kind) for kind in family.kinds()]
    return [member for member in members if member.__module__.startswith("ragen2.")]


def environments_table() -> str:
    """One row per environment with its default settings; names link to their pages."""
    members = [Env.find(member.model_fields["kind"].default) for member in built_in_kinds(Env)]
    rows = [TABLE_HEADER, ("---",) * len(TABLE_HEADER), *map(_environment_row, members)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def levels_table() -> str:
    """One row per environment that has easier levels with its default settings, easiest first."""
    rows = ["| Environment | Levels below the run's own |", "| --- | --- |"]
    for member in built_in_kinds(Env):
        *easier, own = levels_of(Env.from_dict({"kind": member.model_fields["kind"].default}))
        if easier:
            shown = "; ".join(str(level).partition(": ")[2] for level in easier)
            rows.append(f"| {own.env.kind} | {shown} |")
    return "\n".join(rows)


def with_environments(page: str) -> str:
    """The page with fresh tables of environments and of their levels between their marks."""
    page = _with_table(page, environments_table(), TABLE_BEGIN, TABLE_END)
    return _with_table(page, levels_table(), LEVELS_BEGIN, LEVELS_END)


def _with_table(page: str, table: str, begin: str, end: str) -> str:
    before, has_begin, rest = page.partition(begin)
    _, has_end, after = rest.partition(end)
    if not has_begin or not has_end:
        raise ConfigError(f"the page has no place for the table; add the lines {begin} and {end}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def environment_page(member: type[Env]) -> str:
    """The docs page of an environment, named after its folder, or its file where a folder has several."""
    *_, folder, module = member.__module__.split(".")
    return f"{folder if module == 'env' else module}.md"


def board_pictures() -> dict[str, bytes]:
    """A PNG of the first training task of every environment that can be seen."""
    images = {kind: Env.from_dict({"kind": kind}).start(HELD_OUT_SEEDS, 0) for kind in Env.kinds()}
    return {
        f"{kind}.png": png_bytes(image)
        for kind, episode in images.items()
        if (image := episode.image(BOARD_PIXELS)) is not None
    }


def pictures(grounded: Run, ungrounded: Run) -> dict[str, list[Figure]]:
    """The docs' pictures by file name, each comparing the two runs."""
    runs = {"grounded": grounded, "ungrounded": ungrounded}

    def compare(title: str, metric: str, **more: Any) -> Figure:
        lines = [run.series(f"{COLLAPSE}{metric}", name) for name, run in runs.items()]
        return chart_figure(Chart(title, lines, floor=0.0, **more))

    chance = grounded.series(f"{COLLAPSE}retrieval_chance").values[-1]
    bound = grounded.series(f"{COLLAPSE}mi_bound").values[-1]
    paths = [
        (run.series(f"{COLLAPSE}conditional_entropy", name), run.series(f"{COLLAPSE}mi_estimate"))
        for name, run in runs.items()
    ]
    entropy = compare("Entropy H(Z|X)", "conditional_entropy", unit="nats per token")
    retrieval = compare(
        "Retrieval accuracy", "retrieval_accuracy", levels=[("chance", chance)], ceiling=1.0
    )
    return {"collapse.svg": [entropy, retrieval], "regime-plane.svg": [plane_figure(paths, bound)]}


def _environment_row(member: type[Env]) -> tuple[str, ...]:
    name = f"[{member.model_fields['kind'].default}](environments/{environment_page(member)})"
    is_multi_turn = member.model_fields["max_turns"].default > 1
    flags = ("yes" if flag else "no" for flag in (member.stochastic, is_multi_turn))
    return (name, *flags, member.state_kind, member.reward_kind)


def _family(name: str, family: type[Component], field: FieldInfo) -> Iterator[str]:
    default = field.get_default(call_default_factory=True)
    is_list = isinstance(default, tuple)
    kinds = ", ".join(f'`"{one.kind}"`' for one in (default if is_list else (default,)))
    header = f"[[{name}]]" if is_list else f"[{name}]"
    yield f"## `{header}`\n\n{(field.description or '').capitalize()}. Default: {kinds}.\n"
    for member in built_in_kinds(family):
        kind = member.model_fields["kind"].default
        yield f'### `kind = "{kind}"`\n\n{_first_line(member)}\n\n{_table(member)}'


def _table(model: type[BaseModel]) -> str:
    """One row per setting; settings that are tables of their own have their own section."""
    rows = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        is_table = name in FAMILIES or _inner_model(field) is not None
        if name != "kind" and not is_table:
            cells = (f"`{name}`", _type(field), f"`{_default(field)}`", _meaning(field))
            rows.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(rows) + "\n" if len(rows) > 2 else "No settings.\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _meaning(field: FieldInfo) -> str:
    return (field.description or "").replace("<", "&lt;")


def _type(field: FieldInfo) -> str:
    return ", ".join([_word(field.annotation), *_limits(field)])


def _word(annotation: object) -> str:
    words = {int: "whole number", float: "number", bool: "true or false", str: "text"}
    inner = get_args(annotation)
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in inner)
    if get_origin(annotation) is tuple:
        return f"list of {_word(inner[0])}"
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(_word(option) for option in inner if option is not type(None))
    return words[annotation] if isinstance(annotation, type) else str(annotation)


def _limits(field: FieldInfo) -> Iterator[str]:
    for limit in field.metadata:
        match limit:
            case Ge():
                yield f"at least {limit.ge:g}"
            case Gt():
                yield f"above {limit.gt:g}"
            case Le():
                yield f"at most {limit.le:g}"
            case Lt():
                yield f"below {limit.lt:g}"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "must be given"
    return json.dumps(value)


def _inner_model(field: FieldInfo) -> type[BaseModel] | None:
    """The settings class of a table, also where the table may be left out."""
    annotation = field.annotation
    options = (
        get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    )
    for option in options:
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None


def _exceptions(shared: set[str]) -> str:
    """Where a recipe's default of a shared table differs from a run file's."""
    found = []
    for name in sorted(shared):
        run, recipe = (
            model.model_fields[name].get_default(call_default_factory=True)
            for model in (RunConfig, WarmstartConfig)
        )
        if isinstance(run, BaseModel) and run != recipe:
            found += [
                f"`{name}.{inner}` is `{json.dumps(value)}` unless given"
                for inner, value in recipe.model_dump(mode="json").items()
                if value != run.model_dump(mode="json")[inner]
            ]
    return f", except that {', '.join(found)}" if found else ""


def _first_line(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().splitlines()[0].replace("``", "`")


if __name__ == "__main__":
    main()
