"""Images that a model, an engine or a folder cannot cope with: one line, exit code 2, nothing written."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Done, assert_refused, run_program, settings
from ragen2.backends.settings import EMBEDDED
from ragen2.errors import RunError
from ragen2.integrations.datasets import run_rows
from seeing_models import IMAGES, tiny_seeing_model

Program = Callable[..., Done]
TEXT_ONLY = (
    "FrozenLake shows images, but this model reads text only; choose a vision-language model such as "
    "ragen2-tiny-vl, or take an env.observation without images"
)
SHORT = (
    *IMAGES,
    "steps=1",
    "rollout.prompts=2",
    "rollout.group_size=2",
    "evaluation.tasks=2",
    "evaluation.probe_prompts=0",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_seeing_model(tmp_path_factory.mktemp("seeing") / "model")


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step, saved with the images of step 0 and step 1."""
    folder = tmp_path_factory.mktemp("seen")
    done = run_program(folder, "train", *settings(*SHORT, f"model.path={model}"), "--out", "run")
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_a_model_that_reads_text_only(program: Program, tmp_path: Path) -> None:
    assert_refused(program("train", *settings("env.observation=image")), tmp_path, TEXT_ONLY)
    assert_refused(
        program("eval", EMBEDDED, *settings("env.observation=image")), tmp_path, TEXT_ONLY
    )


@pytest.mark.slow
def test_a_text_model_in_several_processes(program: Program, tmp_path: Path) -> None:
    done = program("train", "--processes", "2", *settings("env.observation=image"))
    assert_refused(done, tmp_path, TEXT_ONLY)


def test_a_text_model_in_a_preflight(program: Program, tmp_path: Path) -> None:
    done = program("preflight", *settings("env.observation=image+text"))
    assert (done.returncode, done.stderr) == (2, f"ragen2: {TEXT_ONLY}\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["train", "eval"])
def test_an_image_that_leaves_no_room_for_a_reply(
    program: Program, tmp_path: Path, model: Path, verb: str
) -> None:
    asked = ["env.observation=image", "env.cell_px=140", "rollout.max_tokens=400"]
    words = [verb, model] if verb == "eval" else [verb]
    asked += [f"model.path={model}"] if verb == "train" else []
    done = program(*words, *settings(*asked))
    assert_refused(
        done,
        tmp_path,
        "a first prompt with an image of 560 x 560 pixels and a reply of 400 tokens (rollout.max_tokens) "
        "are more than the 1024 tokens this model reads; show smaller images (env.cell_px) or choose "
        "another model",
    )


def test_an_image_that_is_too_large_to_be_drawn(program: Program, tmp_path: Path) -> None:
    asked = ["env.kind=Sokoban", "env.observation=image", "env.cell_px=256", "env.width=20"]
    done = program("train", *settings(*asked))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "pixels is too large, its longer side may have" in line
    assert "; set cell_px to " in line
    assert not list(tmp_path.iterdir())


def test_a_folder_without_an_image_processor(program: Program, tmp_path: Path, model: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "model" / "preprocessor_config.json").unlink()
    done = program("train", *settings("env.observation=image", "model.path=model"))
    assert_refused(
        done,
        tmp_path,
        "FrozenLake shows images, but model model cannot read them: its image processor cannot be "
        "opened: Can't load image processor for 'model'; choose a vision-language model such as "
        "ragen2-tiny-vl, or take an env.observation without images",
        left=["model"],
    )


def test_the_same_folder_still_reads_text(program: Program, tmp_path: Path, model: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "model" / "preprocessor_config.json").unlink()
    few = ("rollout.prompts=2", "rollout.group_size=2", "rollout.max_tokens=8", "env.max_turns=1")
    done = program("eval", "model", "--tasks", "2", *settings(*few))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ("train", *settings('model.engine="vllm"')),
            'model.engine = "vllm" is sent token ids alone; let the model itself play',
        ),
        (
            ("eval", "http://127.0.0.1:1#x", *settings('server.api="chat"')),
            "this server is sent text alone; let a model of this machine play",
        ),
    ],
)
def test_engines_that_would_drop_them(
    program: Program, tmp_path: Path, model: Path, words: tuple[str, ...], reason: str
) -> None:
    done = program(*words, *settings("env.observation=image", f"model.path={model}"))
    line = f"FrozenLake shows images, but {reason}, or take an env.observation without images"
    assert (done.returncode, done.stderr) == (2, f"ragen2: {line}\n")
    assert not list(tmp_path.iterdir())


def test_a_run_whose_archive_of_images_is_damaged(
    program: Program, tmp_path: Path, finished: Path
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    before = (tmp_path / "run" / "report.html").read_bytes()
    (tmp_path / "run" / "images" / "step_000001.zip").write_bytes(b"no archive")
    assert_refused(
        program("report", "run"),
        tmp_path,
        "run/images/step_000001.zip is damaged (File is not a zip file); put it back, or remove it and "
        "the rollouts of its step",
        left=["run"],
    )
    assert (tmp_path / "run" / "report.html").read_bytes() == before


def test_a_report_says_which_images_are_missing(
    program: Program, tmp_path: Path, finished: Path
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    whole = program("report", "run")
    assert (whole.returncode, whole.stderr) == (0, "")
    (tmp_path / "run" / "images" / "step_000001.zip").unlink()
    done = program("report", "run")
    assert done.returncode == 0
    assert re.fullmatch(
        r"ragen2: (\d+) of \1 images of run are missing from run/images, [0-9a-f]{32}\.png for one; put "
        r"back the archives of their steps\n"
        r"ragen2: run/images/step_000001\.zip is missing since its step was recorded; put it back\n",
        done.stderr,
    )


def test_rows_of_a_run_whose_image_is_missing(tmp_path: Path, finished: Path) -> None:
    assert run_rows(finished, 1)[0]["turns"][0]["images"]
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "images" / "step_000001.zip").unlink()
    with pytest.raises(
        RunError, match=r"^image [0-9a-f]{32}\.png is missing from .*/run/images; put "
    ):
        run_rows(tmp_path / "run", 1)
