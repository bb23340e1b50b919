"""The forward pass for a gradient: packed, padded, computed again or compiled, the gradient is one."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, MambaConfig, MambaForCausalLM

from ragen2.algorithms import GRPO, PPO
from ragen2.backends.learner.forward import TrainingForward
from ragen2.backends.learner.fused import FusedLayer
from ragen2.backends.learner.learner import TorchLearner
from ragen2.backends.settings import LearnerSettings, ModelSettings
from ragen2.errors import ConfigError
from ragen2.types import Sample

Samples = Callable[..., list[Sample]]
LENGTHS = [40, 22, 31, 50, 27]
OBJECTIVE = GRPO(entropy_coefficient=0.01, kl_coefficient=0.1)


def learner_of(parts: Any, *, rank: int = 0, **settings: Any) -> TorchLearner:
    """A learner with its own copy of the network, a little off its reference."""
    chosen = LearnerSettings(**{"lr": 1e-3, "micro_tokens": 90, **settings})
    model = ModelSettings(lora_rank=rank)
    learner = TorchLearner(copy.deepcopy(parts[0]), parts[1], model, chosen, seed=0)
    learner.keep_reference()
    with torch.no_grad():
        for parameter in learner.network.parameters():
            if parameter.requires_grad:
                parameter.add_(0.01)
    return learner


def pad(learner: TorchLearner) -> None:
    """Let it and its reference pad samples instead of packing them."""
    for forward in (learner.forward, learner._reference):
        if forward is not None:
            assert forward.is_packed
            forward.is_packed = False


def same_gradient(one: TorchLearner, two: TorchLearner, samples: list[Sample]) -> None:
    found, wanted = (learner.gradient(samples, OBJECTIVE).values.numpy() for learner in (one, two))
    assert abs(wanted).max() > 1e-2
    assert abs(found - wanted).max() < 1e-5


@pytest.mark.parametrize("rank", [0, 4])
def test_padded_and_packed_samples_have_one_gradient(
    small: Any, random_samples: Samples, rank: int
) -> None:
    packed, padded = (learner_of(small, rank=rank) for _ in range(2))
    pad(padded)
    same_gradient(packed, padded, random_samples(LENGTHS))


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_shared_beginning_is_read_once_and_has_the_gradient_of_all(
    small: Any, random_samples: Samples, is_asked: bool
) -> None:
    """Two prompts of three samples each, one of them in part written; the others share nothing."""
    samples = random_samples([60, 55, 50, 45, 60, 58, 30, 22])
    for first, others in ((0, (1, 2)), (3, (4, 5))):
        for row in others:
            samples[row].ids_T[:21] = samples[first].ids_T[:21]
    one, two = (
        learner_of(small, gradient_checkpointing=is_asked, micro_tokens=1000) for _ in range(2)
    )
    pad(two)
    same_gradient(one, two, samples)
    assert one.forward.tokens_run == sum(len(sample.ids_T) for sample in samples) - 4 * 21


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("is_packed", [True, False])
def test_layers_computed_again_give_the_same_gradient(
    small: Any, random_samples: Samples, rank: int, is_packed: bool
) -> None:
    plain = learner_of(small, rank=rank)
    again = learner_of(small, rank=rank, gradient_checkpointing=True)
    if not is_packed:
        pad(plain)
        pad(again)
    same_gradient(again, plain, random_samples(LENGTHS))


def counted(run: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    def wrapped(*args: Any, **more: Any) -> Any:
        calls.append(1)
        return run(*args, **more)

    return wrapped


def test_with_checkpointing_a_layer_keeps_nothing_and_is_computed_twice(
    small: Any, random_samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice a micro-batch where gradients are wanted, once elsewhere, and as ever afterwards."""
    found = {}
    for is_asked in (False, True):
        learner = learner_of(small, gradient_checkpointing=is_asked)
        calls: list[int] = []
        monkeypatch.setattr(FusedLayer, "run", counted(FusedLayer.run, calls))
        learner.gradients(random_samples([40, 40]), GRPO())
        monkeypatch.undo()
        found[is_asked] = len(calls)
    assert found == {False: 4, True: 8}  # two layers, two micro-batches


