"""Any Hugging Face causal LM: tiny random models of many families play, score and learn exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    OPTConfig,
    PhiConfig,
    Qwen2Config,
    Qwen3Config,
)

from ragen2.algorithms import GRPO
from ragen2.backends.learner.learner import TorchLearner
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.settings import LearnerSettings, ModelSettings
from ragen2.policy import Pair, Request, SamplingParams
from ragen2.types import FloatArray, Sample

SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENDS: dict[str, Any] = {"vocab_size": 512, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
CONFIGS = {
    "llama": LlamaConfig(**SHAPE),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE, head_dim=8),
    "mistral, short window": MistralConfig(**SHAPE, sliding_window=16),
    "gemma2, short window": Gemma2Config(**SHAPE, head_dim=8, sliding_window=16),
    "gemma3, short window": Gemma3TextConfig(**SHAPE, head_dim=8, sliding_window=16),
    "phi": PhiConfig(**SHAPE),
    "cohere": CohereConfig(**SHAPE),
    "granite": GraniteConfig(**SHAPE, logits_scaling=3.0),
    "mixtral": MixtralConfig(**SHAPE, num_local_experts=4),
    "gpt2": GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, **ENDS),
    "bloom": BloomConfig(hidden_size=32, n_layer=2, n_head=4, **ENDS),
    "opt": OPTConfig(
        hidden_size=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        word_embed_proj_dim=32,
        **ENDS,
    ),
}
TEMPERATURE = 0.8
SAMPLING = SamplingParams(temperature=TEMPERATURE, max_tokens=20, stop=())


@pytest.fixture(params=CONFIGS)
def network(request: pytest.FixtureRequest) -> Any:
    """A random model with weights large enough that its choices depend on what it reads."""
    made = AutoModelForCausalLM.from_config(CONFIGS[request.param]).float().eval()
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=numbers) * 0.15)
    return made


def prompts_of(*lengths: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.integers(5, 512, length) for length in lengths]


def test_sampled_logprobs_are_exact_over_two_turns(
    network: Any, embedded: Any, forward_logprobs: Callable[..., FloatArray]
) -> None:
    policy = HFPolicy(network, embedded[1])
    prompts = prompts_of(12, 30, 23, 12, 41)
    for turn in range(2):
        requests = [Request(prompt, (turn, i)) for i, prompt in enumerate(prompts)]
        completions = policy.sample(requests, SAMPLING)
        for prompt, completion in zip(prompts, completions, strict=True):
            wanted = forward_logprobs(network, prompt, completion.ids_T, TEMPERATURE)
            np.testing.assert_allclose(completion.logprobs_T, wanted, atol=1e-4)
        extra = prompts_of(5, 9, 7, 6, 8)
        prompts = [
            np.concatenate([prompt, completion.ids_T, more])
            for prompt, completion, more in zip(prompts, completions, extra, strict=True)
        ]


def test_scores_are_exact(
    network: Any, embedded: Any, forward_logprobs: Callable[..., FloatArray]
) -> None:
    contexts, continuations = prompts_of(12, 30, 23), prompts_of(3, 8, 21, 1)
    pairs = [Pair(context, words) for words in continuations for context in contexts]
    scores = HFPolicy(network, embedded[1]).score(pairs, TEMPERATURE)
    for pair, score in zip(pairs, scores, strict=True):
        wanted = forward_logprobs(network, pair.context_ids_T, pair.continuation_ids_T, TEMPERATURE)
        np.testing.assert_allclose(score, wanted, atol=1e-4)


def test_what_was_just_sampled_has_ratio_one_in_the_update(network: Any, embedded: Any) -> None:
    requests = [Request(prompt, (i,)) for i, prompt in enumerate(prompts_of(12, 30, 23))]
    completions = HFPolicy(network, embedded[1]).sample(requests, SAMPLING)
    learner = TorchLearner(network, embedded[1], ModelSettings(), LearnerSettings(), seed=0)
    samples = []
    for request, completion in zip(requests, completions, strict=True):
        unread = np.zeros(len(request.prompt_ids_T))
        samples.append(
            Sample(
                ids_T=np.concatenate([request.prompt_ids_T, completion.ids_T]),
                loss_mask_T=np.concatenate([unread, np.ones(len(completion.ids_T))]) > 0,
                old_logprobs_T=np.concatenate([unread, completion.logprobs_T]),
                advantages_T=np.concatenate([unread, np.ones(len(completion.ids_T))]),
                temperature=TEMPERATURE,
            )
        )
    parts = learner.gradients(samples, GRPO())
    assert parts["sampler_mismatch"] < 1e-4


def test_adapters_over_frozen_bfloat16_weights_learn_and_play(network: Any, embedded: Any) -> None:
    pytest.importorskip("peft")
    model = ModelSettings(device="cpu", lora_rank=2, precision="bfloat16")
    learner = TorchLearner(network, embedded[1], model, LearnerSettings(lr=1e-3), seed=0)
    policy = HFPolicy(learner.whole, embedded[1], precision="bfloat16")
    (prompt,) = prompts_of(20)
    (written,) = policy.sample([Request(prompt, (0,))], SAMPLING)
    mask = np.arange(len(prompt) + len(written.ids_T)) >= len(prompt)
    old = np.concatenate([np.zeros(len(prompt)), written.logprobs_T])
    sample = Sample(
        np.concatenate([prompt, written.ids_T]), mask, old, mask * 1.0, temperature=TEMPERATURE
    )
    metrics = [learner.update([sample], GRPO(), scale=1.0).metrics for _ in range(2)]
    assert metrics[0]["sampler_mismatch"] < 0.2
    assert metrics[0]["grad_norm"] > 0.0
    assert metrics[1]["policy_loss"] < metrics[0]["policy_loss"]
