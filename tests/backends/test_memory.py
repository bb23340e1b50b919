"""Sizes by what is free, and smaller ones when memory runs out: the result is the one of enough memory."""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2Config

from ragen2.algorithms import GRPO, PPO
from ragen2.backends.agent import make_agent
from ragen2.backends.learner import forward as forward_module
from ragen2.backends.learner.forward import TrainingForward
from ragen2.backends.learner.learner import TorchLearner
from ragen2.backends.learner.microbatches import Microbatch, TokenBudget
from ragen2.backends.memory import (
    fitting,
    give_back_spare,
    is_out_of_memory,
    scoring_bytes,
    training_bytes,
    until_it_fits,
)
from ragen2.backends.sampling import hf
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.scoring import pairs as pairs_module
from ragen2.backends.settings import LearnerSettings, ModelSettings, NewModel
from ragen2.policy import Pair, Request, SamplingParams
from ragen2.types import Sample

Samples = Callable[..., list[Sample]]
FULL = (
    "CUDA out of memory. Tried to allocate 4.23 GiB. GPU 0 has a total capacity of 139.80 GiB of which "
    "3.07 GiB is free."
)
LENGTHS = [40, 44, 31, 50, 27, 42, 38, 25]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


# --- sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "bytes_each", "free", "found"),
    [
        (32_768, 100, 6_553_600, 32_768),  # exactly half of what is free
        (32_768, 100, 6_553_599, 16_384),
        (32_768, 100, 700_000, 2_048),
        (32_768, 100, 0, 1_024),  # the least is tried whatever is free
        (900, 100, 0, 900),
    ],
)
def test_a_pass_takes_half_of_what_is_free_and_counts_in_halves(
    most: int, bytes_each: int, free: int, found: int
) -> None:
    assert fitting(most, bytes_each, free, least=min(most, 1_024)) == found


def test_a_pass_of_seven_billion_weights_fits_beside_them_in_40_gib() -> None:
    """Qwen2.5-7B under LoRA: 14.2 GiB of weights, 2 of adapters and the context, a cache of three tenths."""
    shape = Qwen2Config(
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
    )
    each = training_bytes(shape, size=2, keeps_layers=False, is_fused=True)
    assert each == 28 * 3584 * 4 + (6 * 18944 + 20 * 3584) * 2
    free = int(0.7 * (40 - 14.2 - 2) * 2**30)
    tokens = fitting(32_768, each, free)
    assert tokens == 8_192
    assert tokens * each < 0.5 * free
    assert training_bytes(shape, size=2, keeps_layers=True, is_fused=True) > 4 * each
    assert training_bytes(shape, size=2, keeps_layers=False, is_fused=False) > 1.4 * each
    keys = 2 * 28 * 512 * 2
    assert scoring_bytes(shape) == keys + (4 * 18944 + 12 * 3584) * 2
    assert fitting(16_384, scoring_bytes(shape), free) == 16_384


def test_the_largest_micro_batch_of_several_is_cut_in_two_until_each_sample_is_alone() -> None:
    budget = TokenBudget(1000)
    assert not budget.halve(), "nothing was cut yet"
    budget.note([[0, 1], [2], [3, 4]], [10, 20, 99, 30, 5])
    assert budget.halve()
    assert (budget.most, budget.now) == (17, 17)
    budget.note([[0], [1], [2]], [10, 20, 99])
    assert not budget.halve()
    assert budget.most == 17


# --- trying again ----------------------------------------------------------------------------------


def test_work_is_tried_again_with_less_and_each_time_one_line_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    size = 8

    def work() -> int:
        if size > 2:
            raise torch.OutOfMemoryError(FULL)
        return size

    def shrink() -> str:
        nonlocal size
        size //= 2
        return f"{size} at once"

    assert until_it_fits(work, shrink) == 2
    start = "CUDA out of memory. Tried to allocate 4.23 GiB; going on with "
    assert warnings_of(caplog) == [start + "4 at once", start + "2 at once"]


def test_what_cannot_be_smaller_raises_what_it_raised() -> None:
    def work() -> None:
        raise torch.OutOfMemoryError(FULL)

    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 4\.23 GiB"):
        until_it_fits(work, lambda: "")


def test_other_errors_are_not_tried_again() -> None:
    tries: list[int] = []

    def work() -> None:
        tries.append(1)
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        until_it_fits(work, lambda: "less")
    assert len(tries) == 1


