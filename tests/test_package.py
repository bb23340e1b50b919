"""The package from outside: its public names, and that only the backends import torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ragen2

TORCH_FREE = (
    "ragen2",
    "ragen2.config",
    "ragen2.rollout",
    "ragen2.scoring",
    "ragen2.diagnostics",
    "ragen2.filtering",
    "ragen2.algorithms",
    "ragen2.envs",
    "ragen2.backends.scripted",
    "ragen2.trainer.loop",
    "ragen2.trainer.warmstart",
    "ragen2.reports.page",
    "ragen2.cli.app",
)


def test_no_room_but_the_backends_imports_torch():
    heavy = ("torch", "transformers", "tokenizers", "peft", "gymnasium")
    code = f"import sys, {', '.join(TORCH_FREE)}; print([m for m in {heavy} if m in sys.modules])"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert printed.strip() == "[]"


def test_every_public_name_is_there():
    for name in ragen2.__all__:
        assert getattr(ragen2, name) is not None


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'ragen2' has no attribute 'selekt'"):
        _ = ragen2.selekt


def test_the_two_calls_of_the_contract_work_as_written():
    selection = ragen2.select([[0, 1, 1, 0], [1, 1, 1, 1]], kind="top_p", mass=0.9)
    assert selection.kept_P.tolist() == [True, False]
    metrics = ragen2.measure([[-1.0, -9.0], [-9.0, -1.0]], [3, 3], [0, 1])
    assert metrics["retrieval_accuracy"] == 1.0
