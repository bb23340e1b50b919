"""The wish for one order of adding is torch's own setting, and is taken back afterwards."""

from __future__ import annotations

import os

import pytest
import torch
from torch.utils import deterministic

from ragen2.backends.device import (
    WORKSPACE,
    deterministic_sums,
    has_deterministic_sums,
    prepare_products,
)


def look_and_fail():
    with deterministic_sums():
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert not deterministic.fill_uninitialized_memory
        raise ValueError("inside")


def test_it_holds_inside_only_and_outlives_an_error():
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(ValueError, match="inside"):
        look_and_fail()
    assert not torch.are_deterministic_algorithms_enabled()
    assert deterministic.fill_uninitialized_memory


def test_a_users_own_wish_is_kept(monkeypatch):
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with deterministic_sums():
            pass
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    monkeypatch.setenv(WORKSPACE, ":16:8")
    prepare_products()
    assert os.environ[WORKSPACE] == ":16:8"


def test_the_embedded_model_has_one_order(embedded):
    # Threads of a CPU race too: where samples share a beginning, its rows get several gradients.
    assert has_deterministic_sums(embedded[0])
