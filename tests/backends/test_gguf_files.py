"""GGUF files: the same numbers as the gguf package's own, read once, and a tied model's copies joined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import LlamaConfig, LlamaForCausalLM

from gguf_models import random_blocks, rounded, write_gguf
from ragen2.backends.agent import open_model
from ragen2.backends.gguf_files import Reader, quick_reading
from ragen2.errors import ModelError
from ragen2.progress import ProgressReport, reported_to

KINDS = [
    Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.Q2_K,
    Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_NL, Kind.IQ4_XS,
]  # fmt: skip


@pytest.fixture(scope="module")
def wide(embedded: Any) -> Any:
    """A Llama whose rows hold whole blocks of every type."""
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=4,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=embedded[1].hf.eos_token_id,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


def opened(file: Path, network: Any, embedded: Any, stored: Any) -> Any:
    """The network of a file in which some weights are stored so."""
    write_gguf(file, network, embedded[1].hf, stored)
    return open_model(str(file), device="cpu")[0]


def num_weights(network: Any) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.name))
def test_weights_of_every_type_are_those_of_the_gguf_package(
    tmp_path: Path, wide: Any, embedded: Any, kind: Kind
) -> None:
    blocks, _ = random_blocks(256, 256, kind)
    network = opened(tmp_path / "m.gguf", wide, embedded, {"blk.0.ffn_up.weight": (blocks, kind)})
    expected = torch.from_numpy(np.array(gguf.dequantize(blocks, kind)))
    assert torch.equal(network.model.layers[0].mlp.up_proj.weight, expected)


def test_all_fields_of_a_file_are_those_of_the_gguf_package(
    tmp_path: Path, wide: Any, embedded: Any
) -> None:
    file = tmp_path / "m.gguf"
    write_gguf(file, wide, embedded[1].hf)
    ours, theirs = Reader(file), gguf.GGUFReader(file)
    expected = {name: (one.types, one.contents()) for name, one in theirs.fields.items()}
    assert {name: (one.types, one.contents()) for name, one in ours.fields.items()} == expected
    assert [one.name for one in ours.tensors] == [one.name for one in theirs.tensors]
    assert {"tokenizer.ggml.tokens", "tokenizer.ggml.scores"} <= set(expected)


def test_a_file_is_read_once_to_open_it(
    tmp_path: Path, wide: Any, embedded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    begin = gguf.GGUFReader.__init__
    monkeypatch.setattr(
        gguf.GGUFReader, "__init__", lambda self, path: (read.append(path), begin(self, path))[1]
    )
    opened(tmp_path / "m.gguf", wide, embedded, {})
    assert read == [str(tmp_path / "m.gguf")]


def test_an_array_that_goes_on_after_the_end_is_refused(
    tmp_path: Path, wide: Any, embedded: Any
) -> None:
    file = tmp_path / "m.gguf"
    write_gguf(file, wide, embedded[1].hf)
    whole = file.read_bytes()
    name = b"tokenizer.ggml.token_type"
    file.write_bytes(whole[: whole.index(name) + len(name) + 16 + 10 * 4])  # ten values are left
    with pytest.raises(ValueError, match="an array of 512 values goes on after the end"):
        Reader(file)
    with pytest.raises(ModelError, match="cannot be opened"):
        open_model(str(file), device="cpu")


def test_the_gguf_package_is_as_it_was_after_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    names = ("GGUFReader", "dequantize", "get_tensor_name_map")
    before = [getattr(gguf, name) for name in names]
    with pytest.raises(FileNotFoundError), quick_reading(lambda num_bytes: None) as read:
        read(str(tmp_path / "nothing"))
    assert [getattr(gguf, name) for name in names] == before


def test_an_opened_file_can_be_trained(tmp_path: Path, wide: Any, embedded: Any) -> None:
    network = opened(tmp_path / "m.gguf", wide, embedded, {})
    assert all(one.requires_grad and one.dtype == torch.float32 for one in network.parameters())
    assert getattr(network, "hf_quantizer", None) is None


def test_opening_reports_how_far_it_is(tmp_path: Path, wide: Any, embedded: Any) -> None:
    said: list[ProgressReport] = []
    with reported_to(said.append):
        opened(tmp_path / "m.gguf", wide, embedded, {})
    assert {one.doing for one in said} == {f"opening {tmp_path / 'm.gguf'}"}
    done = [one.done for one in said]
    assert done == sorted(done)
    assert 0.9 * said[-1].total < done[-1] <= said[-1].total


@pytest.mark.parametrize(
    ("embedding", "head"),
    [
        (Kind.Q4_0, Kind.Q8_0),
        (Kind.Q8_0, Kind.Q4_0),
        (Kind.Q5_0, Kind.F16),
        (Kind.F16, Kind.BF16),
        (Kind.F32, Kind.F32),
    ],
    ids=lambda kind: str(kind.name),
)
def test_a_copy_of_the_embedding_is_tied_to_the_finer_one(
    tmp_path: Path, wide: Any, embedded: Any, embedding: Kind, head: Kind, caplog: Any
) -> None:
    values = wide.model.embed_tokens.weight.detach().numpy()
    stored = {
        "token_embd.weight": rounded(values, embedding),
        "output.weight": rounded(values, head),
    }
    network = opened(tmp_path / "m.gguf", wide, embedded, stored)
    assert num_weights(network) == num_weights(wide)
    assert network.lm_head.weight is network.model.embed_tokens.weight
    assert network.config.tie_word_embeddings
    finer = min(
        (gguf.dequantize(*one) for one in stored.values()), key=lambda x: abs(x - values).max()
    )
    assert np.array_equal(network.lm_head.weight.detach().numpy(), finer)
    (line,) = [one.getMessage() for one in caplog.records]
    assert "holds its embedding twice" in line


def test_a_joined_model_stays_so_in_a_folder(tmp_path: Path, wide: Any, embedded: Any) -> None:
    values = wide.model.embed_tokens.weight.detach().numpy()
    network = opened(
        tmp_path / "m.gguf", wide, embedded, {"output.weight": rounded(values, Kind.Q8_0)}
    )
    network.save_pretrained(tmp_path / "folder")
    embedded[1].hf.save_pretrained(tmp_path / "folder")
    again, _ = open_model(str(tmp_path / "folder"), device="cpu")
    assert num_weights(again) == num_weights(wide)


@pytest.mark.parametrize("changed", [1.0, 0.01])
def test_a_head_of_its_own_stays(
    tmp_path: Path, wide: Any, embedded: Any, changed: float, caplog: Any
) -> None:
    values = wide.model.embed_tokens.weight.detach().numpy()
    noise = np.random.default_rng(0).normal(0.0, values.std(), values.shape)
    head = ((1 - changed) * values + changed * noise).astype(np.float32)
    network = opened(tmp_path / "m.gguf", wide, embedded, {"output.weight": (head, Kind.F32)})
    assert np.array_equal(network.lm_head.weight.detach().numpy(), head)
    assert num_weights(network) == num_weights(wide) + head.size
    assert not caplog.records
