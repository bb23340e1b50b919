"""The docs are true: every command, block, example, link, setting and metric in them is tried."""

from __future__ import annotations

import functools
import json
import re
import shlex
import shutil
import signal
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from command_line import run_python, start_program
from gguf_models import write_embedded_gguf
from ragen2 import reference
from ragen2.cli.app import app
from ragen2.config import FAMILIES, RunConfig, default_run_file
from ragen2.reference import board_pictures
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory
from ragen2.runs.trajectories import read_png
from ragen2.trainer.warmstart import WarmstartConfig
from seeing_models import tiny_seeing_model

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *sorted(DOCS.glob("*.md")),
        *sorted(DOCS.glob("diagnostics/*.md")),
    )
}
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("[0-9]*.py"))
EMBEDDED = ROOT / "src" / "ragen2" / "models" / "ragen2-tiny"
SLOW_PAGES = {
    "docs/diagnostics/scopes.md",
    "docs/performance.md",
    "docs/quickstart.md",
    "docs/recipes.md",
    "docs/report.md",
    "docs/reproducing.md",
    "docs/vision.md",
}
"""Pages whose commands are only asked for their help by ``make test``: run, they take longer."""
SHORT_RUN = "runs/first"
"""The run directory that the docs' commands may speak of as made by an earlier command."""


@dataclass(frozen=True)
class Block:
    """A fenced block; one whose first line is ``# name.ext`` is a file of that name."""

    language: str
    text: str

    @property
    def file(self) -> str | None:
        found = re.match(r"# ([\w-]+\.(?:py|toml))\n", self.text)
        return found[1] if found else None


def blocks(page: Path, *languages: str) -> list[Block]:
    fenced = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [Block(*found) for found in fenced if not languages or found[0] in languages]


