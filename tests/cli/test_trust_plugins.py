"""Nothing of a run file or run directory runs, and nothing is sent elsewhere, before the user agrees."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Done, assert_refused, records, run_program, settings

pytestmark = pytest.mark.usefixtures("trusts_nothing")
Program = Callable[..., Done]

TINY = (
    "steps=2",
    "rollout.prompts=2",
    "rollout.group_size=2",
    "rollout.max_tokens=8",
    "evaluation.tasks=2",
    "evaluation.probe_prompts=0",
    "diagnostics=[]",
    "checkpoints.every=1",
)
PLUGIN = """
import os
from pathlib import Path
from typing import Literal

import numpy as np
from ragen2.filtering import Filter

with Path(os.environ["RAGEN2_STATE"], "ran").open("a") as file:
    file.write("x")


class Mine(Filter):
    kind: Literal["mine"] = "mine"
    share: float = 0.5

    def keep(self, scores_P):
        return np.ones(len(scores_P), dtype=bool)
"""


@pytest.fixture(scope="module")
def made_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a plug-in, made by someone else: this user's consent is kept elsewhere."""
    folder = tmp_path_factory.mktemp("others")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAGEN2_STATE", str(tmp_path_factory.mktemp("others_state")))
        (folder / "mine.py").write_text(PLUGIN)
        own = settings('plugins=["mine.py"]', "filter.kind=mine", *TINY)
        done = run_program(folder, "train", *own, "--out", "run")
        assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.fixture
