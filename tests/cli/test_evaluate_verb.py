"""``ragen2 eval``: whose settings it takes, and what it shows of each scope."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Done
from ragen2.cli.evaluate import evaluation_config, write_verdict
from ragen2.cli.views.verdicts import print_verdict
from ragen2.config import RunConfig, dump_config
from ragen2.envs import Bandit, FrozenLake
from ragen2.errors import ConfigError, RunError
from ragen2.rollout import Rollout
from ragen2.trainer.evaluate import Assessment


@pytest.fixture
def run(tmp_path) -> Path:
    """A run directory with settings that are not the defaults."""
    config = RunConfig(
        seed=5,
        env=FrozenLake(slip=0.25, max_turns=3),
        rollout=Rollout(history="current", group_size=4),
        evaluation={"tasks": 11},
    )
    (tmp_path / "run" / "checkpoints" / "step_000002").mkdir(parents=True)
    (tmp_path / "run" / "run.toml").write_text(dump_config(config))
    return tmp_path / "run"


def test_a_run_directory_is_evaluated_under_its_own_settings(run):
    config = evaluation_config(str(run), None, [])
    assert config.env == FrozenLake(slip=0.25, max_turns=3)
    assert config.rollout == Rollout(history="current", group_size=4)
    assert config.evaluation.tasks == 11


def test_so_is_one_of_its_checkpoints(run):
    config = evaluation_config(str(run / "checkpoints" / "step_000002"), None, [])
    assert config.env == FrozenLake(slip=0.25, max_turns=3)


def test_flags_go_over_the_settings_of_the_run(run):
    config = evaluation_config(str(run), 7, ["env.slip=0.5", "rollout.group_size=2"])
    assert config.env == FrozenLake(slip=0.5, max_turns=3)
    assert config.evaluation.tasks == 7
    assert config.rollout.group_size == 2


def test_another_environment_does_not_inherit_the_settings_of_the_runs(run):
    assert evaluation_config(str(run), None, ["env.kind=Bandit"]).env == Bandit()


def test_a_plain_model_is_evaluated_on_the_default(tmp_path):
    config = evaluation_config(str(tmp_path), None, [])
    assert (config.env, config.rollout, config.evaluation.tasks) == (FrozenLake(), Rollout(), 256)


def test_mistakes_are_named(run):
    with pytest.raises(ConfigError, match="did you mean 'Bandit'"):
        evaluation_config(str(run), None, ["env.kind=Bandt"])


def scope_metrics(scope: str, retrieval: float) -> dict[str, float]:
    plain = {
        "num_traces": 40,
        "num_prompts": 20,
        "retrieval_accuracy": retrieval,
        "retrieval_chance": 0.05,
        "mi_estimate": 0.5,
        "mi_bound": 3.0,
        "conditional_entropy": 0.7,
    }
    return {f"collapse/{scope}/{name}": value for name, value in plain.items()}


def test_every_scope_has_its_row_and_every_absence_its_line(capsys):
    metrics = {"eval/success": 0.5} | scope_metrics("first_turn", 0.91)
    metrics |= scope_metrics("turn_2", 0.82) | scope_metrics("trajectory", 0.73)
    absent = {"collapse/turn_3": "3 reasoning traces to score, 8 are needed"}
    print_verdict("model", "FrozenLake", Assessment(metrics, "diverse_grounded", absent))
    shown = capsys.readouterr().out
    for row, value in (("first turn", "0.910"), ("turn 2", "0.820"), ("trajectory", "0.730")):
        assert any(row in line and value in line for line in shown.splitlines()), row
    assert "collapse/turn_3 not measured: 3 reasoning traces to score, 8 are needed" in shown
    assert shown.startswith("Reasoning is about its prompt.\n")
    assert "Held-out success is 50% in one evaluation alone." in " ".join(shown.split())


def test_one_scope_needs_no_second_table(capsys):
    print_verdict("model", "Bandit", Assessment(scope_metrics("first_turn", 0.9), None))
    shown = capsys.readouterr().out
    assert "by scope" not in shown
    assert "Next: Evaluate on held-out tasks: `ragen2 eval MODEL --env NAME`." in shown


def test_the_json_holds_metrics_and_absences(tmp_path):
    verdict = Assessment({"eval/success": 0.5}, None, {"collapse/turns": "none"})
    write_verdict(tmp_path / "found.json", "model", verdict)
    assert json.loads((tmp_path / "found.json").read_text()) == {
        "model": "model",
        "regime": None,
        "metrics": {"eval/success": 0.5},
        "absent": {"collapse/turns": "none"},
    }
    with pytest.raises(RunError, match=r"--json .* cannot be written: No such file"):
        write_verdict(tmp_path / "gone" / "found.json", "model", verdict)


def test_without_collapse_held_out_tasks_are_all(
    program: Callable[..., Done], tmp_path: Path
) -> None:
    words = ("--tasks", "2", "--no-collapse", "--json", "found.json", "--out", "played")
    done = program("eval", "ragen2-tiny", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("collapse not measured: it was not asked for\n")
    found = json.loads((tmp_path / "found.json").read_text())
    assert {name.partition("/")[0] for name in found["metrics"]} == {"eval"}
    assert found["absent"] == {"collapse": "it was not asked for"}
    assert len((tmp_path / "played" / "evaluation.jsonl").read_text().splitlines()) == 2
