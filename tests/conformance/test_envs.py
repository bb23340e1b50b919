"""The conformance suite, once on every environment that comes with the package.

``RAGEN2_TEST_SEEDS`` says on how many seeds, half of them held out; 40 unless given.
"""

import os

import pytest

from ragen2.envs import Env, check_env, make
from ragen2.envs.check.conformance import some_seeds
from ragen2.reference import built_in_kinds

KINDS = [member.model_fields["kind"].default for member in built_in_kinds(Env)]
NUM_SEEDS = int(os.environ.get("RAGEN2_TEST_SEEDS", "40"))
FEWER = {"DeepCoder": 6}
"""Their steps run programs: a few seeds unless many are asked for."""
SETTINGS = {"DeepCoder": {"seconds_per_program": 1.0}}
"""Odd actions that never end are given up sooner."""


@pytest.mark.parametrize("kind", KINDS)
def test_the_contract_holds(kind):
    seeds = some_seeds(NUM_SEEDS if NUM_SEEDS >= 200 else FEWER.get(kind, NUM_SEEDS))
    assert len(check_env(make(kind, **SETTINGS.get(kind, {})), seeds)) >= 14