def test_what_failed_work_held_is_free_before_the_next_try() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def work() -> bool:
        large = torch.zeros(1000)
        if not held:
            held.append(weakref.ref(large))
            raise torch.OutOfMemoryError(FULL)
        return True

    def shrink() -> str:
        assert held[0]() is None
        return "less"

    assert until_it_fits(work, shrink)


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (torch.OutOfMemoryError(FULL), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError(), False),
    ],
)
def test_which_errors_are_about_memory(error: RuntimeError, is_full: bool) -> None:
    assert is_out_of_memory(error) is is_full
    later = RuntimeError("operation failed due to a previous error during capture")
    later.__context__ = error
    assert is_out_of_memory(later) is is_full


def test_one_full_process_makes_all_of_them_smaller() -> None:
    """This one had enough memory both times; another was full the first time."""
    said = iter([0, 1])
    sizes: list[str] = []

    def shrink() -> str:
        sizes.append("less")
        return sizes[-1]

    assert until_it_fits(lambda: 5, shrink, smallest=lambda own: min(own, next(said))) == 5
    assert sizes == ["less"]
    with pytest.raises(torch.OutOfMemoryError, match="in another process of this job"):
        until_it_fits(lambda: 5, lambda: "", smallest=lambda _: 0)


@pytest.mark.parametrize(
    ("free", "reserved", "gives"),
    [(5, 60, True), (20, 45, False), (5, 95, False)],
    ids=["others need it", "enough is free", "nobody else is there"],
)
def test_unused_memory_goes_back_where_others_need_it(
    monkeypatch: pytest.MonkeyPatch, free: int, reserved: int, gives: bool
) -> None:
    gib = 2**30
    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free * gib, 100 * gib))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: reserved * gib)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    give_back_spare(torch.device("cuda"))
    assert bool(emptied) is gives
    give_back_spare(torch.device("cpu"))
    assert bool(emptied) is gives


# --- updates ---------------------------------------------------------------------------------------


def learner_of(parts: Any, **settings: Any) -> TorchLearner:
    chosen = LearnerSettings(**{"lr": 1e-3, "micro_tokens": 10_000, **settings})
    return TorchLearner(copy.deepcopy(parts[0]), parts[1], ModelSettings(), chosen, seed=0)


