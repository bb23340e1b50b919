"""Opening models: every place a user may name, and one line for every way it can be wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError
from safetensors.torch import load_file, save_file

from gguf_models import write_gguf
from ragen2.backends.agent import HUB_SECONDS, locate, open_model, pick_device
from ragen2.backends.settings import EMBEDDED
from ragen2.backends.wheel_models import convert
from ragen2.errors import ModelError
from ragen2.runs.checkpoints import save_checkpoint

PROMPT = torch.tensor([[1, 20, 30, 40]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded model that may be damaged."""
    return Path(shutil.copytree(locate(EMBEDDED).source, tmp_path / "model"))


def open_error(model: str | Path) -> str:
    """The text of the error that opening ``model`` gives, checked to be one line."""
    with pytest.raises(ModelError) as caught:
        open_model(str(model), device="cpu")
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert str(model) in text
    return text


def test_a_folder_opens_as_the_same_model(embedded: Any, folder: Path) -> None:
    network, tokenizer = open_model(str(folder), device="cpu")
    with torch.no_grad():
        assert torch.equal(network(PROMPT).logits, embedded[0](PROMPT).logits)
    assert tokenizer.encode("goal (2,3)") == embedded[1].encode("goal (2,3)")


def test_the_embedded_model_is_an_ordinary_folder_of_at_most_8_megabytes() -> None:
    files = [path for path in Path(locate(EMBEDDED).source).iterdir() if path.is_file()]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in files}
    assert sum(path.stat().st_size for path in files) <= 8 * 2**20


def test_the_embedded_model_has_1_to_3_million_parameters(embedded: Any) -> None:
    count = sum(parameter.numel() for parameter in embedded[0].parameters())
    assert 1_000_000 <= count <= 3_000_000
    assert embedded[0].config.model_type == "llama"


def test_weights_are_float32_whatever_they_are_stored_as(folder: Path) -> None:
    weights = folder / "model.safetensors"
    save_file(
        {name: value.half() for name, value in load_file(weights).items()},
        weights,
        metadata={"format": "pt"},
    )
    network, _ = open_model(str(folder), device="cpu")
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}