def commands(page: Path) -> list[str]:
    """Command lines: those behind ``$`` in console blocks, all but comments in bash blocks."""
    found = []
    for block in blocks(page, "console", "bash"):
        lines = block.text.replace("\\\n", " ").splitlines()
        if block.language == "console":
            assert lines[0].startswith("$ "), f"{page.name}: a console block starts with $"
            found += [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        else:
            found += [line for line in lines if line.strip() and not line.startswith("#")]
    return found


def words_of(command: str) -> list[str]:
    """The words of a command line behind its variables (``PYTHON=python3.12 make train``)."""
    words = shlex.split(command)
    while words and re.fullmatch(r"[A-Z]+=\S+", words[0]):
        words.pop(0)
    return words


def run(arguments: list[str], folder: Path, stdin: str = "") -> str:
    """Run a Python program away from the checkout and offline; its output, or a failed test."""
    done = run_python(folder, *arguments, given=stdin)
    told = f"{shlex.join(arguments)}\n{done.stdout}{done.stderr}"
    assert done.returncode == 0, told
    assert "Traceback" not in done.stderr, told
    return done.stdout


@functools.cache
def run_example(name: str) -> str:
    return run([str(ROOT / "examples" / name)], ROOT)


class Shell:
    """Tries a documented command in a cheap form; a form it does not know is a failed test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, command: str) -> None:
        words = words_of(command)
        form = getattr(self, f"_{words[0]}", None)
        assert form is not None, f"no way to try {command!r}; teach Shell its form"
        form(words[1:])

    def _make(self, words: list[str]) -> None:
        """The target exists, and what ARGS hands on to a program is something it takes."""
        makefile = (ROOT / "Makefile").read_text()
        targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split()
        settings = dict(word.split("=", 1) for word in words if "=" in word)
        (target,) = (word for word in words if "=" not in word)
        assert target in targets, f"make {target}: the Makefile has {targets}"
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
        arguments = shlex.split(settings.pop("ARGS", ""))
        assert not settings, f"make {target}: unknown {settings}"
        if arguments and target == "train":
            self._ragen2(["train", *arguments])
        elif arguments:
            assert target == "test", f"make {target} takes no ARGS"
            run(["-m", "pytest", "--collect-only", *arguments], ROOT)

    def _python(self, words: list[str]) -> None:
        script, arguments = words[0], words[1:]
        folder, name = script.split("/")
        if folder == "benchmarks":
            run([str(ROOT / script), *arguments], ROOT)
            return
        assert (folder, arguments) == ("examples", [])
        assert name in EXAMPLES
        run_example(name)

    def _ragen2(self, words: list[str]) -> None:
        verb, rest = words[0], words[1:]
        if verb in {"pull", "watch"}:
            getattr(self, f"_{verb}")(rest)
            return
        few = ["--set", "rollout.prompts=4", "--set", "rollout.group_size=4"]
        cheaper = {
            "train": ["--dry-run"],
            "eval": ["--tasks", "8", *few],
            "preflight": few,
            "probe": [
                "--set=rollout.prompts=2",
                "--set=rollout.group_size=2",
                "--set=env.max_turns=1",
            ],
            "audit": [],
            "report": [],
            "warmstart": ["--set", "steps=1", "--set", "batch=4"],
            "envs": [],
            "experiment": ["--dry-run"],
            "bench": ["--prompts", "2", "--repeats", "1"],
        }
        assert verb in cheaper, f"no cheap form of ragen2 {verb}; teach Shell one"
        arguments = [verb, *rest, *cheaper[verb]]
        stdin = "hint\nquit\n" if rest[:1] == ["play"] else ""
        run(["-m", "ragen2", *arguments], self.folder, stdin)

    def _watch(self, words: list[str]) -> None:
        """Until it says where it listens; then it is interrupted, as a reader would do.

        Any free port will do: the documented one may be taken here.
        """
        process = start_program(self.folder, "watch", *words, "--port", "0")
        assert process.stdout is not None
        told = next((line for line in process.stdout if "http://" in line), "")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        assert (process.returncode, errors) == (0, ""), errors
        assert told.startswith("watching at http://")

    def _pull(self, words: list[str]) -> None:
        """No download: the name is known, and the embedded model stands in for what it brings.

        It is what any GGUF file holds, too, and that is converted.
        """
        from ragen2.backends.wheel_models import WHEEL_MODELS

        name, out_flag, out = words
        assert out_flag == "--out"
        if name.endswith(".gguf"):
            write_embedded_gguf(self.folder / name)
            run(["-m", "ragen2", "pull", *words], self.folder)
            return
        assert name in WHEEL_MODELS
        shutil.copytree(EMBEDDED, self.folder / out)


@pytest.fixture(scope="session")
def short_run(tmp_path_factory) -> Path:
    """A real run of the embedded default, made short; KL is on so that its metric appears."""
    folder = tmp_path_factory.mktemp("docs")
    settings = {
        "steps": 1,
        "rollout.group_size": 8,
        "evaluation.tasks": 8,
        "algorithm.kl_coefficient": 0.01,
    }
    overrides = [f"--set={name}={value}" for name, value in settings.items()]
    run(["-m", "ragen2", "train", *overrides, "--out", SHORT_RUN], folder)
    return folder / SHORT_RUN


@pytest.fixture(scope="session")
def ppo_run(tmp_path_factory) -> Path:
    """The shortest run with what the default leaves out: a critic, the gradient probe, a curriculum."""
    folder = tmp_path_factory.mktemp("ppo")
    settings = {
        "steps": 2,
        "diagnostics": [],
        "env.max_turns": 1,
        "rollout.prompts": 4,
        "rollout.group_size": 4,
        "filter.kind": "keep_all",
        "algorithm.kind": "ppo",
        "algorithm.kl_coefficient": 0.01,
        "probe.every": 2,
        "probe.buckets": 2,
        "curriculum.mode": "adaptive",
        "evaluation.tasks": 1,
        "evaluation.second_temperature": 0.5,
        "evaluation.probe_prompts": 0,
    }
    overrides = [f"--set={name}={value}" for name, value in settings.items()]
    run(["-m", "ragen2", "train", *overrides, "--out", "run"], folder)
    return folder / "run"


@pytest.fixture(scope="session")
def seeing_run(tmp_path_factory) -> Path:
    """The shortest run of an agent that is shown images."""
    folder = tmp_path_factory.mktemp("seeing")
    settings = {
        "steps": 1,
        "model.path": tiny_seeing_model(folder / "model"),
        "diagnostics": '[{kind="vision", resamples=100}]',
        "env.observation": "image+text",
        "env.max_turns": 2,
        "rollout.max_tokens": 8,
        "rollout.prompts": 4,
        "rollout.group_size": 4,
        "evaluation.tasks": 1,
        "evaluation.probe_prompts": 0,
    }
    overrides = [f"--set={name}={value}" for name, value in settings.items()]
    run(["-m", "ragen2", "train", *overrides, "--out", "run"], folder)
    return folder / "run"


@pytest.fixture
def page_folder(tmp_path, short_run) -> Path:
    """A folder to run a page's commands in: the short run is there, nothing of the checkout is."""
    shutil.copytree(short_run, tmp_path / SHORT_RUN)
    return tmp_path


def write_files(page: Path, folder: Path) -> None:
    for block in blocks(page):
        if block.file:
            with (folder / block.file).open("a") as file:
                file.write(block.text)


def pages_with(*languages: str) -> list[str]:
    return [name for name, path in PAGES.items() if blocks(path, *languages)]


@pytest.mark.parametrize("name", sorted(SLOW_PAGES))
def test_every_option_of_a_page_exists(name):
    """A word that a verb does not know is refused, also where ``--help`` follows."""
    for command in commands(PAGES[name]):
        program, *words = words_of(command)
        if program == "ragen2":
            result = CliRunner().invoke(app, [*words, "--help"], catch_exceptions=False)
            assert result.exit_code == 0, f"{command}\n{result.output}"
        else:
            assert program in {"make", "python"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW_PAGES else [])
        for name in pages_with("console", "bash")
    ],
)
def test_every_command_of_a_page_runs(name, page_folder):
    write_files(PAGES[name], page_folder)
    shell = Shell(page_folder)
    for command in commands(PAGES[name]):
        shell.run(command)


