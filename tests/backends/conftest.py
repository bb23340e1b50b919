"""What the tests of the torch rooms share: the embedded model, a smaller one, naive log-probs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ragen2.backends.agent import open_model, quiet_transformers
from ragen2.backends.new_model import new_model, train_tokenizer
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.settings import EMBEDDED, NewModel
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.envs import FrozenLake
from ragen2.rollout.prompts import PromptSettings, PromptWriter, TurnState
from ragen2.rollout.settings import Rollout
from ragen2.types import FloatArray, IntArray, Sample

SMALL = NewModel(hidden=32, layers=2, heads=4, intermediate=64, vocabulary=300, context=256)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are quickest on one thread, and other work on the machine cannot stall it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    quiet_transformers()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def embedded() -> tuple[Any, TemplateTokenizer]:
    """Network and tokenizer of the embedded model; not to be trained."""
    return open_model(EMBEDDED, device="cpu")


@pytest.fixture(scope="session")
def policy(embedded: tuple[Any, TemplateTokenizer]) -> HFPolicy:
    """The embedded model to play with."""
    return HFPolicy(*embedded)


@pytest.fixture(scope="session")
def lake_prompts(embedded: tuple[Any, TemplateTokenizer]) -> list[IntArray]:
    """First-turn prompts of six different lakes, of different lengths."""
    env = FrozenLake(hole_ratio=0.3)
    writer = PromptWriter.of(env, Rollout(), PromptSettings(style="brief"))
    texts = [env.start(seed, 0).observation for seed in range(6)]
    ids = [
        embedded[1].start([writer.opening(text).system, writer.turn(TurnState(text, 10))])
        + embedded[1].encode(writer.form.prefill)
        for text in texts
    ]
    assert len({len(prompt) for prompt in ids}) > 1
    return [np.array(prompt, dtype=np.int64) for prompt in ids]


@pytest.fixture(scope="session")
def _small_parts() -> tuple[Any, TemplateTokenizer]:
    hf_tokenizer = train_tokenizer(["go down to the goal"] * 4, SMALL.vocabulary)
    network = new_model(SMALL, hf_tokenizer, seed=3)
    # Weights as small as a fresh model's give nearly uniform choices; larger ones tell more apart.
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6.0)
    network.eval()
    return network, TemplateTokenizer(hf_tokenizer, [hf_tokenizer.eos_token_id])


@pytest.fixture
def small(_small_parts: tuple[Any, TemplateTokenizer]) -> tuple[Any, TemplateTokenizer]:
    """Network (a copy that may be trained) and tokenizer of a 33-thousand-parameter model."""
    return copy.deepcopy(_small_parts[0]), _small_parts[1]


@pytest.fixture(scope="session")
def forward_logprobs() -> Callable[..., FloatArray]:
    """Log-probs of a continuation by one plain forward pass: no cache, no batch, no padding."""

    @torch.no_grad()
    def compute(
        network: Any, context: IntArray, continuation: IntArray, temperature: float = 1.0
    ) -> FloatArray:
        ids = torch.tensor(np.concatenate([context, continuation]))[None]
        logp = torch.log_softmax(network(input_ids=ids).logits[0].double() / temperature, dim=-1)
        chosen = logp[len(context) - 1 : -1].gather(-1, torch.tensor(continuation)[:, None])
        return chosen[:, 0].numpy()

    return compute


@pytest.fixture(scope="session")
def random_samples() -> Callable[..., list[Sample]]:
    """Samples of random tokens with several written stretches, as multi-turn play leaves them."""

    def make(lengths: list[int], *, vocabulary: int = 260, seed: int = 0) -> list[Sample]:
        rng = np.random.default_rng(seed)
        samples = []
        for length in lengths:
            mask = np.zeros(length, dtype=np.bool_)
            mask[length // 4 : length // 2] = True
            mask[length // 2 + 3 :] = True
            samples.append(
                Sample(
                    ids_T=rng.integers(5, vocabulary, length),
                    loss_mask_T=mask,
                    old_logprobs_T=np.where(mask, rng.normal(-6.0, 0.3, length), 0.0),
                    advantages_T=np.where(mask, rng.normal(), 0.0),
                )
            )
        return samples

    return make