def test_a_model_without_pad_token_pads_with_its_end_of_message(folder: Path) -> None:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["pad_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    _, tokenizer = open_model(str(folder), device="cpu")
    assert tokenizer.hf.pad_token_id == tokenizer.hf.eos_token_id


def test_all_ends_of_message_of_model_and_tokenizer_count(folder: Path) -> None:
    file = folder / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": [7, 9]}))
    _, tokenizer = open_model(str(folder), device="cpu")
    assert tokenizer.eos_ids == {7, 9, tokenizer.hf.eos_token_id}


def test_a_run_directory_opens_as_its_newest_intact_checkpoint(
    folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.toml").write_text("")
    for step in (2, 4):
        save_checkpoint(
            run, step, lambda target: shutil.copytree(folder, target, dirs_exist_ok=True), keep=9
        )
    assert locate(str(run)).source.endswith("step_000004")
    (run / "checkpoints" / "step_000004" / "config.json").write_text("{}")
    assert locate(str(run)).source.endswith("step_000002")


def test_a_run_directory_without_checkpoint_says_so(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("")
    assert "has no checkpoint; train it first" in open_error(tmp_path)


def test_a_missing_folder_says_so(tmp_path: Path) -> None:
    assert "does not exist; give a folder" in open_error(tmp_path / "nowhere")


def test_a_missing_gguf_file_says_so() -> None:
    assert "does not exist; give a folder" in open_error("weights.gguf")


def test_a_damaged_gguf_file_says_so(tmp_path: Path) -> None:
    file = tmp_path / "weights.gguf"
    file.write_bytes(b"GGUF" + bytes(60))
    open_error(file)


def test_a_gguf_file_that_is_something_else_says_so(tmp_path: Path) -> None:
    file = tmp_path / "weights.gguf"
    file.write_text("no model at all")
    open_error(file)


def test_a_folder_without_model_says_what_is_looked_for(tmp_path: Path) -> None:
    assert "holds no model (no config.json, no .gguf, no run.toml)" in open_error(tmp_path)


def test_truncated_weights_say_so(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    open_error(folder)


def test_empty_weights_say_so(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")
    open_error(folder)


def test_absent_weights_say_so(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    open_error(folder)


def test_weights_with_a_tensor_left_out_are_not_filled_with_random_numbers(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.2.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    text = open_error(folder)
    assert "lacks 1 weights, model.layers.2.mlp.up_proj.weight for one" in text


def test_weights_of_another_shape_say_so(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "intermediate_size": 100}))
    assert "is stored as (128, 384), but config.json asks for (128, 100)" in open_error(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_of_garbage_says_so(folder: Path, name: str) -> None:
    (folder / name).write_bytes(np.random.default_rng(0).bytes(2000))
    open_error(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_cut_short_says_so(folder: Path, name: str) -> None:
    (folder / name).write_text((folder / name).read_text()[:50])
    open_error(folder)


@pytest.mark.parametrize("text", ["{}", "[]", '{"added_tokens": [], "model": 3}'])
def test_a_tokenizer_file_that_is_no_tokenizer_says_so(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    open_error(folder)


def test_an_architecture_nobody_knows_says_so(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "crystal_ball"}))
    assert "crystal_ball" in open_error(folder)


@pytest.mark.parametrize(
    ("file", "entry"),
    [
        ("config.json", {"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Theirs"}}),
        (
            "tokenizer_config.json",
            {"tokenizer_class": "Theirs", "auto_map": {"AutoTokenizer": ["theirs.Theirs", None]}},
        ),
    ],
)
def test_code_that_a_model_brings_is_not_run_whatever_a_terminal_answers(
    folder: Path, file: str, entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = json.loads((folder / file).read_text()) | entry
    (folder / file).write_text(json.dumps(settings))
    (folder / "theirs.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\nclass Theirs: pass\n")
    monkeypatch.setattr("builtins.input", lambda prompt: "y")
    expected = f"model {folder} brings code of its own, which is not run; use a model that transformers knows"
    with pytest.raises(ModelError) as caught:
        open_model(str(folder), device="cpu")
    assert not (folder / "ran").exists()
    assert str(caught.value) == expected


def test_a_folder_without_tokenizer_says_so(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    open_error(folder)


def test_a_gpu_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match="torch sees no GPU; use auto or cpu"):
        pick_device("cuda")
    assert pick_device("auto") == "cpu"


def test_a_gguf_file_opens_as_the_same_model(embedded: Any, tmp_path: Path) -> None:
    write_gguf(tmp_path / "weights.gguf", embedded[0], embedded[1].hf)
    for model in (tmp_path / "weights.gguf", tmp_path):
        network, tokenizer = open_model(str(model), device="cpu")
        with torch.no_grad():
            torch.testing.assert_close(network(PROMPT).logits, embedded[0](PROMPT).logits)
        assert tokenizer.hf.chat_template == embedded[1].hf.chat_template
        assert tokenizer.eos_ids == embedded[1].eos_ids


def test_a_model_read_from_gguf_can_be_saved_as_a_folder(embedded: Any, tmp_path: Path) -> None:
    write_gguf(tmp_path / "weights.gguf", embedded[0], embedded[1].hf)
    convert(str(tmp_path / "weights.gguf"), tmp_path / "folder", "made here")
    network, _ = open_model(str(tmp_path / "folder"), device="cpu")
    with torch.no_grad():
        torch.testing.assert_close(network(PROMPT).logits, embedded[0](PROMPT).logits)


class Hub:
    """Stands in for the hub: notes what it is asked, and answers with an error or not at all."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.asked: list[tuple[str, float]] = []

    def model_info(self, model: str, *, timeout: float) -> None:
        self.asked.append((model, timeout))
        if self.error is not None:
            raise self.error


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(error: Exception | None) -> Hub:
        found = Hub(error)
        monkeypatch.setattr(HfApi, "model_info", found.model_info)
        return found

    return put


@pytest.mark.parametrize("error", [OfflineModeIsEnabled("off"), ConnectionError(), TimeoutError()])
def test_a_hub_that_cannot_be_reached_is_asked_once_and_shortly(hub: Any, error: Exception) -> None:
    there = hub(error)
    text = open_error("somebody/modle")
    assert "no folder here" in text
    assert text.endswith("the hub cannot be reached; check the spelling, or the network")
    assert there.asked == [("somebody/modle", HUB_SECONDS)]


def test_a_model_that_the_hub_does_not_have(hub: Any) -> None:
    hub(RepositoryNotFoundError("404", response=SimpleNamespace(headers={}, request=None)))
    assert open_error("somebody/modle").endswith("the hub has no such model; check the spelling")


def test_a_name_that_no_hub_model_can_have() -> None:
    assert open_error("two words").endswith("the hub has no such model; check the spelling")


def test_a_hub_model_is_opened_from_the_hub_unless_the_hub_is_out_of_reach(hub: Any) -> None:
    hub(None)
    assert locate("somebody/model").options == {"trust_remote_code": False}
    hub(ConnectionError())
    expected = {"trust_remote_code": False, "local_files_only": True}
    assert locate("somebody/model").options == expected


def test_a_mistake_of_ours_while_asking_the_hub_is_not_hidden(hub: Any) -> None:
    hub(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        locate("somebody/model")