@pytest.mark.parametrize("is_asked", [False, True])
def test_layers_of_other_models_are_computed_again_too(
    small: Any, random_samples: Samples, is_asked: bool
) -> None:
    learner = learner_of(small, gradient_checkpointing=is_asked)
    learner.forward._fused = None
    calls: list[int] = []
    attention = learner.forward.network.layers[0].self_attn
    attention.register_forward_pre_hook(lambda *_: calls.append(1))
    learner.gradients(random_samples([40, 40]), GRPO())
    assert len(calls) == 1 + is_asked
    assert "forward" not in vars(learner.forward.network.layers[0])


def test_a_model_without_layers_to_compute_again_is_one_line(small: Any) -> None:
    class Bare(torch.nn.Module):
        """A network whose blocks transformers does not mark."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)
            self.config = copy.deepcopy(small[0].config)
            self.config.layer_types = ["other"]

    settings = LearnerSettings(gradient_checkpointing=True)
    wanted = r"^learner.gradient_checkpointing must be false for a model of type llama"
    with pytest.raises(ConfigError, match=wanted):
        TrainingForward(Bare(), settings, torch.float32)


@pytest.mark.parametrize("is_asked", [False, True])
def test_compiled_passes_give_the_same_gradient(
    small: Any, random_samples: Samples, monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    """Traced and cut into graphs as for a compiler, but run by torch itself: that needs none here."""
    traced: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        traced.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    monkeypatch.setattr(shutil, "which", lambda _name: "/usr/bin/c++")
    torch._dynamo.reset()
    network = copy.deepcopy(small[0])
    del network.model.layers[1:]  # tracing takes its time per layer
    network.config.num_hidden_layers = 1
    parts = (network, small[1])
    same_gradient(learner_of(parts, compile=is_asked), learner_of(parts), random_samples(LENGTHS))
    assert bool(traced) is is_asked


def test_compiling_without_a_compiler_is_one_line(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(ConfigError, match=r"^learner.compile needs a C\+\+ compiler"):
        learner_of(small, compile=True)


def test_the_critic_has_one_value_packed_or_padded(small: Any, random_samples: Samples) -> None:
    learner, samples = learner_of(small), random_samples(LENGTHS)
    learner.start_critic(PPO().critic_lr)
    critic = learner.critic
    assert critic is not None
    with torch.no_grad():
        critic.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    found = {}
    for is_packed in (True, False):
        critic.forward.is_packed = is_packed
        found[is_packed] = critic.values(samples)
    for one, two in zip(found[True], found[False], strict=True):
        assert abs(one).max() > 0.1
        assert one == pytest.approx(two, abs=1e-4)


@pytest.mark.parametrize(
    "network",
    [
        GPT2LMHeadModel(GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4)),
        MambaForCausalLM(MambaConfig(vocab_size=300, hidden_size=32, num_hidden_layers=2)),
    ],
    ids=["gpt2", "mamba"],
)
def test_any_architecture_has_the_gradient_of_its_samples_one_by_one(
    small: Any, random_samples: Samples, network: Any
) -> None:
    learner = TorchLearner(
        network.eval(), small[1], ModelSettings(), LearnerSettings(micro_tokens=10_000), seed=0
    )
    samples = random_samples(LENGTHS)
    summed = GRPO(aggregation="token_sum")
    whole = learner.gradient(samples, summed).values.numpy()
    parts = [learner.gradient([one], summed).values.numpy() for one in samples]
    assert abs(whole).max() > 1e-2
    assert whole == pytest.approx(sum(parts), abs=1e-3)


def test_a_cpu_takes_micro_batches_that_its_caches_hold(small: Any) -> None:
    forward = TrainingForward(small[0].get_decoder(), LearnerSettings(), torch.float32)
    assert forward.micro_tokens == 2048
    asked = TrainingForward(small[0].get_decoder(), LearnerSettings(micro_tokens=7), torch.float32)
    assert asked.micro_tokens == 7


def test_two_threads_give_one_gradient_every_time(embedded: Any, random_samples: Samples) -> None:
    """Where samples share a beginning, threads would add to its last row in any order."""
    samples = random_samples([120] * 128)
    for sample in samples:
        sample.ids_T[:98] = samples[0].ids_T[:98]
    learner = learner_of(embedded, micro_tokens=8000)
    torch.set_num_threads(2)
    try:
        found = [learner.gradient(samples, GRPO()).values.numpy() for _ in range(4)]
    finally:
        torch.set_num_threads(1)
    assert all(np.array_equal(one, found[0]) for one in found)
