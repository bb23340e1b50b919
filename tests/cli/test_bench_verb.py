"""``ragen2 bench envs`` measures what it is asked for."""

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
