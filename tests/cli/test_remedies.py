"""What the examination tells people to do can be done: its settings and commands exist."""

from __future__ import annotations

import re

import pytest

from ragen2.cli.app import app
from ragen2.config import RunConfig, apply_override, parse_config
from ragen2.diagnostics.judging.causes import REMEDIES
from ragen2.diagnostics.judging.examination import FAILURE_ADVICE, MORE, TO_KNOW
from ragen2.trainer.warmstart import WarmstartConfig

ADVICE = [
    *(remedy.next for remedy in REMEDIES.values()),
    *FAILURE_ADVICE.values(),
    *TO_KNOW.values(),
    MORE,
]
SETTINGS = sorted({name for text in ADVICE for name in re.findall(r"--set (\S+?=[^\s`]+)", text)})
NAMED = sorted({name for text in ADVICE for name in re.findall(r"`(\w+\.\w+)`", text)})
VERBS = sorted({name for text in ADVICE for name in re.findall(r"`ragen2 (\w+)", text)})


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_is_one_that_a_run_or_a_warm_start_takes(setting):
    model = WarmstartConfig if setting.startswith("groundedness") else RunConfig
    parse_config(model, apply_override({}, setting))


@pytest.mark.parametrize("name", NAMED)
def test_every_name_is_that_of_a_setting(name):
    table, setting = name.split(".")
    assert setting in type(getattr(RunConfig(), table)).model_fields


def test_every_command_is_a_verb():
    known = {one.name or one.callback.__name__ for one in app.registered_commands}
    known |= {one.name for one in app.registered_groups}
    assert set(VERBS) <= known
    assert len(VERBS) >= 5
