"""The page beside the paper shows what was measured, and says so where nothing was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import reproducing_tables as script
from ragen2.experiments.grid import experiment_names, load_grid


def result(**claims: tuple[float, float | None, float | None]) -> dict[str, Any]:
    """A table.json as an experiment writes it, with these claims."""
    return {
        "claims": {
            name.replace("__", "/"): {
                "value": value, "low": low, "high": high, "num": 3, "how": "t over seeds",
                "unit": "points", "digits": 1,
            }
            for name, (value, low, high) in claims.items()
        },
        "cells": [
            {"labels": {"task": "Sokoban", "filter": "none"}, "state": "done"},
            {"labels": {"task": "Sokoban", "filter": "top_p"}, "state": "failed"},
        ],
        "commit": "0123456789abcdef",
        "hardware": {"processor": "Some CPU", "cores": 2, "gpus": []},
    }  # fmt: skip


def save(folder: Path, name: str, data: dict[str, Any]) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "table.json").write_text(json.dumps(data))


def test_the_page_is_up_to_date_with_the_results():
    text = script.PAGE.read_text()
    assert script.page_text(text) == text, "run python benchmarks/reproducing_tables.py"


def test_every_experiment_has_a_section():
    assert sorted(script.ORDER) == experiment_names()
    text = script.page_text(script.PAGE.read_text())
    for name in script.ORDER:
        assert f"### {name}\n" in text
        assert f"$ ragen2 experiment {name} --scale " in text


def test_every_number_of_the_paper_has_a_row_that_says_not_run_without_results(tmp_path):
    for name in script.ORDER:
        rows = list(script.paper_rows(load_grid(name), script.load_results(name, tmp_path)))
        assert len(rows) == len(load_grid(name).claims) > 0
        assert {(row[3], row[-1]) for row in rows} == {("not run", "not run")}
    assert script.overview(tmp_path) == "No results yet."


def test_a_measured_row_has_its_interval_its_other_readings_and_its_verdict(tmp_path):
    save(
        tmp_path,
        "level-tiny",
        result(
            prompt_less_trajectory__Sokoban__success=(5.0, 1.0, 9.0),
            prompt_less_trajectory__Sokoban__success__end=(2.0, -1.0, 5.0),
            trajectory_less_none__Sokoban__success=(-5.0, -9.0, -1.0),
        ),
    )
    save(tmp_path, "level-small", result(prompt_less_trajectory__Sokoban__success=(3.0, -2.0, 8.0)))
    rows = list(script.paper_rows(load_grid("level"), script.load_results("level", tmp_path)))
    about = "prompt level less trajectory level, success", "+6.8 points (23.6 and 16.8)"
    assert rows[:2] == [
        (*about, "tiny", "5.0 [1.0, 9.0] points", "2.0 [-1.0, 5.0]", "-", "3", "supports"),
        (
            *about,
            "small",
            "3.0 [-2.0, 8.0] points",
            "-",
            "-",
            "3",
            "undecided; 4 seeds would decide",
        ),
    ]
    none = [row for row in rows if row[0] == "trajectory level less none, success"]
    assert [(row[2], row[-1]) for row in none] == [
        ("tiny", "excludes the paper's number"),
        ("small", "not run"),
    ]


def test_readings_of_success_have_columns_where_there_are_any(tmp_path):
    save(tmp_path, "level-tiny", result(prompt_less_trajectory__Sokoban__success=(5.0, 1.0, 9.0)))
    assert "at the end" not in script.section("level", tmp_path)
    claims = {
        f"prompt_less_trajectory__Sokoban__success{end}": (5.0, 1.0, 9.0) for end in ("", "__end")
    }
    save(tmp_path, "level-small", result(**claims))
    assert "| ours, 95% interval | at the end | n |" in script.section("level", tmp_path)


def test_a_recipe_that_was_given_up_keeps_its_rows_and_is_counted(tmp_path):
    for name in ("collapse-tiny", "collapse-tiny-lr6e-4"):
        save(tmp_path, name, result(saved__top_p__MI=(0.5, 0.1, 0.9)))
    rows = list(script.paper_rows(load_grid("collapse"), script.load_results("collapse", tmp_path)))
    assert [row[2] for row in rows[:2]] == ["tiny", "tiny, first recipe: lr 6e-4"]
    assert script.overview(tmp_path).splitlines()[-1].startswith("| tiny | 1 of 17 | 2 |")
    assert "results/experiments/collapse-tiny-lr6e-4/table.md" in script.section(
        "collapse", tmp_path
    )


def test_a_section_tells_where_its_numbers_come_from(tmp_path):
    save(tmp_path, "level-tiny", result())
    text = script.section("level", tmp_path)
    assert (
        "- tiny: 1 of 2 cells finished; entropy bonus unknown, KL unknown; commit 0123456789 on 2 "
        in text
    )
    assert "results/experiments/level-tiny/table.md" in text


def test_the_machines_that_made_the_runs_go_before_the_one_that_wrote_the_table(tmp_path):
    made_on = [
        {"commit": "aa", "machine": {"processor": "P", "cores": 16, "gpus": ["G"]}, "runs": 2},
        {"commit": "", "machine": None, "runs": 1},  # from before runs told
    ]
    save(tmp_path, "level-tiny", {**result(), "made_on": made_on})
    text = script.section("level", tmp_path)
    assert "commit aa on G, 16 cores of P; [table]" in text


def test_a_section_tells_with_which_coefficients_its_runs_were_made(tmp_path):
    settings = {"a": {"algorithm": {"entropy_coefficient": 0.01}}, "b": {"algorithm": {}}}
    save(tmp_path, "level-tiny", {**result(), "settings": settings})
    assert "cells finished; entropy bonus 0, 0.01, KL 0;" in script.section("level", tmp_path)


def test_the_overview_counts_verdicts_and_starts(tmp_path):
    claims = {
        "prompt_less_trajectory__Sokoban__success": (5.0, 1.0, 9.0),
        "trajectory_less_none__Sokoban__success": (1.0, -2.0, 4.0),
    }
    save(tmp_path, "level-tiny", result(**claims))
    starts = [{"kind": "run"}, {"kind": "model"}, {"kind": "run"}]
    (tmp_path / "started-tiny.jsonl").write_text("".join(json.dumps(one) + "\n" for one in starts))
    table = script.overview(tmp_path).splitlines()
    assert table[0] == (
        "| scale | experiments | supports | excludes | undecided | as expected, no effect | measured | "
        "no estimate | not run | runs started |"
    )
    assert table[-1] == "| tiny | 1 of 17 | 1 | 0 | 1 | 0 | 0 | 0 | 1 | 2 |"


def test_finished_runs_that_do_not_give_a_number_are_not_called_not_run(tmp_path):
    data = result()
    for cell in data["cells"]:
        cell["state"] = "done"
    save(tmp_path, "level-tiny", data)
    rows = list(script.paper_rows(load_grid("level"), script.load_results("level", tmp_path)))
    assert {(row[3], row[-1]) for row in rows} == {("no estimate", "no estimate")}
    assert script.overview(tmp_path).splitlines()[-1] == (
        "| tiny | 1 of 17 | 0 | 0 | 0 | 0 | 0 | 3 | 0 | - |"
    )
