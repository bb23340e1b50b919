"""``ragen2 bench`` measures what it is asked for."""

import json
import re

from typer.testing import CliRunner

from ragen2.cli.app import app


def test_bench_envs_prints_a_row_for_each_environment_named():
    result = CliRunner().invoke(app, ["bench", "envs", "Bandit", "FrozenLake", "--seconds", "0.1"])
    assert result.exit_code == 0
    rows = [line for line in result.output.splitlines() if re.search(r"Bandit|FrozenLake", line)]
    assert len(rows) == 2
    for row in rows:
        numbers = [float(cell.replace(",", "")) for cell in re.findall(r"[\d,.]*\d", row)]
        assert len(numbers) == 5
        assert all(number > 0 for number in numbers[1:])


def test_bench_score_compares_both_ways_and_writes_the_figures(tmp_path):
    out = tmp_path / "score.json"
    asked = ["--prompts", "2", "--repeats", "1", "--device", "cpu", "--out", str(out)]
    result = CliRunner().invoke(app, ["bench", "score", *asked], catch_exceptions=False)
    assert result.exit_code == 0
    assert re.search(r"64 traces x 2 prompts.*ours.*naive.*times faster", result.output, re.DOTALL)
    found = json.loads(out.read_text())
    (size,) = found["sizes"]
    assert size["prompts"] == 2
    assert size["difference"] < 1e-4
    assert size["naive"]["tokens"] > 4 * size["ours"]["tokens"]


def test_bench_score_can_spare_most_of_the_naive_work():
    asked = ["--prompts", "4", "--repeats", "1", "--device", "cpu", "--naive-columns", "1"]
    result = CliRunner().invoke(app, ["bench", "score", *asked], catch_exceptions=False)
    assert "naive scored 25% of the pairs, scaled up" in " ".join(result.output.split())


def test_bench_score_names_a_device_that_is_none():
    result = CliRunner().invoke(app, ["bench", "score", "--device", "tpu"])
    assert str(result.exception) == "--device must be auto, cpu or cuda, got tpu"


def test_bench_update_compares_both_and_writes_the_figures(tmp_path):
    out = tmp_path / "update.json"
    asked = ["--prompts", "5", "--group-size", "2", "--repeats", "1", "--out", str(out)]
    short = ["--set", "rollout.max_tokens=24"]
    result = CliRunner().invoke(app, ["bench", "update", *asked, *short], catch_exceptions=False)
    assert result.exit_code == 0
    assert re.search(
        r"unfiltered\W+5\W.*filtered\W+2\W.*of the time.*choosing", result.output, re.DOTALL
    )
    found = json.loads(out.read_text())
    assert found["kept_ratio"] == 0.4
    assert found["tokens_ratio"] < 0.7
    assert set(found["updates"]) == {"unfiltered", "filtered"}


def test_bench_update_names_a_setting_that_is_none():
    result = CliRunner().invoke(app, ["bench", "update", "--set", "rollout.promts=3"])
    assert str(result.exception) == "unknown setting rollout.promts; did you mean 'prompts'?"