@pytest.fixture
def small_device(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A device on which a pass has at most 150 tokens; it runs out in the middle, after some gradients."""
    sizes: list[int] = []
    rows = TrainingForward.rows

    def limited(self: TrainingForward, batch: Microbatch) -> torch.Tensor:
        sizes.append(batch.ids.numel())
        found = rows(self, batch)
        if sizes[-1] <= 150:
            return found
        if found.requires_grad:
            found.sum().backward(retain_graph=True)  # what is left behind must not count
        raise torch.OutOfMemoryError(FULL)

    monkeypatch.setattr(TrainingForward, "rows", limited)
    return sizes


@pytest.mark.parametrize("asked", ["auto", True])
def test_an_update_that_runs_out_of_memory_has_the_gradient_of_one_that_does_not(
    small: Any,
    random_samples: Samples,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    asked: Any,
) -> None:
    samples = random_samples(LENGTHS)
    wanted = learner_of(small, micro_tokens=150).gradient(samples, GRPO()).values
    whole = learner_of(small).gradient(samples, GRPO()).values
    sizes = request.getfixturevalue("small_device")
    learner = learner_of(small, gradient_checkpointing=asked)
    found = learner.gradient(samples, GRPO()).values
    assert (found - whole).abs().max() < 1e-5
    assert (found - wanted).abs().max() < 1e-5
    assert max(sizes[-3:]) <= 150
    lines = [line.split("going on with ")[1] for line in warnings_of(caplog)]
    again = ["layers that compute again in the backward pass"] if asked == "auto" else []
    assert lines[: len(again)] == again
    assert lines[len(again) :] == [f"micro-batches of up to {sum(LENGTHS) // 2} tokens"]
    tries = len(sizes)
    learner.update(samples, GRPO(), scale=1.0)
    assert max(sizes[tries:]) <= 150, "it stays small"
    assert len(warnings_of(caplog)) == len(lines)


def test_a_sample_that_does_not_fit_alone_ends_the_run(
    small: Any, random_samples: Samples, small_device: list[int]
) -> None:
    learner = learner_of(small)
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 4\.23 GiB"):
        learner.update(random_samples([40, 160, 30]), GRPO(), scale=1.0)
    assert 160 in small_device[-3:]


def test_kl_to_the_reference_and_the_critic_shrink_too(
    small: Any, random_samples: Samples, request: pytest.FixtureRequest
) -> None:
    samples = [
        replace(s, values_T=np.zeros(len(s.ids_T)), returns_T=np.where(s.loss_mask_T, 1.0, 0.0))
        for s in random_samples(LENGTHS)
    ]

    def results(learner: TorchLearner) -> list[Any]:
        learner.keep_reference()
        learner.start_critic(1e-3)
        kl = learner.kl_to_reference(samples, "k3")
        for _ in range(2):
            trained = learner.update_critic(samples, PPO().critic)
        return [*kl, *learner.values(samples), trained["value_loss"]]

    wanted = results(learner_of(small))
    request.getfixturevalue("small_device")
    for one, other in zip(results(learner_of(small)), wanted, strict=True):
        assert one == pytest.approx(other, abs=1e-4)


def test_what_the_sampler_keeps_is_asked_for_first(
    small: Any, random_samples: Samples, small_device: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    learner = learner_of(small)
    asked: list[bool] = []

    def spare() -> bool:
        asked.append(True)
        return len(asked) == 1

    learner.set_spare(spare)
    learner.gradients(random_samples(LENGTHS), GRPO())
    lines = [line.split("going on with ")[1] for line in warnings_of(caplog)]
    assert lines[0] == "less kept by the sampler"
    assert len(lines) == 3
    learner.start_critic(1e-3)
    assert learner.critic is not None
    assert learner.critic.forward.spare is spare


def test_averages_that_found_no_memory_are_made_when_there_is_some(
    small: Any, random_samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = random_samples(LENGTHS)
    one, two = learner_of(small), learner_of(small)
    one.update(samples, GRPO(), scale=1.0)
    made, zeros_like = [0], torch.zeros_like

    def limited(*args: Any, **more: Any) -> torch.Tensor:
        made[0] += 1
        if made[0] == 6:  # the second average of the third weight
            raise torch.OutOfMemoryError(FULL)
        return zeros_like(*args, **more)

    given: list[bool] = []
    two.set_spare(lambda: given.append(True) is None)
    step = two.optimiser.step

    def full_step() -> None:
        with monkeypatch.context() as full:
            full.setattr(torch, "zeros_like", limited)
            step()

    monkeypatch.setattr(two.optimiser, "step", full_step)
    two.update(samples, GRPO(), scale=1.0)
    assert given == [True]
    for mine, other in zip(one.network.parameters(), two.network.parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize(("gib", "tokens"), [(100, 32_768), (1, 8_192), (0, 1_024)])
def test_on_a_gpu_micro_batches_are_planned_by_what_is_free(
    small: Any, monkeypatch: pytest.MonkeyPatch, gib: int, tokens: int
) -> None:
    monkeypatch.setitem(forward_module.MICRO_TOKENS, "cpu", 32_768)  # as on a GPU
    learner = learner_of(small, micro_tokens=0)
    shape = learner.network.config
    monkeypatch.setattr(shape, "num_hidden_layers", 256)
    weights = sum(p.nbytes for p in learner.forward.network.parameters())
    monkeypatch.setattr(forward_module, "free_memory", lambda _: gib * 2**30 + weights)
    assert not learner.forward._is_planned, "on a CPU nothing is"
    learner.forward._is_planned = True
    learner.forward._plan()
    assert learner.forward._budget.now == tokens
    each = training_bytes(shape, size=4, keeps_layers=False, is_fused=True)
    assert each * tokens <= 0.5 * gib * 2**30 or tokens == 1_024
    assert learner.forward.micro_tokens == 32_768, "more, when more is free"


def test_layers_of_hugging_face_compute_again_once_memory_has_run_out(
    small: Any, random_samples: Samples, small_device: list[int]
) -> None:
    learner = learner_of(small)
    learner.forward._fused = None
    assert not learner.forward._layers
    learner.gradients(random_samples(LENGTHS), GRPO())
    assert len(learner.forward._layers) == 2


# --- sampling and scoring --------------------------------------------------------------------------


def requests_of(count: int) -> list[Request]:
    rng = np.random.default_rng(0)
    return [Request(rng.integers(5, 250, 8 + n % 3), (n,)) for n in range(count)]


def test_fewer_sequences_at_once_write_the_same(
    small: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    params, requests = SamplingParams(max_tokens=6, stop=()), requests_of(9)
    wanted = HFPolicy(*small, engine="plain").sample(requests, params)
    policy, at_once = HFPolicy(*small, engine="plain"), []
    run = hf._PlainDecodeLoop.run

    def limited(self: Any) -> Any:
        at_once.append(len(self.requests))
        if at_once[-1] > 3:
            raise torch.OutOfMemoryError(FULL)
        return run(self)

    monkeypatch.setattr(hf._PlainDecodeLoop, "run", limited)
    found = policy.sample(requests, params)
    assert [one.ids_T.tolist() for one in found] == [one.ids_T.tolist() for one in wanted]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.logprobs_T, other.logprobs_T, atol=1e-5)
    assert at_once == [9, 4, 2, 2, 2, 2, 1]
    assert len(warnings_of(caplog)) == 2
    monkeypatch.setattr(hf, "_PlainDecodeLoop", _AlwaysFull)
    with pytest.raises(torch.OutOfMemoryError):
        policy.sample(requests, params)


class _AlwaysFull:
    def __init__(self, *_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError(FULL)


def test_fewer_tokens_at_once_score_the_same(
    small: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rng = np.random.default_rng(1)
    texts = [rng.integers(5, 250, length) for length in (6, 9, 12, 5)]
    pairs = [Pair(context, text) for context in texts[:2] for text in texts[2:]]
    policy = HFPolicy(*small)
    wanted = policy.score(pairs)
    method = policy.scorer.method()

    def limited(split_model: Any, jobs: Any, temperature: float, most: int) -> Any:
        if most > 60:
            raise torch.OutOfMemoryError(FULL)
        return method(split_model, jobs, temperature, most)

    monkeypatch.setattr(policy.scorer, "_method", limited)
    for one, other in zip(policy.score(pairs), wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert policy.scorer.max_tokens == 32
    assert len(warnings_of(caplog)) == 9
    monkeypatch.setattr(policy.scorer, "_method", _AlwaysFull)
    with pytest.raises(torch.OutOfMemoryError):
        policy.score(pairs)


def test_trees_are_not_given_up_because_memory_ran_out(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = HFPolicy(*small)
    monkeypatch.setattr(pairs_module, "score_by_copies", _AlwaysFull)
    with pytest.raises(torch.OutOfMemoryError):
        pairs_module.honours_trees(policy.split_model)


def test_without_memory_for_an_engine_sampling_goes_on_without_it(
    small: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError(FULL)

    monkeypatch.setattr(hf, "open_engine", full)
    policy, params = HFPolicy(*small), SamplingParams(max_tokens=3)
    assert len(policy.sample(requests_of(2), params)) == 2
    (line,) = warnings_of(caplog)
    assert "no memory for a copy of the weights" in line


@pytest.mark.parametrize("choice", ["auto", "plain"])
def test_a_sampler_gives_back_what_it_keeps_and_writes_on(small: Any, choice: Any) -> None:
    params, first = SamplingParams(max_tokens=4, stop=()), requests_of(3)
    kept, dropped = (HFPolicy(*small, engine=choice) for _ in range(2))
    assert not dropped.give_back(), "nothing was written yet"
    dropped.sample(first, params)
    replies = kept.sample(first, params)
    assert dropped.give_back()
    assert not dropped.give_back()
    second = [
        Request(np.concatenate([r.prompt_ids_T, c.ids_T, [9, 8]]), ("b", n))
        for n, (r, c) in enumerate(zip(first, replies, strict=True))
    ]
    found, wanted = (policy.sample(second, params) for policy in (dropped, kept))
    assert [one.ids_T.tolist() for one in found] == [one.ids_T.tolist() for one in wanted]


def test_an_agents_learner_may_ask_its_sampler() -> None:
    shape = NewModel(hidden=32, layers=1, heads=2, intermediate=32, vocabulary=300, context=64)
    agent = make_agent(shape, ["go down"] * 4, LearnerSettings(), device="cpu", seed=0)
    agent.local.sample([Request(np.arange(5, 9), (0,))], SamplingParams(max_tokens=2))
    assert agent.learner.forward.spare()
    assert not agent.learner.forward.spare()
