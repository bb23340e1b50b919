"""New models and tokenizers: seeded, and no text is beyond them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ragen2.backends.new_model import SPREAD, TAGS, new_model, train_tokenizer
from ragen2.backends.settings import NewModel, NewVision
from ragen2.backends.tokenizer import TemplateTokenizer

SHAPE = NewModel(hidden=32, layers=2, heads=4, intermediate=64, vocabulary=300, context=128)
CORPUS = ["goal (2,3) and down", "I am at (0,1)."] * 20


@pytest.fixture(scope="module")
def hf_tokenizer() -> Any:
    return train_tokenizer(CORPUS, SHAPE.vocabulary)


def weights(network: Any) -> list[torch.Tensor]:
    return [value for _, value in sorted(network.state_dict().items())]


def test_the_same_seed_gives_the_same_weights(hf_tokenizer: Any) -> None:
    one, two = (weights(new_model(SHAPE, hf_tokenizer, seed=5)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_another_seed_gives_other_weights(hf_tokenizer: Any) -> None:
    one, two = (new_model(SHAPE, hf_tokenizer, seed=seed) for seed in (5, 6))
    assert not torch.equal(one.model.embed_tokens.weight, two.model.embed_tokens.weight)


def test_making_a_model_leaves_the_global_random_state_alone(hf_tokenizer: Any) -> None:
    before = torch.random.get_rng_state()
    new_model(SHAPE, hf_tokenizer, seed=5)
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_model_has_the_asked_for_shape(hf_tokenizer: Any) -> None:
    network = new_model(SHAPE, hf_tokenizer, seed=0)
    config = network.config
    assert (config.hidden_size, config.num_hidden_layers) == (32, 2)
    assert (config.num_attention_heads, config.intermediate_size) == (4, 64)
    assert config.max_position_embeddings == 128
    assert network.get_input_embeddings().weight.shape == (len(hf_tokenizer), 32)
    assert config.eos_token_id == hf_tokenizer.eos_token_id


def test_a_tokenizer_is_the_same_every_time() -> None:
    one, two = (train_tokenizer(CORPUS, 320).get_vocab() for _ in range(2))
    assert one == two


def test_a_vocabulary_is_never_larger_than_asked_for() -> None:
    letters = np.random.default_rng(0).choice(list("abcdefgh"), (300, 6))
    words = ["".join(word) for word in letters]
    assert len(train_tokenizer(words, 400)) == 400
    assert len(train_tokenizer(["few words"], 400)) < 400


def test_tags_are_one_token_each_and_stay_in_the_text(hf_tokenizer: Any) -> None:
    tokenizer = TemplateTokenizer(hf_tokenizer, [hf_tokenizer.eos_token_id])
    for tag in TAGS:
        assert len(tokenizer.encode(tag)) == 1
        assert tokenizer.decode(tokenizer.encode(tag)) == tag


@given(text=st.text(max_size=60))
@example(text="  two  spaces, a tab\t, lines\r\n\n and an end  ")
@example(text="é√😀 ﷽ \u200d\ufeff\x00")
@example(text="don 't , stop !")
def test_a_new_tokenizer_gives_any_text_back(hf_tokenizer: Any, text: str) -> None:
    tokenizer = TemplateTokenizer(hf_tokenizer, [hf_tokenizer.eos_token_id])
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=st.text(max_size=60))
@example(text="don 't , stop !")
def test_the_embedded_tokenizer_gives_any_text_back(embedded: Any, text: str) -> None:
    assert embedded[1].decode(embedded[1].encode(text)) == text


def test_the_embedded_tokenizer_writes_what_the_lake_shows_in_few_tokens(embedded: Any) -> None:
    assert len(embedded[1].encode("You (0,1) Goal (3,2) Holes (1,1)")) <= 8


def test_a_model_that_sees_turns_enough_from_column_to_column() -> None:
    """Columns have the slowest rotations; at the usual base they could not be told apart."""
    shape = NewModel(hidden=64, heads=4, vocabulary=320, vision=NewVision())
    config = new_model(
        shape, train_tokenizer(CORPUS, 320, reads_images=True), seed=0
    ).config.text_config
    rope = config.rope_parameters
    pairs = config.hidden_size // config.num_attention_heads // 2
    time, rows, columns = rope["mrope_section"]
    assert time + rows + columns == pairs
    slowest = rope["rope_theta"] ** (-np.arange(pairs) / pairs)[time + rows :]
    assert slowest.min() > 0.1


def test_a_model_that_sees_starts_from_weights_that_let_it_tell_tokens_apart() -> None:
    shape = NewModel(hidden=64, heads=4, vocabulary=320, vision=NewVision(hidden=32))
    network = new_model(shape, train_tokenizer(CORPUS, 320, reads_images=True), seed=0)
    for module in (network.model.language_model.layers[0].self_attn.q_proj, network.lm_head):
        assert float(module.weight.detach().std()) == pytest.approx(SPREAD / 8, rel=0.05)
    patches = network.model.visual.patch_embed.proj.weight.detach()
    assert float(patches.std()) == pytest.approx(0.15, rel=0.05)
