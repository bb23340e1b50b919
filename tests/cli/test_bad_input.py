"""A user's mistakes: exit code 2, one line a mistake, and nothing on disk is touched."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from command_line import Done, assert_refused, settings, start_python
from ragen2.backends.agent import locate
from ragen2.backends.settings import EMBEDDED

Program = Callable[..., Done]

MISTAKES = {
    "unknown setting": (
        ("train", *settings("rollout.prompt=3")),
        "unknown setting rollout.prompt; did you mean 'prompts'?",
    ),
    "unknown table": (
        ("train", *settings("filtr.mass=0.8")),
        "unknown setting filtr; did you mean 'filter'?",
    ),
    "unknown setting of a component": (
        ("train", *settings("env.sizes=3")),
        "unknown setting env.sizes; did you mean 'size'?",
    ),
    "out of range": (
        ("train", *settings("filter.mass=1.7")),
        "filter.mass must be less than or equal to 1, got 1.7",
    ),
    "wrong type": (
        ("train", *settings("steps=many")),
        "steps must be a valid integer, unable to parse string as an integer, got 'many'",
    ),
    "not path=value": (
        ("train", *settings("steps")),
        "--set takes path=value, got 'steps'; for example --set filter.mass=0.8",
    ),
    "unknown env": (
        ("train", *settings("env.kind=FrozenLak")),
        "unknown env kind 'FrozenLak'; did you mean 'FrozenLake'?",
    ),
    "unknown env to evaluate on": (
        ("eval", EMBEDDED, "--env", "Bandt"),
        "unknown env kind 'Bandt'; did you mean 'Bandit'?",
    ),
    "unknown env to play": (
        ("envs", "play", "Bandt"),
        "unknown env kind 'Bandt'; did you mean 'Bandit'?",
    ),
    "unknown env to check": (
        ("envs", "check", "Bandt"),
        "unknown env kind 'Bandt'; did you mean 'Bandit'?",
    ),
    "unknown setting of an env to check": (
        ("envs", "check", "Bandit", *settings("risky_chanc=1")),
        "unknown setting Bandit.risky_chanc; did you mean 'risky_chance'?",
    ),
    "unknown filter": (
        ("train", *settings("filter.kind=top_q")),
        "unknown filter kind 'top_q'; did you mean 'top_p'?",
    ),
    "too many tasks": (
        ("eval", EMBEDDED, "--tasks", "200000"),
        "evaluation.tasks must be less than or equal to 100000, got 200000",
    ),
    "missing run file": (
        ("train", "nowhere.toml"),
        "run file nowhere.toml cannot be read: No such file or directory",
    ),
    "missing run to resume": (
        ("train", "--resume", "nowhere"),
        "nowhere is not a run directory (no run.toml in it); check the path",
    ),
    "settings for a resumed run": (
        ("train", "--resume", "nowhere", "--out", "new"),
        "--resume takes its settings from the run; leave RUN.toml and --out out, and change some with --set",
    ),
    "missing plug-in": (
        ("envs", "list", "--plugin", "mine.py"),
        "plugin file mine.py does not exist; give a path to a .py file",
    ),
    "unknown setting of a warm start": (
        ("warmstart", *settings("qualit=1")),
        "unknown setting qualit; did you mean 'quality'?",
    ),
    "unknown verb": (
        ("trian",),
        "no such command 'trian'; did you mean 'train'?; see ragen2 --help",
    ),
    "unknown verb below a verb": (
        ("envs", "chek"),
        "no such command 'chek'; did you mean 'check'?; see ragen2 envs --help",
    ),
    "unknown flag": (
        ("train", "--ouut", "3"),
        "unknown option --ouut; did you mean '--out'?; see ragen2 train --help",
    ),
    "unknown flag before the verb": (
        ("--versoin",),
        "unknown option --versoin; did you mean '--version'?; see ragen2 --help",
    ),
    "unknown short flag": (
        ("pull", "-q"),
        "unknown option -q; known: --out; see ragen2 pull --help",
    ),
    "missing argument": (("probe",), "missing argument 'RUN_DIR'; see ragen2 probe --help"),
    "one argument too many": (
        ("envs", "check", "Bandit", "twice"),
        "got unexpected extra argument(s) (twice); see ragen2 envs check --help",
    ),
    "flag without its value": (
        ("eval", EMBEDDED, "--tasks"),
        "option '--tasks' requires an argument; see ragen2 --help",
    ),
    "flag out of range": (
        ("eval", EMBEDDED, "--tasks", "0"),
        "--tasks must be greater than or equal to 1, got '0'; see ragen2 eval --help",
    ),
    "flag of the wrong type": (
        ("envs", "play", "Bandit", "--seed=two"),
        "--seed must be a valid integer, unable to parse string as an integer, got 'two'; "
        "see ragen2 envs play --help",
    ),
    "missing model folder": (
        ("train", *settings("model.path=./nowhere")),
        "model ./nowhere does not exist; give a folder, a GGUF file or a hub id",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(program: Program, tmp_path: Path, mistake: str) -> None:
    args, line = MISTAKES[mistake]
    assert_refused(program(*args), tmp_path, line)


def test_several_mistakes_are_all_told_at_once(program: Program, tmp_path: Path) -> None:
    done = program(
        "train",
        *settings("filter.mass=1.7", "steps=0", "env.sizes=3", "rollot.x=1", "learner.lr=-1"),
        *settings("algorithm.kind=grp"),
    )
    assert_refused(
        done,
        tmp_path,
        "unknown setting env.sizes; did you mean 'size'?",
        "filter.mass must be less than or equal to 1, got 1.7",
        "unknown algorithm kind 'grp'; did you mean 'grpo'?",
        "steps must be greater than or equal to 1, got 0",
        "learner.lr must be greater than 0, got -1",
        "unknown setting rollot; did you mean 'rollout'?",
    )


def test_a_run_file_that_is_not_toml(program: Program, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("steps = [")
    line = "run file run.toml is not valid TOML: Invalid value (at end of document)"
    assert_refused(program("train", "run.toml"), tmp_path, line, left=["run.toml"])


def test_a_run_file_that_is_not_text(program: Program, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe\x00")
    line = "run file run.toml is not UTF-8 text; is it a TOML file?"
    assert_refused(program("train", "run.toml"), tmp_path, line, left=["run.toml"])


def test_a_model_folder_with_damaged_weights(program: Program, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(locate(EMBEDDED).source, tmp_path / "model"))
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:100_000])
    assert_refused(
        program("train", *settings("model.path=./model")),
        tmp_path,
        "model ./model cannot be opened: Error while deserializing header: incomplete metadata, "
        "file not fully covered",
        left=["model"],
    )


def test_a_name_that_is_neither_folder_nor_reachable_on_a_hub(
    program: Program, tmp_path: Path
) -> None:
    done = program("eval", "models/mine")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("ragen2: model models/mine cannot be opened: it is no folder here, ")
    assert line.endswith("the hub cannot be reached; check the spelling, or the network")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f(:\n", "invalid syntax (mine.py, line 1)"),
        ("import nowhere_at_all\n", "No module named 'nowhere_at_all'"),
        (
            "import json\n\njson.loads('{')\n",
            "json.decoder.JSONDecodeError: Expecting property name "
            "enclosed in double quotes: line 1 column 2 (char 1) (mine.py, line 3)",
        ),
        ("raise SystemExit(0)\n", "SystemExit: 0 (mine.py, line 1)"),
        ("import sys\nsys.exit()\n", "SystemExit (mine.py, line 2)"),
        (
            "class Stop(BaseException): ...\nraise Stop('a\\nb')\n",
            "ragen2_plugin_mine.Stop: a b (mine.py, line 2)",
        ),
    ],
)
def test_a_plug_in_that_cannot_be_imported(
    program: Program, tmp_path: Path, text: str, told: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    line = f"plugin file mine.py cannot be imported: {told}"
    assert_refused(program("envs", "list", "--plugin", "mine.py"), tmp_path, line, left=["mine.py"])


def test_a_plug_in_module_that_ends_the_program(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit(0)\n")
    done = start_python(tmp_path, "-m", "ragen2", "envs", "list", "--plugin", "mine")
    line = (
        "plugin 'mine' cannot be imported: SystemExit: 0 (mine.py, line 1); give an installed module or "
        "a .py path"
    )
    assert_refused(done, tmp_path, line, left=["mine.py"])


@pytest.mark.parametrize("raised", ["RuntimeError('no data')", "SystemExit(0)", "OSError(5, 'No')"])
def test_a_component_that_raises_when_it_is_built(
    program: Program, tmp_path: Path, raised: str
) -> None:
    (tmp_path / "mine.py").write_text(
        "from typing import Literal\n"
        "from ragen2.envs import Bandit\n"
        "class Mine(Bandit):\n"
        "    kind: Literal['Mine'] = 'Mine'\n"
        "    def model_post_init(self, _):\n"
        f"        raise {raised}\n"
    )
    done = program("envs", "play", "Mine", "--plugin", "mine.py")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"ragen2: env kind 'Mine' cannot be built: {raised.partition('(')[0]}: ")
    assert line.endswith("(mine.py, line 6)")
    assert (done.stdout, done.returncode) == ("", 2)


def test_an_unfinished_component_of_ones_own(program: Program, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from typing import Literal\n"
        "from ragen2.filtering import Filter\n"
        "class Mine(Filter):\n"
        "    kind: Literal['mine'] = 'mine'\n"
    )
    done = program("train", *settings("plugins=['mine.py']", "filter.kind=mine"))
    line = "filter kind 'mine' lacks keep; define it in class Mine"
    assert_refused(done, tmp_path, line, left=["mine.py"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there(program: Program, tmp_path: Path) -> None:
    line = "model.device is cuda, but torch sees no GPU; use auto or cpu"
    assert_refused(program("train", *settings("model.device=cuda")), tmp_path, line)


def test_a_run_directory_that_cannot_be_made(program: Program, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    line = "file/run cannot be written: Not a directory; choose a folder that can"
    assert_refused(program("train", "--out", "file/run"), tmp_path, line, left=["file"])
    assert (tmp_path / "file").read_text() == "not a folder"


@pytest.mark.parametrize("name", ["taken", "taken/notes"])
def test_a_run_directory_that_is_taken(program: Program, tmp_path: Path, name: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes").write_text("mine")
    line = (
        f"run directory {name} exists and is not empty; choose another with --out, "
        f"or continue it with --resume {name}"
    )
    assert_refused(program("train", "--out", name), tmp_path, line, left=["taken"])
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["notes"]
    assert (tmp_path / "taken" / "notes").read_text() == "mine"


@pytest.mark.parametrize("verb", [("warmstart",), ("pull", "smollm2-135m")])
def test_a_model_folder_that_is_taken(
    program: Program, tmp_path: Path, verb: tuple[str, ...]
) -> None:
    (tmp_path / "model").mkdir()
    line = "model exists already; choose another folder with --out"
    assert_refused(program(*verb, "--out", "model"), tmp_path, line, left=["model"])


def test_a_run_whose_settings_were_damaged_is_not_resumed(program: Program, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.toml").write_text("steps = 0")
    line = "steps must be greater than or equal to 1, got 0"
    assert_refused(program("train", "--resume", "run"), tmp_path, line, left=["run"])


def test_metrics_that_cannot_be_written(program: Program, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    done = program(
        "eval", EMBEDDED, "--tasks", "1", "--json", "file/metrics.json",
        *settings("rollout.prompts=2", "rollout.group_size=2"),
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "ragen2: --json file/metrics.json cannot be written: Not a directory\n"
