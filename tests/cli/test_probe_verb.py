"""``ragen2 probe`` as a user starts it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from command_line import Done, assert_refused, settings
from ragen2.backends.agent import open_agent
from ragen2.cli.app import app
from ragen2.cli.views.verdicts import print_probe
from ragen2.config import dump_config, load_run
from ragen2.diagnostics.metrics.gradients import ProbeRecord
from ragen2.errors import RagenError
from ragen2.reports.data.probes import COLUMNS
from ragen2.runs.checkpoints import checkpoint_folder, save_checkpoint
from ragen2.runs.store import RunDirectory

Program = Callable[..., Done]
SMALL = ("--prompts", "2", "--group-size", "2", "--buckets", "2")
FEW = ("rollout.max_tokens=24", "env.max_turns=1")


@pytest.fixture
def run(short_run: tuple[Path, Done], tmp_path: Path) -> Path:
    """A copy of the finished run, as ``run``."""
    shutil.copytree(short_run[0], tmp_path / "run")
    return tmp_path / "run"


def probed(folder: Path) -> ProbeRecord:
    return ProbeRecord.model_validate_json((folder / "probe.json").read_text())


def in_this_process(*words: str | Path) -> None:
    done = CliRunner().invoke(app, ["probe", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_it_prints_a_table_and_writes_numbers_and_page(program: Program, run: Path):
    before = sorted(path.name for path in run.iterdir())
    done = program("probe", "run", *SMALL)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    folder = run / "probe" / "step_000004"
    assert sorted(path.name for path in folder.iterdir()) == [
        "probe.html",
        "probe.json",
    ]
    assert sorted(path.name for path in run.iterdir()) == sorted([*before, "probe"])
    found = probed(folder)
    assert json.loads((folder / "probe.json").read_text())["schema_version"] == 1
    assert (found.run, found.step, found.num_prompts, found.group_size) == ("run", 4, 2, 2)
    assert [bucket.name for bucket in found.buckets] == ["bucket_1", "bucket_2", "all"]
    assert len(found.prompts) == 2
    for word in ("bucket", "centred", "entropy", "SNR", "probe.html"):
        assert word in done.stdout


def test_kl_is_to_the_starting_model_also_where_the_run_has_no_kl_term(run: Path):
    assert load_run(run / "run.toml").algorithm.kl_coefficient == 0.0
    words = (run, *SMALL, *settings(*FEW))
    in_this_process(*words, "--step", "0", "--out", run / "start")
    in_this_process(*words, "--step", "2", "--out", run / "later")
    start, later = probed(run / "start"), probed(run / "later")
    assert (start.step, later.step) == (0, 2)
    assert [prompt.seed for prompt in start.prompts] == [prompt.seed for prompt in later.prompts]
    # A run of this size may have kept nothing, and then its weights are the starting ones.
    moved = not torch.equal(weight(run, 2), weight(run, None))
    for bucket in start.buckets:
        assert bucket.norms["kl"] == pytest.approx(0.0, abs=1e-5)
    assert (later.buckets[-1].norms["kl"] > 1e-5) == moved


def weight(run: Path, step: int | None) -> torch.Tensor:
    config = load_run(run / "run.toml")
    agent = open_agent(config.model, config.learner, seed=0)
    if step is not None:
        agent.learner.load(checkpoint_folder(run, step))
    return next(agent.learner.network.parameters()).detach()


@pytest.mark.parametrize(
    "special", ["algorithm.kind=ppo", "model.lora_rank=2"], ids=["critic", "adapters"]
)
def test_critics_and_adapters_are_opened_with_the_checkpoint(tmp_path: Path, special: str):
    config = load_run(None, [special, *FEW])
    run = RunDirectory.create(tmp_path / "run", dump_config(config))
    agent = open_agent(config.model, config.learner, seed=config.seed, algorithm=config.algorithm)
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in agent.learner.network.parameters():
            if parameter.requires_grad:
                parameter.add_(0.01 * torch.randn(parameter.shape, generator=noise))
    save_checkpoint(run.path, 1, agent.learner.save, keep=1)
    in_this_process(run.path, *SMALL)
    found = probed(run.path / "probe" / "step_000001")
    assert found.algorithm == config.algorithm.kind
    assert found.buckets[-1].norms["kl"] > 1e-3, "the reference is the model before the change"


def test_the_table_fits_80_columns():
    committed = Path(__file__).parents[2] / "results" / "gradient_probe_tiny.json"
    console = Console(width=80, record=True, file=None, force_terminal=False)
    with console.capture() as screen:
        print_probe(ProbeRecord.model_validate_json(committed.read_text()), Path("out"), console)
    lines = screen.get().splitlines()
    assert max(map(len, lines)) <= 80
    (head,) = [line for line in lines if line.lstrip().startswith("bucket ")]
    assert head.split() == list(COLUMNS)
    assert "…" not in screen.get()


MISTAKES = {
    "no run": (
        ("nowhere",),
        "nowhere is not a run directory (no run.toml in it); check the path",
    ),
    "no such step": (
        ("run", "--step", "3"),
        "run has no checkpoint of step 3; there are those of 2, 4",
    ),
    "both kinds of buckets": (
        ("run", "--buckets", "3", "--edges", "0,1"),
        "--buckets and --edges exclude each other; leave one out",
    ),
    "edges that are no numbers": (
        ("run", "--edges", "0,high"),
        "--edges takes numbers with commas between, got '0,high'; for example 0,0.05,0.2",
    ),
    "edges that do not rise": (
        ("run", "--edges", "0,0.5,0.2"),
        "probe.edges: must start at 0 and rise, got 0, 0.5, 0.2; for example 0, 0.05, 0.2",
    ),
    "edges that leave prompts out": (
        ("run", "--edges", "0.1,0.2"),
        "probe.edges: must start at 0 and rise, got 0.1, 0.2; for example 0, 0.05, 0.2",
    ),
    "edges that are not finite": (
        ("run", "--edges", "0,nan"),
        "probe.edges.1 must be a finite number, got nan",
    ),
    "another model": (
        ("run", "--set", "model.lora_rank=4"),
        "--set model.lora_rank: a checkpoint has its run's model; leave it out",
    ),
    "a group of one": (
        ("run", "--set", "rollout.group_size=1"),
        "rollout.group_size must be at least 2 to have a variance, got 1",
    ),
    "a file as folder": (
        ("run", "--out", "run/run.toml"),
        "--out run/run.toml is a file; choose a folder",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(program: Program, tmp_path: Path, run: Path, mistake: str):
    words, line = MISTAKES[mistake]
    assert_refused(program("probe", *words), tmp_path, line, left=["run"])
    assert not (run / "probe").exists()


def refusal(*words: str | Path) -> str:
    with pytest.raises(RagenError) as error:
        CliRunner().invoke(app, ["probe", *map(str, words)], catch_exceptions=False)
    return str(error.value)


def test_a_run_without_a_checkpoint_is_named(run: Path):
    shutil.rmtree(run / "checkpoints")
    assert (
        refusal(run) == f"{run} has no checkpoint yet; train it, or probe the start with --step 0"
    )


def test_a_damaged_checkpoint_is_never_probed(run: Path):
    for step in (2, 4):
        (checkpoint_folder(run, step) / "optimizer.pt").write_bytes(b"broken")
    assert refusal(run, "--step", "2") == (
        f"checkpoint {checkpoint_folder(run, 2)} is damaged (optimizer.pt has changed); choose "
        "another with --step"
    )
    assert refusal(run) == f"every checkpoint of {run} is damaged; probe the start with --step 0"
    assert not (run / "probe").exists()
