"""Chosen log-probs: chunks save memory and change neither values nor gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ragen2.backends.learner import logprobs
from ragen2.backends.learner.logprobs import SplitModel, chosen_logprobs, rows_per_chunk

ROWS, WIDTH, VOCABULARY = 37, 16, 50


@pytest.fixture
def parts() -> tuple[torch.Tensor, torch.Tensor, torch.nn.Linear]:
    """Hidden rows, wanted tokens and a head."""
    numbers = torch.Generator().manual_seed(1)
    hidden = torch.randn(ROWS, WIDTH, generator=numbers)
    targets = torch.randint(VOCABULARY, (ROWS,), generator=numbers)
    head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.randn(VOCABULARY, WIDTH, generator=numbers))
    return hidden, targets, head


def test_values_are_log_softmax_and_entropy(
    parts: tuple[torch.Tensor, torch.Tensor, torch.nn.Linear],
) -> None:
    hidden, targets, head = parts
    logp, entropy = chosen_logprobs(hidden, targets, head, temperature=0.7)
    wanted = torch.distributions.Categorical(logits=head(hidden) / 0.7)
    torch.testing.assert_close(logp, wanted.log_prob(targets))
    torch.testing.assert_close(entropy, wanted.entropy())


@pytest.mark.parametrize("rows", [1, 5, ROWS - 1])
def test_chunks_change_neither_values_nor_gradients(
    parts: tuple[torch.Tensor, torch.Tensor, torch.nn.Linear],
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
) -> None:
    hidden, targets, head = parts

    def run() -> tuple[torch.Tensor, ...]:
        leaf = hidden.clone().requires_grad_()
        head.zero_grad()
        logp, entropy = chosen_logprobs(leaf, targets, head, temperature=0.7)
        (logp.sum() + (entropy**2).sum()).backward()
        assert leaf.grad is not None
        assert head.weight.grad is not None
        return logp.detach(), entropy.detach(), leaf.grad, head.weight.grad.clone()

    whole = run()
    monkeypatch.setattr(logprobs, "MAX_LOGITS", rows * VOCABULARY)
    assert rows_per_chunk(VOCABULARY) == rows
    for one, two in zip(run(), whole, strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rows", [4, ROWS])
def test_gradients_are_those_of_log_softmax(
    parts: tuple[torch.Tensor, torch.Tensor, torch.nn.Linear],
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    has_bias: bool,
) -> None:
    """Each row pulls by its own amount, so that a row's gradient given to another would show."""
    hidden, targets, plain = parts
    head = torch.nn.Linear(WIDTH, VOCABULARY, bias=has_bias)
    with torch.no_grad():
        head.weight.copy_(plain.weight)
    pull, spread = torch.linspace(-1, 2, ROWS), torch.linspace(3, -1, ROWS)
    monkeypatch.setattr(logprobs, "MAX_LOGITS", rows * VOCABULARY)

    def gradients(logp: torch.Tensor, entropy: torch.Tensor) -> list[torch.Tensor]:
        wanted = [leaf, *head.parameters()]
        return list(torch.autograd.grad((pull * logp + spread * entropy).sum(), wanted))

    leaf = hidden.clone().requires_grad_()
    found = gradients(*chosen_logprobs(leaf, targets, head, temperature=0.7))
    naive = torch.distributions.Categorical(logits=head(leaf) / 0.7)
    wanted = gradients(naive.log_prob(targets), naive.entropy())
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)


def test_a_frozen_head_gets_no_gradient_and_its_input_does(
    parts: tuple[torch.Tensor, torch.Tensor, torch.nn.Linear],
) -> None:
    hidden, targets, head = parts
    head.requires_grad_(False)
    leaf = hidden.clone().requires_grad_()
    chosen_logprobs(leaf, targets, head, temperature=1.0)[0].sum().backward()
    assert head.weight.grad is None
    assert leaf.grad is not None
    assert leaf.grad.abs().max() > 0.0


def test_nothing_of_the_vocabularys_size_is_kept_for_the_backward_pass(
    parts: tuple[torch.Tensor, torch.Tensor, torch.nn.Linear],
) -> None:
    hidden, targets, head = parts
    kept: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        chosen_logprobs(hidden.clone().requires_grad_(), targets, head, temperature=0.7)
    assert head.weight.numel() in kept
    assert max(kept) < ROWS * VOCABULARY


def test_a_head_that_is_no_matrix_gives_the_same(
    parts: tuple[torch.Tensor, torch.Tensor, torch.nn.Linear], monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, targets, head = parts
    wrapped = torch.nn.Sequential(head)
    found = []
    for one in (head, wrapped):
        monkeypatch.setattr(logprobs, "MAX_LOGITS", 5 * VOCABULARY)
        head.zero_grad()
        logp, entropy = chosen_logprobs(hidden, targets, one, temperature=0.7)
        (logp + entropy.square()).sum().backward()
        assert head.weight.grad is not None
        found.append((logp.detach(), entropy.detach(), head.weight.grad.clone()))
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)


def test_chunks_without_gradients_give_the_same_values(
    parts: tuple[torch.Tensor, torch.Tensor, torch.nn.Linear], monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, targets, head = parts
    with torch.no_grad():
        whole = chosen_logprobs(hidden, targets, head, temperature=1.0)
        monkeypatch.setattr(logprobs, "MAX_LOGITS", 3 * VOCABULARY)
        cut = chosen_logprobs(hidden, targets, head, temperature=1.0)
    torch.testing.assert_close(cut, whole)


def test_a_vocabulary_larger_than_a_chunk_still_goes_row_by_row() -> None:
    assert rows_per_chunk(10**12) == 1


def test_a_head_and_its_trunk_give_the_models_logits(embedded: Any) -> None:
    network = embedded[0]
    split_model = SplitModel(network)
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        rows, head, _ = split_model(ids, torch.ones_like(ids), use_cache=False)
        torch.testing.assert_close(head(rows), network(ids).logits)
    assert split_model.splits


def test_a_model_that_scales_logits_after_its_head_is_not_split(small: Any) -> None:
    network = small[0]
    plain = network.forward

    def scaled(*args: Any, **options: Any) -> Any:
        out = plain(*args, **options)
        out.logits = out.logits / 2
        return out

    network.forward = scaled
    split_model = SplitModel(network)
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        rows, head, _ = split_model(ids, torch.ones_like(ids), use_cache=False)
        torch.testing.assert_close(head(rows), network(ids).logits)
    assert not split_model.splits
