"""``ragen2 report`` as a user meets it: pages, figures, exit codes, one line for a mistake."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from command_line import Done, assert_refused, start_python
from ragen2.cli.app import app
from ragen2.errors import RagenError
from ragen2.runs.record import StepRecord
from ragen2.runs.scores import list_scores, read_scores
from ragen2.runs.store import RunDirectory, read_sessions

Program = Callable[..., Done]


@pytest.fixture
def run(short_run: tuple[Path, Done], tmp_path: Path) -> Path:
    """A copy of the finished run, as ``run``."""
    shutil.copytree(short_run[0], tmp_path / "run")
    return tmp_path / "run"


def invoke(*words: str | Path) -> str:
    done = CliRunner().invoke(app, ["report", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_run_gets_its_page_again(program: Program, run: Path) -> None:
    (run / "report.html").unlink()
    done = program("report", "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("report run/report.html (")
    assert (run / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_training_leaves_what_the_page_needs(run: Path) -> None:
    steps = [record.step for record in RunDirectory(run).records()]
    scored = dict(list_scores(run))
    assert list(scored) == steps, "the default run scores every step, and the probe set at step 0"
    assert [scope.name for scope in read_scores(scored[0]).scopes] == ["probe"]
    assert read_scores(scored[1]).scopes[0].name == "first_turn"
    (session,) = read_sessions(run)
    assert session.step == 0
    assert "torch" in session.versions


def test_several_inputs_share_a_page_here(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run, tmp_path / "second")
    monkeypatch.chdir(tmp_path)
    assert invoke("run", "second").startswith("report report.html (")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<title>run, second" in page


def test_figures_are_files_of_the_format_asked_for(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", "steps = 2")
    for step in (1, 2):
        run.append(StepRecord(step=step, metrics={"rollout/success": 0.1, "reward/mean": 0.2}))
    told = invoke(run.path, "--figures", tmp_path / "pictures", "--format", "pdf")
    written = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert written == ["reward.pdf", "success.pdf"]
    assert "2 figures in " in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("gone",), "gone does not exist; check the path"),
        (
            ("folder",),
            "folder is neither a run directory (no run.toml in it) nor an audit's folder",
        ),
        (
            ("run", "--format", "pdf"),
            "--format is for --figures DIR; add that or leave --format out",
        ),
        (("run", "--figures", "f", "--format", "gif"), "--format takes png, svg, pdf; got 'gif'"),
        (
            ("run", "--out", "folder"),
            "--out folder is a folder; give a file such as folder/report.html",
        ),
        (
            ("run", "--out", "gone/page.html"),
            "report gone/page.html cannot be written: No such file",
        ),
    ],
)
def test_a_mistake_is_one_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], told: str
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RagenError) as error:
        CliRunner().invoke(app, ["report", *words], catch_exceptions=False)
    assert str(error.value).startswith(told)
    assert "\n" not in str(error.value)


def test_a_mistake_is_exit_code_2(program: Program, tmp_path: Path) -> None:
    assert_refused(program("report", "gone"), tmp_path, "gone does not exist; check the path")


def test_a_report_needs_no_torch(run: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ragen2.reports.page import write_report;"
        "write_report([Path('run')], Path('page.html'));"
        "print(sorted({'torch', 'transformers', 'matplotlib'} & set(sys.modules)))"
    )
    assert start_python(run.parent, "-c", code).stdout == "[]\n"
