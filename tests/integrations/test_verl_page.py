"""The pages about verl are true: their commands become jobs, and their lists are the code's."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ragen2.cli.app import app
from ragen2.config import dump_config, load_run
from ragen2.integrations import versions
from ragen2.runs.store import RunDirectory

ROOT = Path(__file__).parents[2]
PAGES = ("docs/integrations/verl.md", "docs/scale.md", "examples/scale/ray_cluster.sh")


def commands() -> list[str]:
    """Every `ragen2 train` on the pages, also inside tables and comments."""
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    slurm = (ROOT / "examples/scale/slurm.sbatch").read_text(encoding="utf-8")
    cluster = (ROOT / "examples/scale/kubernetes.yaml").read_text(encoding="utf-8")
    text += slurm.replace("\\\n", " ") + cluster.replace("\n    --nodes", " --nodes")
    found = re.findall(r"ragen2 train (?:RUN\.toml|--resume|/runs|\"\$run_file\")[^`\n]*", text)
    return [one for one in dict.fromkeys(map(str.strip, found)) if "--engine verl" in one]


def words_of(command: str) -> list[str]:
    named = {"$run_file": "RUN.toml", "/runs/run.toml": "RUN.toml", "N": "3"}
    words = [named.get(word, word) for word in shlex.split(command)]
    return [word.replace("$SLURM_JOB_NUM_NODES", "2") for word in words]


def test_there_are_commands():
    assert len(commands()) >= 8


@pytest.mark.parametrize("command", commands())
def test_a_command_on_the_pages_becomes_a_job(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(versions, "require_tested", lambda _: None)  # nothing of it is run
    config = load_run(None, ["seed=4"])
    Path("RUN.toml").write_text(dump_config(config))
    RunDirectory.create(Path("runs/one"), dump_config(config))
    words = words_of(command)
    done = CliRunner().invoke(app, [*words[1:], "--dry-run"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    told = dict(line.split("=", 1) for line in done.output.splitlines() if "=" in line)
    asked = dict(itertools.pairwise(words))
    assert told["trainer.nnodes"] == asked.get("--nodes", "1")
    assert told["trainer.n_gpus_per_node"] == asked.get("--gpus-per-node", "1")
    assert told["data.seed"] == "4"
    if "--engine-set" in asked:
        name, _, value = asked["--engine-set"].partition("=")
        assert told[name] == value


def test_what_the_page_calls_refused_is_refused_and_nothing_else():
    page = (ROOT / "docs/integrations/verl.md").read_text(encoding="utf-8")
    told = page.partition("These are refused:")[2].partition("Settings of verl that")[0]
    code = (ROOT / "src/ragen2/integrations/verl/refusals.py").read_text(encoding="utf-8")
    sections = "algorithm|filter|learner|model|probe|rollout"
    named = set(re.findall(rf'"(?:[^"\n]*, )?((?:{sections})\.\w+|loss_scale) is', code))
    assert named >= {"model.lora_rank", "rollout.history", "probe.every", "loss_scale"}
    for name in named - {"algorithm.kind", "filter.kind"}:
        assert f"`{name}" in told, name