@pytest.mark.parametrize("command", ["rm -rf /", "ragen2 audit x", "make coffee", "python -c 1"])
def test_a_command_that_cannot_be_tried_is_a_failure(command, tmp_path):
    with pytest.raises((AssertionError, ValueError)):
        Shell(tmp_path).run(command)


@pytest.mark.parametrize("name", pages_with("python"))
def test_the_python_blocks_of_a_page_run_in_order(name, tmp_path):
    script = tmp_path / "page.py"
    script.write_text("\n".join(block.text for block in blocks(PAGES[name], "python")))
    run([str(script)], tmp_path)


@pytest.mark.parametrize("name", pages_with("toml"))
def test_the_toml_blocks_of_a_page_are_valid(name):
    for block in blocks(PAGES[name], "toml"):
        assert tomllib.loads(block.text)


def test_every_fenced_block_is_of_a_language_that_is_tried():
    languages = {block.language for page in PAGES.values() for block in blocks(page)}
    assert languages <= {"console", "bash", "python", "toml", "text"}
    unnamed = [name for name, page in PAGES.items() if re.search(r"^```\n\S", page.read_text())]
    assert not unnamed, f"a fenced block without a language in {unnamed}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_shows_something(name):
    assert len(run_example(name).splitlines()) > 3


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_fits_a_page(name):
    assert len((ROOT / "examples" / name).read_text().splitlines()) <= 80


def test_the_environment_in_extending_is_the_one_of_the_example():
    (block,) = [block for block in blocks(DOCS / "extending.md") if block.file == "my_env.py"]
    code = block.text.partition("\n")[2]
    assert code in (ROOT / "examples" / "05_write_an_env.py").read_text()
    assert len([line for line in code.splitlines() if line.strip()]) <= 40


