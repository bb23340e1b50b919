"""The GPU's operations are those of the CPU. On a GPU, or anywhere under Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton (make parity runs these under its interpreter)")
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not IS_INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)

from ragen2.backends import kernels  # noqa: E402
from ragen2.backends.learner import operations  # noqa: E402
from ragen2.backends.learner.operations import (  # noqa: E402
    GPUOperations,
    Rotation,
    TorchOperations,
)

DEVICE = "cpu" if IS_INTERPRETED else "cuda"
TOKENS, HIDDEN, INNER, EPS = 21, 40, 24, 1e-5
HEADS = (4, 2, 16)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(kernels, "GATE_BLOCK", 16)
    monkeypatch.setattr(operations, "NORM_ROWS", 4)


def both() -> tuple[GPUOperations, TorchOperations]:
    return GPUOperations(EPS, HEADS, torch.float32), TorchOperations(EPS, HEADS)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(DEVICE)


def assert_same(found: object, wanted: object) -> None:
    to_cpu = [torch.utils._pytree.tree_map(lambda t: t.cpu(), each) for each in (found, wanted)]
    torch.testing.assert_close(*to_cpu, atol=1e-5, rtol=1e-5)


def test_norms() -> None:
    gpu, cpu = both()
    x, delta, weight = drawn(TOKENS, HIDDEN), drawn(TOKENS, HIDDEN), drawn(HIDDEN)
    assert_same(gpu.norm(x, weight), cpu.norm(x, weight))
    assert_same(gpu.add_norm(x, delta, weight), cpu.add_norm(x, delta, weight))
    inputs = (drawn(TOKENS, HIDDEN), x, weight, drawn(TOKENS, HIDDEN))
    assert_same(gpu.norm_back(*inputs), cpu.norm_back(*inputs))


def test_gates() -> None:
    gpu, cpu = both()
    gates, grad = drawn(TOKENS, 2 * INNER), drawn(TOKENS, INNER)
    assert_same(gpu.gate(gates), cpu.gate(gates))
    assert_same(gpu.gate_back(gates, grad), cpu.gate_back(gates, grad))


@pytest.mark.parametrize("has_norms", [False, True])
def test_heads(has_norms: bool) -> None:
    gpu, cpu = both()
    nq, nkv, width = HEADS
    angles = torch.rand(TOKENS, width // 2)
    rotation = Rotation(angles.cos().to(DEVICE), angles.sin().to(DEVICE))
    norms = (drawn(width), drawn(width)) if has_norms else None
    qkv = drawn(TOKENS, (nq + 2 * nkv) * width)
    found, wanted = (each.split_heads(qkv, rotation, norms) for each in (gpu, cpu))
    assert_same(found, tuple(each.contiguous() for each in wanted))
    grads = tuple(drawn(TOKENS, count, width) for count in (nq, nkv, nkv))
    before = qkv if has_norms else None
    assert_same(
        gpu.join_heads(grads, before, rotation, norms),
        cpu.join_heads(grads, before, rotation, norms),
    )
