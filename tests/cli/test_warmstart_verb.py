"""``ragen2 warmstart`` as a user starts it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from ragen2.cli.app import app
from ragen2.config import dump_config
from ragen2.trainer.card import warmstart_card
from ragen2.trainer.warmstart import WarmstartConfig


def test_the_folder_opens_as_a_model_and_carries_a_card(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("steps = 2\nbatch = 2\n")
    words = ["warmstart", str(recipe), "--out", str(tmp_path / "warm")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    AutoModelForCausalLM.from_pretrained(tmp_path / "warm")
    config = WarmstartConfig(steps=2, batch=2)
    said = tomllib.loads((tmp_path / "warm/warmstart.toml").read_text())
    assert said == tomllib.loads(dump_config(config))
    (loss,) = re.findall(r"step 2/2  loss ([\d.]+) nats per token", done.output)
    assert (tmp_path / "warm/README.md").read_text() == warmstart_card(config, float(loss))