def test_the_page_starts_with_fifteen_settings_among_them_all_that_the_default_run_sets():
    default = tomllib.loads(default_run_file().read_text())
    tables = {name: value for name, value in default.items() if isinstance(value, dict)}
    paths = {name for name in default if name not in tables}
    paths |= {f"{table}.{name}" for table, values in tables.items() for name in values}
    assert paths <= set(reference.CHANGED_MOST)
    assert len(reference.CHANGED_MOST) == 15
    rows = re.findall(r"^\| `([\w.]+)` \|", (DOCS / reference.PAGE).read_text(), re.MULTILINE)
    assert tuple(rows[:15]) == reference.CHANGED_MOST


def test_the_run_file_page_is_up_to_date():
    assert (DOCS / reference.PAGE).read_text() == reference.run_file_page(), "run make docs"


def test_the_metrics_of_the_report_page_are_up_to_date():
    page = (DOCS / reference.METRICS_PAGE).read_text()
    assert reference.METRICS.read_text() == reference.metrics_file(page), "run make docs"


def settings_models() -> Iterator[type[BaseModel]]:
    """Every settings class that a run file or a recipe can reach."""
    for family in FAMILIES.values():
        yield from reference.built_in_kinds(family)
    for model in (RunConfig, WarmstartConfig):
        yield model
        for field in model.model_fields.values():
            value = field.get_default(call_default_factory=True)
            if isinstance(value, BaseModel) and "kind" not in type(value).model_fields:
                yield type(value)
    yield WarmstartConfig.model_fields["new"].annotation.__args__[0]


@pytest.mark.parametrize("model", sorted(set(settings_models()), key=lambda m: m.__name__))
def test_every_setting_is_described(model):
    page = (DOCS / reference.PAGE).read_text()
    for name, field in model.model_fields.items():
        if name == "kind":
            continue
        assert field.description, f"{model.__name__}.{name} has no description"
        assert re.search(rf"^(\| `{name}` \||#+ `\[+{name}\]+`)", page, re.MULTILINE), name


def documented_metrics() -> set[str]:
    rows = re.findall(
        r"^\| `(\w+/[\w/@]+)`( ±)? \|", (DOCS / "metrics.md").read_text(), re.MULTILINE
    )
    names = {name for name, _ in rows}
    assert len(names) == len(rows), "a metric is listed twice"
    return names | {f"{name}_{end}" for name, mark in rows if mark for end in ("low", "high")}


def emitted_metrics(run: Path) -> set[str]:
    """Names in a run's records; scopes share one row, ``collapse/SCOPE/...``, and so do buckets."""
    scope = re.compile(r"^collapse/(?:first_turn|turn_\d+|trajectory|probe)/")
    bucket = re.compile(r"^probe/(?:bucket_\d+|all)/")
    turn = re.compile(r"^vision/turn_\d+/")
    names = {name for record in RunDirectory.open(run).records() for name in record.metrics}
    plain = {turn.sub("vision/first_turn/", name) for name in names}
    return {bucket.sub("probe/BUCKET/", scope.sub("collapse/SCOPE/", name)) for name in plain}


def test_every_metric_of_a_run_is_documented_and_the_other_way_round(
    short_run, ppo_run, seeing_run
):
    runs = (short_run, ppo_run, seeing_run)
    emitted = {name for one in runs for name in emitted_metrics(one)}
    assert emitted - documented_metrics() == set(), "emitted, but not in docs/metrics.md"
    large = {f"collapse/SCOPE/retrieval_accuracy@{rank}" for rank in (16, 32)}  # of many prompts
    assert documented_metrics() - emitted == large, "in docs/metrics.md, but not emitted"


def test_every_phase_of_a_step_is_documented(short_run, ppo_run):
    page = (DOCS / "metrics.md").read_text().partition("## Seconds")[2]
    records = [r for run in (short_run, ppo_run) for r in RunDirectory.open(run).records()]
    phases = {name for record in records for name in record.seconds}
    assert phases == set(re.findall(r"`(\w+)`", page)) - {"seconds"}


def test_the_fields_of_records_and_trajectories_are_documented(short_run):
    line = next((short_run / "rollouts").glob("*.jsonl")).read_text().splitlines()[0]
    trajectory = json.loads(line)
    fields = {*StepRecord.model_fields, *trajectory, *trajectory["turns"][0]}
    section = (DOCS / "architecture.md").read_text().partition("## The run directory")[2]
    assert fields - set(re.findall(r"`(\w+)`", section)) == set()


