"""The page about servers is true: its commands run, its settings exist, its totals have that form."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

import pytest
from faulty_server import Behaviour, serving
from typer.testing import CliRunner

from ragen2.backends.agent import open_tokenizer
from ragen2.backends.remote.client import NOT_NOW, NOT_THERE, REFUSED, Usage
from ragen2.backends.settings import EMBEDDED, ServerSettings
from ragen2.cli.app import app

DOCS = Path(__file__).parents[3] / "docs"
PAGES = {name: (DOCS / "integrations" / f"{name}.md").read_text() for name in ("servers", "vllm")}
FEW = [
    "--tasks=4",
    "--set=rollout.prompts=4",
    "--set=rollout.group_size=4",
    "--set=env.max_turns=2",
]


def commands(page: str) -> list[list[str]]:
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert all(line.startswith("$ ragen2 ") for line in lines)
    return [shlex.split(line)[2:] for line in lines]


def invoke(arguments: list[str], folder: Path) -> str:
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_commands_of_the_servers_page_run(tmp_path):
    with serving(Behaviour(open_tokenizer(EMBEDDED).hf)) as url:
        for words in commands("servers"):
            there = [word.replace("http://localhost:8000", url) for word in words]
            told = invoke([*there, *(FEW if words[0] == "eval" else [])], tmp_path)
            asks = any("http:" in word for word in words)
            assert asks == bool(re.search(r"^server: [\d,]+ requests", told, re.MULTILINE))
    made = {path.name for path in (tmp_path / "runs" / "served").iterdir()}
    assert made == {path.name for path in (tmp_path / "runs" / "text").iterdir()}
    files = {"run.toml", "steps.jsonl", "evaluation.jsonl", "rollouts", "completions.jsonl"}
    assert made == {*files, ".lock"}


def test_the_commands_of_the_vllm_page_are_valid(tmp_path):
    assert len(commands("vllm")) == 2
    for words in commands("vllm"):
        invoke([*words, "--dry-run"], tmp_path)


@pytest.mark.parametrize("page", list(PAGES))
def test_settings_named_on_a_page_exist(page):
    named = set(re.findall(r"`server\.(\w+)`", PAGES[page]))
    assert named
    assert named <= ServerSettings.model_fields.keys()


def test_the_codes_on_the_page_are_those_of_the_client():
    rows = re.findall(r"^\| ([\d, ]+\d)[ ,]", PAGES["servers"], re.MULTILINE)
    again, final = ({int(code) for code in row.split(",")} for row in rows)
    assert again == {int(code) for code in NOT_NOW}
    assert final >= {int(code) for code in (REFUSED | NOT_THERE) - {405}}
    assert not final & again


def test_the_totals_on_the_page_have_the_form_of_the_real_ones():
    told = Usage(1210, 3, 402_113, 51_920).line(ServerSettings(input_price=1.0, output_price=6.05))
    assert told in PAGES["servers"]


@pytest.mark.parametrize("page", list(PAGES))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        file = target.partition("#")[0]
        assert (DOCS / "integrations" / file).resolve().exists(), target
