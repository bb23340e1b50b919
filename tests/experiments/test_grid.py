"""Grids: lists become cells, scales lie below them, mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen2.errors import ConfigError
from ragen2.experiments.grid import (
    SCALES,
    Grid,
    base_settings,
    combinations,
    experiment_names,
    load_grid,
    load_scale,
)

NAMES = {
    "main_table", "dynamics", "correlation", "gradients", "compute", "quartiles", "noise", "level",
    "predictor",
    "interventions", "definitions", "prompts", "turns", "rewards", "chain", "collapse",
    "vision",
}  # fmt: skip


def write(folder: Path, text: str) -> str:
    file = folder / "mine.toml"
    file.write_text(text)
    return str(file)


def test_every_experiment_of_the_paper_is_there():
    assert set(experiment_names()) == NAMES


def test_every_combination_is_a_cell_and_the_last_list_changes_fastest():
    grid = Grid(run="frozen_lake_grpo", grid={"filter.mass": [0.5, 0.9], "steps": [1, 2]}, seeds=2)
    found = combinations(grid, None, None)
    assert [one.labels for one in found] == [
        {"filter.mass": "0.5", "steps": "1"},
        {"filter.mass": "0.5", "steps": "2"},
        {"filter.mass": "0.9", "steps": "1"},
        {"filter.mass": "0.9", "steps": "2"},
    ]
    assert [(one.settings["filter"]["mass"], one.settings["steps"]) for one in found][1] == (0.5, 2)
    assert found[0].seeds == (0, 1)


def test_seeds_asked_for_win_and_a_blocks_own_win_over_those():
    grid = Grid(
        run="frozen_lake_grpo",
        seeds=2,
        block=(
            {"name": "a", "grid": {"steps": [1]}},
            {"name": "b", "grid": {"steps": [1]}, "seeds": [1000]},
        ),
    )
    assert [one.seeds for one in combinations(grid, None, 3)] == [(0, 1, 2), (1000,)]
    assert [one.labels["block"] for one in combinations(grid, None, 3)] == ["a", "b"]


def test_a_run_file_lies_below_then_the_grids_settings_then_the_blocks_then_the_lists(tmp_path):
    grid = Grid(
        run="frozen_lake_ppo",
        settings={"steps": 5, "learner": {"lr": 1.0}},
        block=({"settings": {"learner": {"lr": 2.0}}, "grid": {"learner.minibatches": [7]}},),
    )
    (one,) = combinations(grid, None, None)
    assert one.settings["algorithm"]["kind"] == "ppo"
    assert one.settings["steps"] == 5
    assert one.settings["learner"] == {"lr": 2.0, "minibatches": 7}


def test_a_name_of_a_scale_stands_for_its_settings():
    grid = Grid(grid={"task": ["Countdown"], "filter": ["none", "top_p"]})
    found = combinations(grid, "tiny", None)
    assert [one.settings["env"]["kind"] for one in found] == ["Countdown", "Countdown"]
    assert [one.settings["filter"]["kind"] for one in found] == ["keep_all", "top_p"]
    assert found[0].settings["rollout"]["actions_per_turn"] == 1
    assert (
        found[0].settings["rollout"]["prompts"] == load_scale("tiny").settings["rollout"]["prompts"]
    )


def test_a_change_of_kind_drops_the_old_kinds_settings():
    grid = Grid(settings={"filter": {"kind": "top_p", "mass": 0.5}}, grid={"filter": ["none"]})
    (one,) = combinations(grid, "tiny", None)
    assert one.settings["filter"] == {"kind": "keep_all"}


def test_a_scale_replaces_lists_of_the_same_name_and_settings():
    grid = Grid(
        grid={"task": ["Sokoban"], "filter": ["none"]},
        scales={
            "full": {
                "grid": {"task": ["FrozenLake", "Countdown"]},
                "settings": {"steps": 7},
                "seeds": 9,
            }
        },
    )
    assert [one.labels["task"] for one in combinations(grid, "tiny", None)] == ["Sokoban"]
    full = combinations(grid, "full", None)
    assert [one.labels["task"] for one in full] == ["FrozenLake", "Countdown"]
    assert {one.settings["steps"] for one in full} == {7}
    assert {len(one.seeds) for one in full} == {9}


def test_a_list_of_a_scale_that_is_in_no_block_is_refused():
    grid = Grid(grid={"task": ["Sokoban"]}, scales={"small": {"grid": {"tasks": ["FrozenLake"]}}})
    assert len(combinations(grid, "tiny", None)) == 1
    with pytest.raises(ConfigError) as caught:
        combinations(grid, "small", None)
    assert str(caught.value) == (
        "scales.small.grid has the list 'tasks', which no block has; did you mean 'task'?"
    )


def test_a_block_of_some_scales_is_left_out_at_others():
    grid = Grid(
        block=({"grid": {"task": ["Sokoban"]}}, {"grid": {"task": ["Countdown"]}, "only": ["full"]})
    )
    assert len(combinations(grid, "tiny", None)) == 1
    assert len(combinations(grid, "full", None)) == 2


def test_a_claim_of_some_scales_is_left_out_at_others():
    told = {"about": "", "says": "", "expects": "open"}
    grid = Grid(claims=({"claim": "a", **told}, {"claim": "b", **told, "only": ["small"]}))
    names = [[row.claim for row in grid.claims_at(scale)] for scale in ("tiny", "small", None)]
    assert names == [["a"], ["a", "b"], ["a", "b"]]


def test_the_mean_of_the_four_algorithms_is_claimed_only_where_four_are_run():
    grid = load_grid("main_table")
    for scale in SCALES:
        cells = [one.labels for one in combinations(grid, scale, None)]
        run = {labels["algorithm"] for labels in cells if labels["block"] == "algorithms"}
        (row,) = [row for row in grid.claims_at(scale) if row.claim == "gain/all/average"]
        assert (row.expects != "open") == ("the four" in row.about) == (len(run) == 4)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_papers_scale_has_cells_for_every_claim(name):
    grid = load_grid(name)
    planned = {label for one in combinations(grid, "full", None) for label in one.labels.values()}
    for row in grid.claims_at("full"):
        assert set(row.claim.split("/")) & grid.words <= planned, row.claim


def test_a_grid_like_another_has_its_blocks_and_its_own_question():
    correlation, interventions = load_grid("correlation"), load_grid("interventions")
    assert correlation.block == interventions.block
    assert correlation.analysis == "correlation"
    assert [one.settings for one in combinations(correlation, "tiny", None)] == [
        one.settings for one in combinations(interventions, "tiny", None)
    ]


def test_the_settings_of_a_scale_have_their_kinds():
    assert base_settings(Grid(), "full")["algorithm"]["kind"] == "grpo"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gird = 1", "unknown setting gird; did you mean 'grid'?"),
        ("[grid]\nsteps = []", "the list steps is empty"),
        ("[grid]\nsteps = [1, 1]", "the list steps holds a value twice"),
        ('like = "level"\n[grid]\nsteps = [1]', "grid and like exclude each other"),
        ('like = "grid.toml"', "like = 'grid.toml' is no embedded grid"),
        ("seeds = 0", "seeds must be greater than or equal to 1, got 0"),
        ("[grid", "is not valid TOML"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(tmp_path, text, told):
    with pytest.raises(ConfigError) as caught:
        load_grid(write(tmp_path, text))
    assert told in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("axis", "value", "told"),
    [
        ("task", "Sokobon", "unknown task 'Sokobon'; did you mean 'Sokoban'?"),
        (
            "tusk",
            "Sokoban",
            "the list 'tusk' is neither a choice nor the path of a setting; did you mean 'task'?",
        ),
    ],
)
def test_a_mistake_in_a_list_suggests_what_was_meant(axis, value, told):
    with pytest.raises(ConfigError) as caught:
        combinations(Grid(grid={axis: [value]}), "tiny", None)
    assert str(caught.value) == told


def test_an_unknown_experiment_and_a_missing_file_are_told_apart(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'main_table'"):
        load_grid("main_tabel")
    with pytest.raises(ConfigError, match="does not exist; check the path"):
        load_grid(str(tmp_path / "none.toml"))


def test_the_results_of_an_experiment_do_not_hide_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "level").mkdir()
    assert load_grid("level").analysis == "level"
