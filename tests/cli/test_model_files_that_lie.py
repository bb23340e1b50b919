"""Model folders made to break their reader: one line, exit code 2, nothing run and nothing waited for."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Done
from ragen2.backends.agent import locate
from ragen2.backends.settings import EMBEDDED
from ragen2.backends.tokenizer import TEMPLATE_SECONDS

Program = Callable[..., Done]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded model."""
    return Path(shutil.copytree(locate(EMBEDDED).source, tmp_path / "model"))


def refusal(program: Program, model: str = "./model") -> str:
    """The one line that evaluating a model gives."""
    done = program("eval", model, "--tasks", "1")
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    return line.removeprefix("ragen2: ")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("num_hidden_layers", -1, "num_hidden_layers = -1, which must be from 1 to 10000"),
        ("num_hidden_layers", 10**9, "num_hidden_layers = 1000000000, which must be from 1"),
        ("vocab_size", 10**12, "vocab_size = 1000000000000, which must be from 1 to 100000000"),
        ("vocab_size", -3, "vocab_size = -3, which must be from 1 to 100000000"),
        ("num_attention_heads", 0, "ZeroDivisionError integer modulo by zero"),
        (
            "hidden_size",
            -5,
            "The hidden size (-5) is not a multiple of the number of attention heads",
        ),
        ("num_hidden_layers", "x", "'num_hidden_layers' expected int, got str"),
        ("num_hidden_layers", None, "'num_hidden_layers' expected int, got NoneType"),
    ],
)
def test_a_shape_that_no_model_has(
    program: Program, folder: Path, name: str, value: object, told: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, name: value}))
    assert told in refusal(program)


def test_a_tokenizer_whose_tokens_the_model_does_not_know(program: Program, folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {one: ids[one] + 5000 * (ids[one] > 300) for one in ids}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    line = refusal(program)
    assert line.startswith("the tokenizer of this model gives token 5")
    assert line.endswith(", but the model knows 512; get the files of both again")


TEMPLATES = {
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}": (
        f"cannot be rendered: it took more than {TEMPLATE_SECONDS:g} seconds"
    ),
    "{% for a in range(10**9) %}x{% endfor %}": "cannot be rendered: Range too big.",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "cannot be rendered: maximum recursion depth",
    "{{ 'x' * 3000000 }}": "makes 3,000,000 characters of 27; get its files again",
    "{{ messages[0]['content'] + 1 }}": "cannot be rendered: can only concatenate str",
    "{{ raise_exception('never') }}": "cannot be rendered: never",
    "{% if %}": "cannot be rendered: Expected an expression",
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_template_that_goes_wrong(program: Program, folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    line = refusal(program)
    assert line.startswith(f"the chat template of this model {TEMPLATES[template]}")


ROOM = bytes(2**23)
"""As many bytes as the weights would take: a smaller file is refused for its size."""


class Harm:
    """Makes a file when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("harmed",)


def test_pickled_weights_are_not_run(program: Program, folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Harm()) + ROOM)
    assert refusal(program) == (
        "model ./model cannot be opened: its weights are a pickle with more than tensors in it, which "
        "could run code; get them as safetensors"
    )
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("content", [b"", b"\x80\x04junk", b"\x80\x02" + b"(" * 10_000])
def test_pickled_weights_that_are_none(program: Program, folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(content + ROOM)
    assert refusal(program).startswith("model ./model cannot be opened: ")


def gguf(tensors: int, fields: int, rest: bytes = b"") -> bytes:
    """A header of GGUF, version 3, and what follows."""
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, fields) + rest


@pytest.mark.parametrize(
    "content",
    [
        gguf(2**60, 2**60),
        gguf(2**63, 0),
        gguf(0, 2**40, b"\0" * 64),
        gguf(0, 1, struct.pack("<Q", 2**62) + b"abc"),
        gguf(0, 1, struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 0, 2**50)),
        gguf(0, 0),
    ],
)
def test_a_gguf_file_with_absurd_counts(program: Program, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    assert refusal(program, "./model.gguf").startswith("model ./model.gguf cannot be opened: ")
