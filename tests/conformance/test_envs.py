"""The conformance suite on every environment that comes with the package, 200 seeds each."""

import pytest

from ragen2.envs import Env, check_env, make
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.reference import built_in_kinds

KINDS = [member.model_fields["kind"].default for member in built_in_kinds(Env)]
SEEDS = [*range(100), *range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + 100)]
SLOW = {"DeepCoder"}
"""Their steps run programs."""
SETTINGS = {"DeepCoder": {"seconds_per_program": 1.0}}
"""Odd actions that never end are given up sooner."""


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind in SLOW else ()) for kind in KINDS]
)
def test_the_contract_holds_on_200_seeds(kind):
    assert len(check_env(make(kind, **SETTINGS.get(kind, {})), SEEDS)) >= 14
