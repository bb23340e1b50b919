"""``ragen2 bench rollout`` and ``bench step`` measure what they are asked for."""

import json
import re
import sys

from typer.testing import CliRunner

from ragen2.cli.app import app

STEP = ["bench", "step", "--prompts", "2", "--group-size", "2", "--repeats", "1", "--warmup", "1"]
SHORT = ["--set=rollout.max_tokens=8", "--set=evaluation.tasks=2", "--set=env.max_turns=1"]


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def told(*arguments: str) -> str:
    """The one line that a mistake is answered with."""
    return str(CliRunner().invoke(app, list(arguments)).exception)


def test_bench_rollout_compares_both_and_writes_the_figures(tmp_path):
    out = tmp_path / "rollout.json"
    size = ["--sequences", "4", "--prompts", "2", "--prompt-tokens", "9", "--new-tokens", "5"]
    asked = [*size, "--repeats", "1", "--device", "cpu", "--check-greedy", "--out", str(out)]
    result = run("bench", "rollout", *asked)
    assert result.exit_code == 0
    flat = " ".join(result.output.split())
    assert re.search(r"4 sequences of 2 prompts, 9 \+ 5 tokens.*ours.*generate", flat)
    assert "4 of 4 sequences equal" in flat
    found = json.loads(out.read_text())
    assert set(found["ways"]) == {"ours", "generate"}
    assert found["dtype"] == "float32"
    assert (found["sequences"], found["new_tokens"]) == (4, 5)
    assert found["logprob_gap"]["mean"] < 1e-4
    assert found["greedy"]["equal_sequences"] == 4
    assert found["limit"]["tokens_per_second"] > 0
    ours = found["ways"]["ours"]
    assert ours["tokens_per_second"] * ours["seconds"] == 4 * 5


def test_bench_rollout_names_what_is_wrong():
    assert told("bench", "rollout", "--dtype", "int8") == (
        "--dtype must be auto, float32 or bfloat16, got int8"
    )
    assert told("bench", "rollout", "--device", "tpu") == (
        "--device must be auto, cpu or cuda, got tpu"
    )


def test_bench_step_shows_every_phase_and_writes_the_figures(tmp_path):
    out = tmp_path / "step.json"
    result = run(*STEP, *SHORT, "--out", str(out))
    assert result.exit_code == 0
    assert re.search(
        r"rollout.*score.*update.*other.*evaluate.*step.*100.0%", result.output, re.DOTALL
    )
    found = json.loads(out.read_text())
    assert abs(sum(found["shares"].values()) - 1.0) < 1e-9
    assert (found["prompts"], found["group_size"], found["max_turns"]) == (2, 2, 1)


def test_bench_step_names_what_is_wrong(monkeypatch):
    assert told(*STEP, "--against", "verl") == "--against must be trl, got verl"
    assert told(*STEP, "--way", "static") == (
        "--way is for --against trl; add that or leave --way out"
    )
    monkeypatch.setitem(sys.modules, "trl", None)
    assert told(*STEP, "--against", "trl") == (
        "--against trl needs TRL in this Python (trl is missing); pip install trl==1.16.0"
    )