def test_the_run_directory_holds_what_is_documented(short_run):
    section = (DOCS / "architecture.md").read_text().partition("## The run directory")[2]
    listed = re.findall(r"^\| `([\w.]+)/?", section, re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in short_run.iterdir())


def test_the_import_rows_are_those_that_are_checked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    rows = re.findall(r"^\| \d+ \| (.*) \|$", (DOCS / "architecture.md").read_text(), re.MULTILINE)
    checked = [layer.replace("ragen2.", "").split(" | ") for layer in layers]
    assert [re.findall(r"`(\w+)`", row) for row in rows] == checked


def test_the_readme_names_the_two_commands():
    assert commands(ROOT / "README.md")[:2] == ["make train", "make test"]


def test_the_readme_fits_and_holds_the_table_of_the_default_run():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 125
    table = text.partition("<!-- default-run -->")[2].partition("<!-- /default-run -->")[0]
    assert "held-out success" in table


def test_the_tree_for_contributors_is_the_tree_there_is():
    page = ROOT / "CONTRIBUTING.md"
    (tree,) = [block for block in blocks(page, "text") if "src/ragen2/" in block.text]
    named = re.findall(r"^  ([\w.]+)/? ", tree.text, re.MULTILINE)
    package = ROOT / "src" / "ragen2"
    there = {path.name for path in package.iterdir() if not path.name.startswith(("__", "."))}
    assert sorted(named) == sorted(there - {"py.typed"})


def test_files_named_in_the_docs_exist():
    for name, page in PAGES.items():
        named = re.findall(r"`((?:\w+/)+\w+\.(?:py|md|toml|html))`", page.read_text())
        for path in named:
            places = [ROOT / path, ROOT / "src" / "ragen2" / path]
            assert any(place.exists() for place in places), f"{name} names {path}"


def anchors(page: Path) -> set[str]:
    """Headings as GitHub links to them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", [*PAGES, "CHANGELOG.md"])
def test_links_lead_somewhere(name):
    page = ROOT / name
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{name} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{name}: no heading for {target}"


@pytest.mark.parametrize("picture", sorted((DOCS / "images").glob("*.svg")), ids=lambda p: p.name)
def test_a_picture_is_used_and_needs_nothing_else(picture):
    assert any(f"images/{picture.name})" in page.read_text() for page in PAGES.values())
    ElementTree.fromstring(picture.read_text())  # noqa: S314 - our own file
    assert not re.search(r"var\(|url\(|href|<script|@import", picture.read_text())


def test_pictures_are_drawn_from_run_directories(short_run, tmp_path):
    (tmp_path / "docs").mkdir()
    both = ["--grounded", str(short_run), "--ungrounded", str(short_run)]
    run(["-m", "ragen2.reference", "docs", *both], tmp_path)
    drawn = {path.name for path in (tmp_path / "docs" / "images").iterdir()}
    assert drawn == {path.name for path in (DOCS / "images").glob("*.svg")}
    assert (tmp_path / "docs" / reference.PAGE).read_text() == reference.run_file_page()


def test_pictures_of_the_report_are_shown_and_small():
    page = PAGES["docs/report-pictures.md"].read_text()
    found = sorted((DOCS / "images" / "report").iterdir())
    assert [path.name for path in found] == sorted(re.findall(r"images/report/([\w-]+\.png)", page))
    assert max(path.stat().st_size for path in found) <= 300_000


def test_pictures_of_boards_are_up_to_date_and_shown():
    folder = DOCS / "environments"
    expected = board_pictures()
    assert {path.name for path in (folder / "images").iterdir()} == set(expected)
    for name, picture in expected.items():
        shown = read_png((folder / "images" / name).read_bytes())
        assert np.array_equal(shown, read_png(picture)), f"{name} is out of date; make docs"
        assert any(f"(images/{name})" in page.read_text() for page in folder.glob("*.md"))
