"""Both ways to score give the numbers of re-encoding every pair, and read no more than they must."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen3Config

from ragen2.backends.agent import open_agent, open_policy
from ragen2.backends.learner import logprobs
from ragen2.backends.learner.logprobs import SplitModel, target_logprobs
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.scoring.pairs import PairScorer, honours_trees, score_by_copies
from ragen2.backends.scoring.tree import ScoringJob, score_by_trees
from ragen2.backends.settings import EMBEDDED, LearnerSettings, ModelSettings
from ragen2.bench.score import naive_score
from ragen2.policy import Pair

SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def random_pairs(seed: int) -> list[Pair]:
    """Ragged contexts, each with its own subset of continuations that share beginnings."""
    rng = np.random.default_rng(seed)
    contexts = [rng.integers(5, 64, length) for length in (1, 9, 4, 9, 17)]
    stems = [rng.integers(5, 64, length) for length in (1, 3, 6)]
    words = [np.concatenate([stems[i % 3], rng.integers(5, 8, 1 + i % 4)]) for i in range(11)]
    pairs = [Pair(c, w) for c in contexts for w in words if rng.random() < 0.7]
    rng.shuffle(pairs)
    return pairs


@pytest.fixture(scope="module")
def split_model() -> SplitModel:
    network = AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE)).float().eval()
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=numbers) * 0.2)
    return SplitModel(network)


@contextmanager
def noted_passes(split_model: SplitModel) -> Iterator[list[tuple[int, ...]]]:
    """Shapes of the ids of every forward pass."""
    shapes: list[tuple[int, ...]] = []
    hook = split_model.decoder.register_forward_pre_hook(
        lambda module, args, options: shapes.append(tuple(options["input_ids"].shape)),
        with_kwargs=True,
    )
    yield shapes
    hook.remove()


def assert_close(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("max_tokens", [1, 40, 200, 16_384])
@pytest.mark.parametrize("way", [score_by_trees, score_by_copies])
def test_any_pairs_score_as_if_each_were_re_encoded(split_model, seed, max_tokens, way):
    pairs = random_pairs(seed)
    scorer = PairScorer(split_model, max_tokens)
    scorer._method = way
    assert_close(scorer.score(pairs, 0.7), naive_score(split_model.network, pairs, 0.7, rows=7))


@pytest.mark.parametrize("width", [1, 5, 12])
def test_the_width_of_trees_changes_nothing(split_model, width):
    rng = np.random.default_rng(1)
    words = tuple(rng.integers(5, 9, length) for length in (2, 7, 5, 3, 8, 1))
    jobs = [ScoringJob(rng.integers(5, 64, length), words) for length in (3, 12)]
    with torch.no_grad():
        found = score_by_trees(split_model, jobs, 1.0, 1000, width=width)
    pairs = [Pair(job.context_ids_T, ids) for job in jobs for ids in words]
    assert_close(
        [ids for job in found for ids in job], naive_score(split_model.network, pairs, 1.0, rows=4)
    )


def test_a_context_is_read_once_and_a_shared_beginning_once(split_model):
    context = np.arange(5, 25)
    words = [np.array([7, 8, 9]), np.array([7, 8, 6]), np.array([7, 8, 9]), np.array([7])]
    with noted_passes(split_model) as shapes:
        PairScorer(split_model, 1000).score([Pair(context, ids) for ids in words * 3], 1.0)
    assert shapes[-1:] == [(1, 20 + 4)]
    tried_out = shapes[:-1]
    assert all(width < 20 for _, width in tried_out)


def test_contexts_are_not_read_again_when_trees_follow(split_model):
    rng = np.random.default_rng(0)
    words = tuple(rng.integers(5, 64, 10) for _ in range(6))
    jobs = [ScoringJob(rng.integers(5, 64, 30), words) for _ in range(2)]
    with torch.no_grad(), noted_passes(split_model) as shapes:
        score_by_trees(split_model, jobs, 1.0, 1000, width=20)
    assert shapes[0][1] - 30 <= 20
    assert len(shapes) > 2
    assert all(width <= 20 for _, width in shapes[1:])


@pytest.mark.parametrize("max_tokens", [40, 90, 300])
def test_no_pass_reads_more_than_the_setting_allows(split_model, max_tokens):
    scorer = PairScorer(split_model, max_tokens)
    assert scorer.method() is score_by_trees
    with noted_passes(split_model) as shapes:
        scorer.score(random_pairs(0), 1.0)
    assert max(rows * width for rows, width in shapes) <= max_tokens


def test_logits_exist_for_a_chunk_of_positions_only(split_model, monkeypatch):
    monkeypatch.setattr(logprobs, "MAX_LOGITS", 64 * 5)
    rows: list[int] = []
    hook = split_model.head.register_forward_hook(
        lambda module, args, out: rows.append(len(args[0]))
    )
    PairScorer(split_model, 16_384).score(random_pairs(0), 1.0)
    hook.remove()
    assert len(rows) > 10
    assert max(rows) <= 5


def test_target_logprobs_are_log_softmax_at_the_temperature():
    numbers = torch.Generator().manual_seed(0)
    hidden, targets = torch.randn(9, 4, generator=numbers), torch.arange(9)
    head = torch.nn.Linear(4, 11)
    wanted = torch.log_softmax(head(hidden) / 0.5, -1)[torch.arange(9), targets]
    torch.testing.assert_close(target_logprobs(hidden, targets, head, 0.5), wanted)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LlamaConfig(**SHAPE), True),
        (Qwen3Config(**SHAPE, head_dim=8), True),
        (MistralConfig(**SHAPE, sliding_window=None), True),
        (MistralConfig(**SHAPE, sliding_window=16), False),
        (LlamaConfig(**SHAPE, attn_implementation="eager"), True),
    ],
)
def test_trees_are_used_where_every_layer_sees_everything(config, expected):
    network = AutoModelForCausalLM.from_config(config).float().eval()
    assert honours_trees(SplitModel(network)) is expected


def test_a_model_that_ignores_the_mask_falls_back_to_copies(small):
    network = small[0]
    plain = network.model.forward

    def causal(*args: Any, attention_mask: Any = None, **options: Any) -> Any:
        mask = attention_mask if attention_mask is not None and attention_mask.ndim == 2 else None
        return plain(*args, attention_mask=mask, **options)

    network.model.forward = causal
    split_model = SplitModel(network)
    assert not honours_trees(split_model)
    pairs = random_pairs(2)
    scores = PairScorer(split_model, 1000).score(pairs, 1.0)
    assert_close(scores, naive_score(network, pairs, 1.0, rows=1))


@pytest.mark.parametrize("scale", [1e-2, 10.0])
def test_the_size_of_logits_does_not_decide_how_a_model_is_scored(scale):
    """Large logits round by more than 1e-4, small ones hide a wrong mask below it."""
    torch.manual_seed(0)
    shape = {**SHAPE, "tie_word_embeddings": False}
    network = AutoModelForCausalLM.from_config(LlamaConfig(**shape)).float().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.3)
        network.lm_head.weight.mul_(scale)
    split_model = SplitModel(network)
    assert honours_trees(split_model)
    plain = network.model.forward

    def blind(*args: Any, attention_mask: Any = None, **options: Any) -> Any:
        mask = attention_mask
        if mask is not None and mask.ndim == 4:
            mask = torch.zeros_like(mask)
        return plain(*args, attention_mask=mask, **options)

    network.model.forward = blind
    assert not honours_trees(split_model)


def test_the_embedded_model_is_scored_by_trees(policy: HFPolicy):
    assert policy.scorer.method() is score_by_trees


def test_scoring_leaves_every_random_stream_alone(policy: HFPolicy, lake_prompts):
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    policy.score([Pair(prompt, np.array([9, 8, 7])) for prompt in lake_prompts])
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert (np.random.get_state()[1] == numpy_before).all()


def test_the_same_pairs_score_the_same_to_the_last_bit(policy: HFPolicy, lake_prompts):
    pairs = [Pair(prompt, np.array([9, 8, 7])) for prompt in lake_prompts]
    for one, other in zip(policy.score(pairs), policy.score(pairs), strict=True):
        assert (one == other).all()


def test_the_setting_reaches_the_scorer():
    model = ModelSettings(device="cpu", score_tokens=77)
    agent = open_agent(model, LearnerSettings(), seed=0)
    assert agent.policy.scorer.max_tokens == 77
    assert open_policy(EMBEDDED, "cpu", score_tokens=66).scorer.max_tokens == 66
