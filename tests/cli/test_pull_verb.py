"""``ragen2 pull``: a folder out of a GGUF file or a hub id, or one line that says why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Done
from gguf_models import write_embedded_gguf

Program = Callable[..., Done]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_embedded_gguf(tmp_path / "tiny-f32.gguf")
    return tmp_path / "tiny-f32.gguf"


@pytest.mark.parametrize(
    ("name", "more", "folder"),
    [
        ("tiny-f32.gguf", (), "models/tiny-f32"),
        ("./tiny-f32.gguf", ("--out", "converted"), "converted"),
    ],
)
def test_a_gguf_file_becomes_a_folder_that_opens(
    program: Program, file: Path, name: str, more: tuple[str, ...], folder: str
) -> None:
    done = program("pull", name, *more)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"saved {folder}; try it with: ragen2 eval {folder}")
    made = file.parent / folder
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        one.name for one in made.iterdir()
    }
    assert (made / "SOURCE.txt").read_text() == f"{name}, converted to float32 by ragen2 pull.\n"
    done = program("eval", folder, "--tasks", "1", "--set", "rollout.prompts=2")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "somebody/modle",
            "model somebody/modle cannot be opened: it is no folder here, not all of it is in the cache, "
            "and the hub cannot be reached; check the spelling, or the network",
        ),
        ("no.gguf", "model no.gguf does not exist; give a folder, a GGUF file or a hub id"),
        ("smolm2", "unknown model 'smolm2'; did you mean 'smollm2-135m'?"),
    ],
)
def test_what_cannot_be_had_is_one_line_and_leaves_nothing(
    program: Program, tmp_path: Path, name: str, line: str
) -> None:
    done = program("pull", name, "--out", "folder")
    assert (done.returncode, done.stderr, done.stdout) == (2, f"ragen2: {line}\n", "")
    assert list(tmp_path.iterdir()) == []
