"""Run files: what they may say, every mistake at once, and back to TOML without loss."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.algorithms import GRPO
from ragen2.config import (
    FAMILIES,
    Probe,
    RunConfig,
    Stops,
    apply_override,
    changed_settings,
    count_settings,
    dump_config,
    load_config,
    load_run,
    merge,
    parse_config,
    read_toml,
    recipe_names,
)
from ragen2.diagnostics import Collapse, Reward, Surface
from ragen2.envs import Bandit, FrozenLake
from ragen2.errors import ConfigError
from ragen2.filtering import Filter, KeepAll, TopP
from ragen2.trainer.warmstart import WarmstartConfig, default_recipe

PLUGIN = '''
"""Keep prompts above the median."""
from typing import Literal
import numpy as np
from pydantic import Field
from ragen2.filtering import Filter

class AboveMedian(Filter):
    """Those above a multiple of the median."""
    kind: Literal["above_median"] = "above_median"
    times: float = Field(1.0, gt=0.0)
    def keep(self, scores_P):
        return scores_P > self.times * np.median(scores_P)
'''


def write(folder: Path, text: str, name: str = "run.toml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def mistakes_of(data: dict) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(RunConfig, data)
    return str(caught.value).splitlines()


def test_the_embedded_default_trains_the_tiny_model_on_frozen_lake_with_grpo_and_the_filter():
    config = load_run(None)
    assert config.model.path == "ragen2-tiny"
    assert isinstance(config.env, FrozenLake)
    assert isinstance(config.algorithm, GRPO)
    assert config.filter == TopP(mass=0.9)
    assert {Surface, Reward, Collapse} <= {type(d) for d in config.diagnostics}


def test_an_empty_file_is_the_defaults(tmp_path):
    assert load_run(write(tmp_path, "")) == RunConfig()


def test_tables_become_the_components_they_name(tmp_path):
    file = write(
        tmp_path,
        """
        steps = 3
        [env]
        kind = "Bandit"
        risky_chance = 0.5
        [filter]
        kind = "keep_all"
        [[diagnostics]]
        kind = "reward"
        every = 4
        """,
    )
    config = load_run(file)
    assert config.steps == 3
    assert config.env == Bandit(risky_chance=0.5)
    assert config.filter == KeepAll()
    assert config.diagnostics == (Reward(every=4),)


def test_a_table_without_kind_changes_the_default_kind():
    assert parse_config(RunConfig, {"env": {"size": 6}}).env == FrozenLake(size=6)


def test_all_mistakes_are_reported_at_once():
    found = mistakes_of(
        {
            "stepz": 3,
            "seed": -1,
            "env": {"kind": "FrozenLake", "sise": 4, "slip": 2.0},
            "filter": {"kind": "top_q"},
            "rollout": {"group_siz": 3, "max_tokens": -1},
            "diagnostics": [{"kind": "reward", "every": 0}, {"kind": "collaps"}],
        }
    )
    assert sorted(found) == sorted(
        [
            "unknown setting stepz; did you mean 'steps'?",
            "seed must be greater than or equal to 0, got -1",
            "unknown setting env.sise; did you mean 'size'?",
            "env.slip must be less than or equal to 1, got 2.0",
            "unknown filter kind 'top_q'; did you mean 'top_p'?",
            "unknown setting rollout.group_siz; did you mean 'group_size'?",
            "rollout.max_tokens must be greater than or equal to 0, got -1",
            "diagnostics[0].every must be greater than or equal to 1, got 0",
            "unknown diagnostic kind 'collaps'; did you mean 'collapse'?",
        ]
    )


def test_an_unknown_table_does_not_hide_an_unknown_setting_of_a_component():
    found = mistakes_of({"filter": {"kind": "top_p", "mas": 0.5}, "filtr": {}})
    assert found == [
        "unknown setting filter.mas; did you mean 'mass'?",
        "unknown setting filtr; did you mean 'filter'?",
    ]


def test_kind_top_q_answers_with_top_p():
    assert mistakes_of({"filter": {"kind": "top_q"}}) == [
        "unknown filter kind 'top_q'; did you mean 'top_p'?"
    ]


def test_a_choice_that_does_not_exist_is_told_the_choices():
    assert mistakes_of({"rollout": {"history": "last"}}) == [
        "rollout.history must be 'full', 'window' or 'current', got 'last'"
    ]


def test_a_component_that_is_no_table_is_told_so():
    assert mistakes_of({"env": "FrozenLake"}) == [
        "env must be a table with a kind, got 'FrozenLake'"
    ]


def test_one_diagnostics_table_is_told_the_syntax():
    found = mistakes_of({"diagnostics": {"kind": "reward"}})
    assert found == [
        "diagnostics must be a list of tables, got {'kind': 'reward'}; write [[diagnostics]]"
    ]


@pytest.mark.parametrize("plugins", ["filters.py", 3])
def test_plugins_must_be_a_list(plugins):
    assert mistakes_of({"plugins": plugins}) == [f"plugins must be a list, got {plugins!r}"]


# --- reading ---------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml cannot be read: No such file"):
        read_toml(tmp_path / "nowhere.toml")


def test_a_file_that_is_not_toml_is_named_with_the_place(tmp_path):
    with pytest.raises(ConfigError, match=r"run\.toml is not valid TOML: .*line 2"):
        read_toml(write(tmp_path, "steps = 3\nseed = 1 1\n"))


def test_a_file_that_is_not_text_is_named(tmp_path):
    file = tmp_path / "run.toml"
    file.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigError, match=r"run\.toml is not UTF-8 text"):
        read_toml(file)


def test_a_base_file_is_laid_under(tmp_path):
    write(tmp_path, 'steps = 3\nseed = 5\n[env]\nkind = "FrozenLake"\nsize = 6', "base.toml")
    file = write(tmp_path, 'base = "base.toml"\nsteps = 9\n[env]\nslip = 0.1')
    assert read_toml(file) == {
        "steps": 9,
        "seed": 5,
        "env": {"kind": "FrozenLake", "size": 6, "slip": 0.1},
    }


def test_a_base_is_found_beside_its_file_whatever_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    write(tmp_path, "seed = 5", "below.toml")
    file = write(tmp_path / "inner", 'base = "../below.toml"')
    monkeypatch.chdir("/")
    assert read_toml(file) == {"seed": 5}


def test_a_base_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.toml cannot be read"):
        read_toml(write(tmp_path, 'base = "missing.toml"'))


def test_a_base_of_a_base_is_refused(tmp_path):
    write(tmp_path, "seed = 1", "lowest.toml")
    write(tmp_path, 'base = "lowest.toml"', "lower.toml")
    with pytest.raises(ConfigError, match=r"lower\.toml has a base of its own; .*one level"):
        read_toml(write(tmp_path, 'base = "lower.toml"'))


def test_a_file_that_is_its_own_base_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"run\.toml has a base of its own"):
        read_toml(write(tmp_path, 'base = "run.toml"'))


def test_a_base_that_is_no_path_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"base must be a path to a TOML file, got 3"):
        read_toml(write(tmp_path, "base = 3"))


# --- laying one over another -----------------------------------------------------------------------


def test_a_new_kind_drops_the_settings_of_the_old_one():
    below = {"env": {"kind": "FrozenLake", "size": 6}}
    assert merge(below, {"env": {"kind": "Bandit"}}) == {"env": {"kind": "Bandit"}}


def test_the_same_kind_keeps_the_settings_below():
    below = {"env": {"kind": "FrozenLake", "size": 6}}
    above = {"env": {"kind": "FrozenLake", "slip": 0.1}}
    assert merge(below, above)["env"] == {"kind": "FrozenLake", "size": 6, "slip": 0.1}


def test_the_same_kind_in_another_case_keeps_the_settings_below():
    below = {"env": {"kind": "FrozenLake", "size": 6}}
    assert merge(below, {"env": {"kind": "frozenlake"}})["env"]["size"] == 6


def test_merging_changes_neither_side():
    below, above = {"env": {"size": 6}}, {"env": {"slip": 0.1}}
    merge(below, above)
    assert (below, above) == ({"env": {"size": 6}}, {"env": {"slip": 0.1}})


# --- --set -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.8", 0.8),
        ("3", 3),
        ("true", True),
        ('"quoted"', "quoted"),
        ("plain-text", "plain-text"),
        ("a/b c", "a/b c"),
        ('["x.py", "y.py"]', ["x.py", "y.py"]),
        ("[1, 2", "[1, 2"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_a_set_value_is_toml_or_else_plain_text(text, value):
    assert apply_override({}, f"a.b={text}") == {"a": {"b": value}}


def test_set_reaches_the_configuration(tmp_path):
    config = load_run(
        write(tmp_path, "steps = 3"),
        ["filter.mass=0.8", "env.observation=grid", "model.path=some/folder", "steps=7"],
    )
    assert (config.filter, config.steps) == (TopP(mass=0.8), 7)
    assert config.env == FrozenLake(observation="grid")
    assert config.model.path == "some/folder"


def test_set_of_a_kind_drops_the_old_settings(tmp_path):
    file = write(tmp_path, '[env]\nkind = "FrozenLake"\nsize = 6')
    assert load_run(file, ["env.kind=Bandit", "env.risky_chance=0.5"]).env == Bandit(
        risky_chance=0.5
    )


def test_set_of_the_kind_that_a_table_left_out_keeps_its_settings(tmp_path):
    file = write(tmp_path, "[env]\nslip = 0.3\n[filter]\nmass = 0.5")
    config = load_run(file, ["env.kind=frozenlake", "filter.kind=top_p"])
    assert (config.env, config.filter) == (FrozenLake(slip=0.3), TopP(mass=0.5))


def test_set_of_another_kind_still_drops_the_settings_of_a_table_without_kind(tmp_path):
    file = write(tmp_path, "[env]\nslip = 0.3")
    assert load_run(file, ["env.kind=Bandit"]).env == Bandit()


def test_the_order_of_sets_does_not_matter_for_the_default_kind(tmp_path):
    file = write(tmp_path, "")
    for overrides in (
        ["env.slip=0.3", "env.kind=FrozenLake"],
        ["env.kind=FrozenLake", "env.slip=0.3"],
    ):
        assert load_run(file, overrides).env == FrozenLake(slip=0.3)


def test_a_base_that_leaves_out_its_kind_keeps_its_settings_below_the_same_kind(tmp_path):
    write(tmp_path, "[env]\nslip = 0.3", "below.toml")
    file = write(tmp_path, "base = 'below.toml'\n[env]\nkind = 'FrozenLake'\nsize = 5")
    assert load_run(file).env == FrozenLake(slip=0.3, size=5)


def test_a_table_without_kind_takes_the_kind_of_its_base(tmp_path):
    write(tmp_path, "[env]\nkind = 'Bandit'", "below.toml")
    file = write(tmp_path, "base = 'below.toml'\n[env]\nrisky_chance = 0.5")
    assert load_run(file).env == Bandit(risky_chance=0.5)


def test_set_does_not_change_its_input():
    data = {"env": {"size": 4}}
    apply_override(data, "env.size=6")
    assert data == {"env": {"size": 4}}


@pytest.mark.parametrize("override", ["filter.mass", "=3", "filter.=3", "", ".a=1"])
def test_a_set_that_is_not_path_and_value_is_told_the_form(override):
    with pytest.raises(ConfigError, match=r"--set takes path=value, got .*--set filter\.mass=0\.8"):
        apply_override({}, override)


def test_set_below_a_plain_value_says_which_setting_is_wrong(tmp_path):
    with pytest.raises(ConfigError, match=r"seed must be a valid integer, got \{'x': 3\}"):
        load_run(write(tmp_path, "seed = 1"), ["seed.x=3"])


# --- writing ---------------------------------------------------------------------------------------


def test_what_is_dumped_loads_to_the_same_value(tmp_path):
    config = RunConfig(
        seed=3,
        env=Bandit(risky_chance=0.5),
        filter=TopP(mass=0.7, signal="reward_std", eps=0.01),
        diagnostics=(Reward(every=2), Collapse(interval="population", max_traces=8)),
    )
    assert load_run(write(tmp_path, dump_config(config))) == config


def test_a_dump_holds_every_setting_even_those_at_their_default():
    dumped = tomllib.loads(dump_config(RunConfig()))
    assert dumped["env"]["slip"] == FrozenLake().slip
    kinds = [table["kind"] for table in dumped["diagnostics"]]
    assert kinds == [diagnostic.kind for diagnostic in RunConfig().diagnostics]
    assert dumped["env"]["kind"] == "FrozenLake"


def test_a_warm_start_recipe_loads_and_dumps(tmp_path):
    config = load_config(WarmstartConfig, default_recipe())
    assert config.quality == 0.2
    again = load_config(WarmstartConfig, write(tmp_path, dump_config(config)))
    assert again == config


@given(
    mass=st.floats(0.01, 1.0),
    size=st.integers(2, 32),
    history=st.sampled_from(["full", "window", "current"]),
    path=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
)
def test_any_settings_survive_a_dump(mass, size, history, path):
    config = RunConfig.model_validate(
        {
            "filter": TopP(mass=mass),
            "env": FrozenLake(size=size),
            "rollout": {"history": history},
            "model": {"path": path},
        }
    )
    assert parse_config(RunConfig, tomllib.loads(dump_config(config))) == config


# --- plug-ins --------------------------------------------------------------------------------------


def test_a_filter_in_a_plugin_file_is_usable_from_toml_with_no_other_edit(own_kinds, tmp_path):
    plugin = write(tmp_path, PLUGIN, "median_filter.py")
    text = f"plugins = ['{plugin}']\n[filter]\nkind = 'above_median'\ntimes = 1.5"
    config = load_run(write(tmp_path, text), plugins="trust")
    assert config.filter.kind == "above_median"
    assert config.filter.keep(np.array([3.0, 1.0, 1.0])).tolist() == [True, False, False]
    assert load_run(write(tmp_path, dump_config(config))) == config


def test_settings_of_a_plugin_are_checked_like_any_other(own_kinds, tmp_path):
    plugin = write(tmp_path, PLUGIN, "checked_filter.py")
    text = f"plugins = ['{plugin}']\n[filter]\nkind = 'above_median'\ntims = 1.5\ntimes = 0"
    with pytest.raises(ConfigError) as caught:
        load_run(write(tmp_path, text), plugins="trust")
    assert str(caught.value).splitlines() == [
        "filter.times must be greater than 0, got 0",
        "unknown setting filter.tims; did you mean 'times'?",
    ]


def test_an_incomplete_plugin_cannot_be_built(own_kinds, tmp_path):
    plugin = write(tmp_path, PLUGIN.split("    def keep", maxsplit=1)[0], "incomplete_filter.py")
    text = f"plugins = ['{plugin}']\n[filter]\nkind = 'above_median'"
    with pytest.raises(ConfigError, match="filter kind 'above_median' lacks keep; define it in"):
        load_run(write(tmp_path, text), plugins="trust")
    assert "above_median" in Filter.kinds()


def test_a_plugin_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=rf"plugin file {tmp_path}/gone\.py does not exist"):
        load_run(write(tmp_path, "plugins = ['gone.py']"))


# --- [warning] -------------------------------------------------------------------------------------


def test_the_early_warning_is_on_and_only_warns_by_default():
    assert RunConfig().warning.response == "warn"


def test_a_response_by_command_needs_a_command_and_a_command_needs_that_response():
    assert mistakes_of({"warning": {"response": "command"}}) == [
        'warning: response = "command" needs a command, got none; set warning.command'
    ]
    assert mistakes_of({"warning": {"command": "mail me"}}) == [
        "warning: a command is run with response = \"command\" only, got 'warn'; "
        "change the response or remove the command"
    ]


def test_a_command_must_be_a_command_line():
    (line,) = mistakes_of({"warning": {"response": "command", "command": "echo 'half"}})
    assert line == 'warning.command: "echo \'half" is not a command line: No closing quotation'


# --- scopes and the probe set ----------------------------------------------------------------------


def test_one_probe_prompt_has_nothing_to_be_compared_with():
    assert mistakes_of({"evaluation": {"probe_prompts": 1}}) == [
        "evaluation.probe_prompts: must be 0 (off) or at least 2, got 1: one prompt has nothing to "
        "be compared with"
    ]
    assert mistakes_of({"evaluation": {"probe_prompts": -1}}) == [
        "evaluation.probe_prompts must be greater than or equal to 0, got -1"
    ]


def test_the_default_measures_the_first_turn_at_every_step_and_wider_scopes_now_and_then():
    first, wide = [d for d in RunConfig().diagnostics if d.kind == "collapse"]
    assert (first.scopes, first.every) == (("first_turn",), 1)
    assert (wide.scopes, wide.every) == (("turns", "trajectory"), 10)


def test_an_unknown_scope_is_named():
    (line,) = mistakes_of({"diagnostics": [{"kind": "collapse", "scopes": ["last_turn"]}]})
    assert line == (
        "diagnostics[0].scopes.0 must be 'first_turn', 'turns' or 'trajectory', got 'last_turn'"
    )
    assert mistakes_of({"diagnostics": [{"kind": "collapse", "scopes": []}]}) == [
        "diagnostics[0].scopes: must name at least one scope, got none; or leave the diagnostic out"
    ]


# --- run files of earlier versions -----------------------------------------------------------------

OLDER = Path(__file__).with_name("older_run.toml")
"""What the version before credit per token, early stops and the probe wrote for its default run."""


def test_a_run_file_without_the_newer_tables_still_loads_and_means_the_same():
    written = tomllib.loads(OLDER.read_text())
    assert {"stops", "probe"}.isdisjoint(written)
    config = load_run(OLDER)
    assert (config.stops, config.probe) == (Stops(), Probe())
    assert config.algorithm == GRPO(kl_coefficient=0.01)
    again = tomllib.loads(dump_config(config))
    for table, settings in written.items():
        if isinstance(settings, dict):
            assert settings.items() <= again[table].items(), table
        elif table != "diagnostics":
            assert again[table] == settings


def test_a_run_file_of_an_earlier_version_survives_being_written_anew(tmp_path):
    config = load_run(OLDER)
    assert load_run(write(tmp_path, dump_config(config))) == config


@pytest.mark.parametrize("value", [0.5, 1.0])
def test_a_dual_clip_that_would_cut_every_bad_token_is_refused(value):
    assert mistakes_of({"algorithm": {"kind": "ppo", "dual_clip": value}}) == [
        f"algorithm.dual_clip: must be 0 (off) or above 1, got {value:g}; 3 is usual"
    ]
    parse_config(RunConfig, {"algorithm": {"dual_clip": 3.0}})


def test_a_run_of_defaults_has_no_changed_settings():
    assert changed_settings(RunConfig()) == {}


@pytest.mark.parametrize("name", recipe_names())
def test_the_changed_settings_of_a_recipe_give_the_same_run(name):
    config = load_run(Path(name))
    changed = changed_settings(config)
    assert parse_config(RunConfig, changed) == config
    everything = config.model_dump(mode="json", exclude_none=True)
    assert count_settings(changed) < 0.2 * count_settings(everything)


@pytest.mark.parametrize("family", ["env", "filter", "algorithm"])
def test_another_kind_with_its_own_defaults_is_one_changed_setting(family):
    default = RunConfig.model_fields[family].get_default(call_default_factory=True)
    for kind in FAMILIES[family].kinds():
        try:
            config = parse_config(RunConfig, {family: {"kind": kind}})
        except ConfigError:  # a kind that cannot do without settings of its own
            continue
        expected = {} if kind == default.kind else {family: {"kind": kind}}
        assert changed_settings(config) == expected


def test_a_changed_list_of_components_is_shown_whole():
    config = parse_config(
        RunConfig, {"diagnostics": [{"kind": "surface"}, {"kind": "collapse", "max_traces": 9}]}
    )
    assert changed_settings(config) == {
        "diagnostics": [{"kind": "surface"}, {"kind": "collapse", "max_traces": 9}]
    }
