"""The embedded recipes: found by name, complete, and shown in the docs as they were measured."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ragen2.algorithms import Algorithm
from ragen2.backends.settings import EMBEDDED_MODELS
from ragen2.config import (
    RunConfig,
    find_run_file,
    find_warm_start,
    load_config,
    load_run,
    recipe_names,
    warm_start_names,
)
from ragen2.errors import ConfigError
from ragen2.filtering import KeepAll
from ragen2.trainer.warmstart import WarmstartConfig, default_recipe

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "recipes.md"
DEFAULT = "frozen_lake_tiny"
ENDS = ("", "_unfiltered")
SEEN = tuple(
    f"{of}_{game}" for of in ("vision", "qwen2_5_vl") for game in ("frozen_lake", "sokoban")
)
ALGORITHMS = ("ppo", "grpo", "dapo", "dr_grpo", "rloo", "reinforce_plus_plus")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = ROOT / "benchmarks" / "algorithms_learn.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(
        spec
    )  # its dataclass looks there
    spec.loader.exec_module(module)
    return module


def read(name: str) -> RunConfig:
    return load_run(Path(name))


def test_there_is_a_recipe_for_every_algorithm_with_and_without_a_filter():
    assert set(ALGORITHMS) <= set(Algorithm.kinds())
    expected = [f"frozen_lake_{kind}{end}" for kind in ALGORITHMS for end in ("", "_unfiltered")]
    text = [name for name in recipe_names() if name.startswith("frozen_lake_")]
    assert sorted(text) == sorted([DEFAULT, *expected])
    assert sorted({*recipe_names()} - {*text}) == sorted(f"{g}{end}" for g in SEEN for end in ENDS)


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_a_recipe_trains_what_its_name_says(kind):
    filtered, unfiltered = read(f"frozen_lake_{kind}"), read(f"frozen_lake_{kind}_unfiltered")
    assert filtered.algorithm.kind == unfiltered.algorithm.kind == kind
    assert unfiltered.filter.kind == "keep_all"
    assert filtered.filter.kind == ("nonzero" if kind == "dapo" else "top_p")
    assert filtered.model == unfiltered.model == read(DEFAULT).model


def test_the_recipe_of_grpo_is_the_embedded_default_but_shorter():
    recipe, default = read("frozen_lake_grpo"), load_run(None)
    changed = {"steps": recipe.steps, "evaluation": recipe.evaluation}
    assert recipe == default.model_copy(update=changed)
    assert recipe.steps < default.steps


@pytest.mark.parametrize("name", SEEN)
def test_a_recipe_that_shows_images_shows_nothing_else(name):
    filtered, unfiltered = read(name), read(f"{name}_unfiltered")
    assert filtered.env.observation == "image"
    assert filtered.env.kind == ("Sokoban" if name.endswith("sokoban") else "FrozenLake")
    assert (filtered.filter.kind, filtered.filter.mass) == ("top_p", 0.9)
    assert unfiltered == filtered.model_copy(update={"filter": KeepAll()})


@pytest.mark.parametrize("game", ["frozen_lake", "sokoban"])
def test_the_recipes_of_the_large_model_have_the_papers_settings(game):
    recipe = read(f"qwen2_5_vl_{game}")
    assert recipe.model.path == "Qwen/Qwen2.5-VL-3B-Instruct"
    assert (recipe.rollout.prompts, recipe.rollout.group_size, recipe.steps) == (8, 16, 400)
    assert (recipe.algorithm.kind, recipe.algorithm.entropy_coefficient) == ("ppo", 0.001)
    assert (recipe.evaluation.tasks, recipe.evaluation.temperature) == (512, 0.5)
    assert recipe.env.cell_px == 28  # one image token a cell


@pytest.mark.parametrize("game", ["frozen_lake", "sokoban"])
def test_a_tiny_model_is_trained_on_what_it_was_warmed_up_with(game):
    run = read(f"vision_{game}")
    name = "ragen2_tiny_vl" + ("_sokoban" if game == "sokoban" else "")
    start = load_config(WarmstartConfig, find_warm_start(Path(name)))
    assert start.env == run.env
    assert start.rollout.form(start.env) == run.rollout.form(run.env)
    assert start.rollout.history == run.rollout.history
    assert Path(run.model.path).name == name.replace("_", "-")


def test_each_embedded_model_has_the_recipe_that_made_it():
    made = {name.replace("_", "-") for name in warm_start_names()}
    assert made >= set(EMBEDDED_MODELS)
    assert find_warm_start(Path("ragen2_tiny")) == default_recipe()


def test_a_name_that_no_warm_start_has_is_told_with_the_nearest():
    with pytest.raises(ConfigError) as error:
        find_warm_start(Path("ragen2_tiny_vi"))
    assert str(error.value) == (
        "ragen2_tiny_vi is neither a recipe file nor an embedded warm start; "
        "did you mean 'ragen2_tiny_vl'?"
    )


def test_dapo_samples_dynamically():
    assert read("frozen_lake_dapo").rollout.resample_rounds > 0


def test_a_file_of_that_name_comes_before_the_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("frozen_lake_ppo").write_text("steps = 3\n")
    assert find_run_file(Path("frozen_lake_ppo")) == Path("frozen_lake_ppo")
    assert read("frozen_lake_ppo").steps == 3


def test_overrides_lie_over_a_recipe():
    assert load_run(Path("frozen_lake_ppo"), ["algorithm.lam=0.9"]).algorithm.lam == 0.9


def test_a_name_that_no_recipe_has_is_told_with_the_nearest():
    with pytest.raises(ConfigError) as error:
        load_run(Path("frozen_lake_pp"))
    assert str(error.value) == (
        "frozen_lake_pp is neither a run file nor an embedded recipe; "
        "did you mean 'frozen_lake_ppo'?"
    )


def test_a_missing_file_is_told_as_a_file():
    with pytest.raises(
        ConfigError, match=r"^run file frozen_lake_ppo.toml cannot be read: No such"
    ):
        load_run(Path("frozen_lake_ppo.toml"))


def test_the_page_lists_every_recipe():
    section = PAGE.read_text().partition("## The list")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == sorted(recipe_names())


def test_the_page_shows_the_saved_results(script):
    shown = PAGE.read_text().partition(script.START)[2].partition(script.END)[0]
    rows = json.loads(script.RESULTS.read_text())["rows"]
    assert shown == script.table(rows), "run benchmarks/algorithms_learn.py --publish"


def test_every_recipe_was_measured_and_learned_in_time(script):
    rows = json.loads(script.RESULTS.read_text())["rows"]
    assert {row["recipe"] for row in rows} == set(script.learning_recipes())
    for row in rows:
        assert row["gain"] >= script.GAIN, row["recipe"]
        assert row["seconds"] <= script.SECONDS, row["recipe"]


def test_publishing_puts_rows_and_table_in_their_places(script, tmp_path, monkeypatch):
    end = {"success": 0.25, "low": 0.2, "high": 0.3}
    row = {"recipe": "a", "seed": 0, "overrides": [], "steps": 2, "before": end, "after": end}
    row |= {"gain": 0.0, "kept_ratio": 0.5, "retrieval_after": 1.0, "seconds": 3.0}
    changed = row | {"overrides": ["steps=2"]}
    found = tmp_path / "found.json"
    found.write_text(json.dumps({"rows": [row, changed]}))
    page, results = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text(f"above\n{script.START}old{script.END}\nbelow\n")
    monkeypatch.setattr(script, "PAGE", page)
    monkeypatch.setattr(script, "RESULTS", results)
    script.publish(found)
    assert json.loads(results.read_text())["rows"] == [row]
    assert page.read_text() == f"above\n{script.START}{script.table([row])}{script.END}\nbelow\n"
    line = "| `a` | 2 | 25 (20 to 30) | 25 (20 to 30) | +0 | 50% | 1.00 | 3 |"
    assert script.table([row]).splitlines()[-1] == line


def test_new_rows_take_the_place_of_old_ones(script):
    old = [{"recipe": name, "seed": 0, "overrides": [], "gain": 0.1} for name in ("a", "b")]
    new = [{"recipe": "b", "seed": 0, "overrides": [], "gain": 0.2}]
    assert [row["gain"] for row in script.merged(old, new)] == [0.1, 0.2]