def theirs(made_run: Path, tmp_path: Path) -> Path:
    """A copy of that run as it came over the network, with its plug-in beside it."""
    shutil.copytree(made_run, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "run" / "run.toml"
    file.write_text(file.read_text().replace(str(made_run), str(tmp_path)))
    return tmp_path


@pytest.fixture
def ran(trusts_nothing: Path) -> Callable[[], bool]:
    """Whether the plug-in has run."""
    return (trusts_nothing / "ran").exists


def asked(source: str, what: str) -> str:
    return f"run file {source} would {what}; look at it, and allow it with --trust-plugins"


VERBS = {
    "eval": ("eval", "run", "--tasks", "1"),
    "eval of a checkpoint": ("eval", "run/checkpoints/step_000002", "--tasks", "1"),
    "resume": ("train", "--resume", "run"),
    "resume in processes": ("train", "--resume", "run", "--processes", "2"),
    "train": ("train", "run/run.toml", "--out", "new"),
    "train twice": ("train", "run/run.toml", "--seeds", "2", "--out", "new"),
    "preflight": ("preflight", "run/run.toml"),
    "probe": ("probe", "run", "--prompts", "2", "--group-size", "2"),
    "bench": ("bench", "step", "run/run.toml", "--repeats", "1", "--warmup", "1"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_runs_a_plugin_of_a_run_before_consent(
    verb: str, program: Program, theirs: Path, ran: Callable[[], bool]
) -> None:
    done = program(*VERBS[verb])
    line = asked("run/run.toml", f"import {theirs}/mine.py")
    assert_refused(done, theirs, line, left=["mine.py", "run"])
    assert not ran()


@pytest.mark.parametrize("verb", ["eval", "train", "preflight"])
def test_consent_lets_it_run_and_is_remembered(
    verb: str, program: Program, theirs: Path, ran: Callable[[], bool]
) -> None:
    first = program(*VERBS[verb], "--trust-plugins")
    assert first.returncode == 0, first.stderr
    assert f"run file run/run.toml may from now on import {theirs}/mine.py" in first.stderr
    assert ran()
    shutil.rmtree(theirs / "new", ignore_errors=True)
    again = program(*VERBS[verb])
    assert (again.returncode, "mine.py" in again.stderr) == (0, False)


def test_a_plugin_that_has_changed_is_asked_about_again(program: Program, theirs: Path) -> None:
    assert program(*VERBS["eval"], "--trust-plugins").returncode == 0
    with (theirs / "mine.py").open("a") as file:
        file.write("x = 1\n")
    line = asked("run/run.toml", f"import {theirs}/mine.py")
    assert_refused(program(*VERBS["eval"]), theirs, line, left=["mine.py", "run"])


def test_a_run_of_ones_own_is_resumed_without_a_question(program: Program, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    own = settings('plugins=["mine.py"]', "filter.kind=mine", *TINY)
    first = program("train", *own, "--out", "run")
    assert (first.returncode, first.stderr) == (0, "")
    (tmp_path / "elsewhere").mkdir()
    resumed = run_program(tmp_path / "elsewhere", "train", "--resume", tmp_path / "run")
    assert (resumed.returncode, resumed.stderr) == (0, "")


def test_several_runs_and_processes_inherit_consent(
    program: Program, theirs: Path, trusts_nothing: Path
) -> None:
    (trusts_nothing / "trusted").write_text("no folder: nothing can be remembered here")
    done = program(*VERBS["train twice"], "--trust-plugins")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "consent is not remembered" in done.stderr
    assert [len(records(theirs / "new" / f"run-seed{seed}")) for seed in (0, 1)] == [3, 3]


def test_a_dry_run_imports_nothing_and_says_so(
    program: Program, theirs: Path, ran: Callable[[], bool]
) -> None:
    for words in (("train", "run/run.toml"), ("train", "--resume", "run")):
        done = program(*words, "--dry-run")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(
            "# not checked, because a dry run imports no plug-in: filter mine\n"
        )
        found = tomllib.loads(done.stdout)["filter"]
        assert (found["kind"], found["share"]) == ("mine", 0.5)
    assert not ran()


def test_a_dry_run_still_finds_mistakes(program: Program, theirs: Path) -> None:
    changed = settings("env.kind=FrozenLak", "steps=0")
    done = program("train", *changed, "--dry-run")
    lines = (
        "unknown env kind 'FrozenLak'; did you mean 'FrozenLake'?",
        "steps must be greater than or equal to 1, got 0",
    )
    assert_refused(done, theirs, *lines, left=["mine.py", "run"])
    (theirs / "mine.py").unlink()
    done = program("train", "run/run.toml", "--dry-run")
    assert done.returncode == 2
    assert f"plugin file {theirs}/mine.py does not exist" in done.stderr


def test_a_dry_run_of_an_experiment_imports_nothing(
    program: Program, tmp_path: Path, ran: Callable[[], bool]
) -> None:
    (tmp_path / "grids").mkdir()
    (tmp_path / "grids" / "mine.py").write_text(PLUGIN)
    (tmp_path / "grids" / "mine.toml").write_text(
        'seeds = 1\nrun = "frozen_lake_grpo"\n[settings]\nplugins = ["mine.py"]\n'
        'filter.kind = "mine"\nsteps = 2\n[grid]\n"filter.share" = [0.2, 0.4]\n'
    )
    words = ("experiment", "grids/mine.toml", "--out", "out")
    done = program(*words, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "which imports no plug-in: not filter mine" in " ".join(done.stdout.split())
    line = f"grid grids/mine.toml would import {tmp_path}/grids/mine.py"
    refused = program(*words)
    assert refused.stderr == f"ragen2: {line}; look at it, and allow it with --trust-plugins\n"
    assert refused.returncode == 2
    assert not ran()


def test_a_relative_plugin_is_beside_the_file_that_names_it(
    program: Program, tmp_path: Path, ran: Callable[[], bool]
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "run.toml").write_text('plugins = ["mine.py"]\n')
    (tmp_path / "mine.py").write_text(PLUGIN)  # of the current folder: none of theirs
    done = program("train", "theirs/run.toml", "--trust-plugins")
    assert done.returncode == 2
    assert f"plugin file {tmp_path}/theirs/mine.py does not exist" in done.stderr
    assert not ran()


def test_folders_that_lead_elsewhere_need_consent(
    program: Program, short_run: tuple[Path, Done], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(short_run[0], tmp_path / "run"))
    (run / "checkpoints").rename(tmp_path / "elsewhere")
    (run / "checkpoints").symlink_to(tmp_path / "elsewhere")
    done = program("train", "--resume", "run")
    assert (done.returncode, done.stderr) == (
        2,
        f"ragen2: run run would write to {tmp_path}/elsewhere, where checkpoints leads; look at it, and "
        "allow it with --trust-plugins\n",
    )
    assert program("train", "--resume", "run", "--trust-plugins").returncode == 0
    assert program("train", "--resume", "run").returncode == 0


@pytest.mark.parametrize("folder", ["probe", "probe/step_000002"])
def test_a_probe_is_not_written_through_a_link_without_consent(
    program: Program, short_run: tuple[Path, Done], tmp_path: Path, folder: str
) -> None:
    run = Path(shutil.copytree(short_run[0], tmp_path / "run"))
    (tmp_path / "elsewhere").mkdir()
    (run / folder).parent.mkdir(exist_ok=True)
    (run / folder).symlink_to(tmp_path / "elsewhere")
    done = program("probe", "run", "--step", "2", "--prompts", "2", "--group-size", "2")
    what = f"write to {tmp_path}/elsewhere, where {folder} leads"
    line = f"ragen2: run run would {what}; look at it, and allow it with --trust-plugins\n"
    assert (done.returncode, done.stderr) == (2, line)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_command_of_a_run_needs_consent(program: Program, tmp_path: Path) -> None:
    text = '[warning]\nresponse = "command"\ncommand = "touch owned"\n'
    (tmp_path / "run.toml").write_text(text)
    done = program("train", "run.toml", *settings(*TINY))
    assert_refused(
        done, tmp_path, asked("run.toml", "run the command 'touch owned'"), left=["run.toml"]
    )
    own = settings(*TINY, "warning.response=command", "warning.command=touch owned")
    assert program("train", *own, "--out", "run").returncode == 0


FOREIGN = '[server]\nurl = "http://192.0.2.1:8000#m"\n'


def test_a_server_elsewhere_needs_consent(program: Program, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(f'[model]\nengine = "server"\n{FOREIGN}')
    line = asked(
        "run.toml", "send rollouts and the key in OPENAI_API_KEY to http://192.0.2.1:8000#m"
    )
    assert_refused(program("train", "run.toml"), tmp_path, line, left=["run.toml"])


@pytest.mark.parametrize("trust", [(), ("--trust-plugins",)])
def test_a_run_file_may_not_name_any_variable_as_a_key(
    program: Program, tmp_path: Path, trust: tuple[str, ...]
) -> None:
    (tmp_path / "run.toml").write_text(
        '[model]\nengine = "server"\n[server]\nurl = "http://127.0.0.1:9#m"\napi_key_env = "HOME"\n'
    )
    done = program("train", "run.toml", *trust)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "ragen2: run file run.toml would send the variable HOME as a key; a file may name OPENAI_API_KEY, "
    )
    assert done.stderr.endswith("; for another, add --set server.api_key_env=NAME\n")
    assert len(done.stderr.splitlines()) == 1
