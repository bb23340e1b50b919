"""The page about TRL is true: its blocks run in order, and its numbers are those of the benchmarks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "integrations" / "trl.md").read_text()


def result(name: str) -> dict:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def test_the_blocks_run_in_order(tmp_path):
    found = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(found) == 3
    (tmp_path / "page.py").write_text("\n".join(found))
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "You may take 9 more actions." in done.stdout
    for name in ("one_turn", "frozen_lake"):
        assert (tmp_path / name / "ragen2" / "steps.jsonl").exists()


def test_every_setting_is_on_the_page():
    from ragen2.integrations.trl import SNRSettings

    table = PAGE.partition("## Settings")[2].partition("## Our")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)[1:] == list(SNRSettings.model_fields)


def test_every_loss_type_is_on_the_page():
    from ragen2.integrations.trl import settings

    table = PAGE.partition("| `loss_type` |")[2].partition("Several micro")[0]
    listed = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in table.splitlines()[2:5]]
    known = (settings.ROW_MEANS, settings.TOKEN_MEANS, settings.BATCH_MEANS)
    assert [set(names) for names in listed] == [set(names) for names in known]


def test_the_overhead_on_the_page_is_the_measured_one_and_below_the_limit():
    found = result("inside_trl_overhead")
    lake, generate = (
        next(row for row in found["jobs"] if row["job"] == name)
        for name in ("frozen_lake", "generate")
    )
    told = re.search(r"took ([\d.]+)% of a step on FrozenLake and ([\d.]+)% of one", PAGE)
    longer = re.search(r"steps took ([\d.]+)% and ([\d.]+)% longer", PAGE)
    assert told
    assert longer
    for words, name in ((told, "share_of_ours"), (longer, "ratio_of_steps")):
        expected = [lake[name], generate[name]]
        assert [float(one) / 100 for one in words.groups()] == pytest.approx(expected, abs=6e-4)
        assert max(expected) < found["about"]["limit"] == 0.10


def test_the_learning_on_the_page_is_the_measured_one_and_enough():
    (run,) = result("inside_trl_frozen_lake")["runs"]
    assert run["gain"] == pytest.approx(run["success_after"] - run["success_before"])
    assert run["gain"] >= 0.10
    assert run["interval_before"][1] < run["interval_after"][0]
    told = re.search(r"went from\s+([\d.]+)% to ([\d.]+)% of 256 held-out tasks", PAGE)
    assert told is not None
    expected = [run["success_before"], run["success_after"]]
    assert [float(one) / 100 for one in told.groups()] == pytest.approx(expected, abs=6e-4)
