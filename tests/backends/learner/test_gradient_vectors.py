"""Gradients as vectors: sums that are right, wherever there is room for them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ragen2.backends.learner import optimiser as gradient_module
from ragen2.backends.learner.optimiser import VECTORS, TensorGradient, home_of


def test_a_dot_is_that_of_the_whole_vector_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_module, "CHUNK", 4)
    one, other = torch.arange(10.0), torch.arange(10.0) - 3.0
    assert TensorGradient(one).dot(TensorGradient(other)) == float(one @ other)


def test_a_sum_begins_as_a_copy_and_then_grows_in_place() -> None:
    gradient = TensorGradient(torch.tensor([1.0, 2.0]))
    total = gradient.added_to(None, 3.0)
    assert gradient.added_to(total, -1.0) is total
    assert total.values.tolist() == [2.0, 4.0]
    assert gradient.values.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("vectors", "home"), [(VECTORS, "cuda"), (VECTORS - 1, "cpu")])
def test_gradients_stay_on_a_gpu_that_has_room_for_several(
    monkeypatch: pytest.MonkeyPatch, vectors: int, home: str
) -> None:
    numbers = 100
    monkeypatch.setattr(gradient_module, "free_memory", lambda _: vectors * numbers * 4)
    parameter = SimpleNamespace(device=torch.device("cuda"), numel=lambda: numbers)
    assert home_of([parameter]).type == home
