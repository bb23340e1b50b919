"""Models in wheels: what there is, by name."""

from __future__ import annotations

import pytest

from ragen2.backends.wheel_models import WHEEL_MODELS, find_wheel_model
from ragen2.errors import ModelError


def test_a_model_is_found_whatever_the_case() -> None:
    assert find_wheel_model("SmolLM2-135M") is WHEEL_MODELS["smollm2-135m"]


def test_an_unknown_model_suggests_one() -> None:
    with pytest.raises(ModelError, match=r"unknown model 'smolm2'; did you mean 'smollm2-135m'\?"):
        find_wheel_model("smolm2")
