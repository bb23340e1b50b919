"""Components: found by kind, checked as a whole, one file to add one."""

from __future__ import annotations

import sys
from typing import ClassVar, Literal

import numpy as np
import pytest
from pydantic import Field, ValidationError, field_validator

from ragen2.component import Settings, explain, load_installed_plugins, load_plugin, suggest
from ragen2.diagnostics import Diagnostic
from ragen2.envs import Env, FrozenLake
from ragen2.errors import ConfigError
from ragen2.filtering import Filter, TopP

PLUGIN = '''
"""Keep prompts above the median."""
from typing import Literal
import numpy as np
from ragen2.filtering import Filter

class {name}(Filter):
    """Half the batch."""
    kind: Literal["{kind}"] = "{kind}"
    def keep(self, scores_P):
        return scores_P > np.median(scores_P)
'''


class Inner(Settings):
    """A table inside a table."""

    depth: int = 1


class Outer(Settings):
    """A table with a table."""

    width: int = Field(1, ge=1)
    inner: Inner = Inner()


def test_a_member_registers_by_being_defined(own_kinds):
    class Nothing(Filter):
        kind: Literal["nothing"] = "nothing"

        def keep(self, scores_P):
            return np.zeros(len(scores_P), dtype=bool)

    assert Filter.find("nothing") is Nothing
    assert "nothing" in Filter.kinds()
    assert "nothing" not in Env.kinds()


def test_case_of_a_kind_does_not_matter():
    assert Env.find("frozenLAKE") is FrozenLake


def test_an_unknown_kind_suggests_the_nearest():
    with pytest.raises(ConfigError) as caught:
        Filter.find("top_q")
    assert str(caught.value) == "unknown filter kind 'top_q'; did you mean 'top_p'?"


def test_a_kind_near_to_nothing_gets_the_list():
    with pytest.raises(ConfigError) as caught:
        Env.find("Zzz")
    assert str(caught.value) == f"unknown env kind 'Zzz'; known: {', '.join(Env.kinds())}"
    assert "FrozenLake" in Env.kinds()


def test_a_table_without_kind_is_told_the_kinds():
    with pytest.raises(ConfigError, match=r"^filter needs a kind; known: .*top_p"):
        Filter.from_dict({"mass": 0.5}, path="filter")


def test_a_kind_that_is_not_text_is_told_the_kinds():
    with pytest.raises(ConfigError, match="filter needs a kind"):
        Filter.from_dict({"kind": 3}, path="filter")


def test_from_dict_takes_a_kind_in_any_case():
    assert Filter.from_dict({"kind": "TOP_P", "mass": 0.5}) == TopP(mass=0.5)


def test_from_dict_builds_what_the_table_says():
    built = Filter.from_dict({"kind": "top_p", "mass": 0.5, "signal": "reward_std"})
    assert built == TopP(mass=0.5, signal="reward_std")


def test_from_dict_reports_every_mistake_of_a_table_by_its_path():
    with pytest.raises(ConfigError) as caught:
        Filter.from_dict({"kind": "top_p", "mass": 1.7, "ddof": 2, "masss": 1}, path="filter")
    assert str(caught.value).splitlines() == [
        "filter.ddof must be less than or equal to 1, got 2",
        "filter.mass must be less than or equal to 1, got 1.7",
        "unknown setting filter.masss; did you mean 'mass'?",
    ]


def test_the_same_kind_from_two_classes_is_refused(own_kinds):
    with pytest.raises(
        ConfigError, match=r"filter kind 'top_p' is defined twice: .*TopP and .*Other"
    ):

        class Other(Filter):
            kind: Literal["top_p"] = "top_p"

            def keep(self, scores_P):
                return scores_P > 0


def test_an_incomplete_member_cannot_be_built(own_kinds):
    class Incomplete(Filter):
        kind: Literal["incomplete"] = "incomplete"

    with pytest.raises(ConfigError, match="filter kind 'incomplete' lacks keep; define it in"):
        Filter.from_dict({"kind": "incomplete"})


def test_a_member_cannot_be_changed_after_it_was_built():
    with pytest.raises(ValidationError, match="frozen"):
        TopP().mass = 0.5


def test_members_with_equal_settings_are_equal():
    assert TopP(mass=0.5) == TopP(mass=0.5) != TopP(mass=0.6)


def test_a_default_outside_its_own_range_is_refused(own_kinds):
    class Odd(Diagnostic):
        kind: Literal["odd"] = "odd"
        every: int = Field(0, ge=1)

        def measure(self, evidence):
            return {}

    with pytest.raises(ConfigError, match="every must be greater than or equal to 1, got 0"):
        Diagnostic.from_dict({"kind": "odd"})


class Renamed(Filter):
    """A setting of it had another name."""

    kind: Literal["renamed"] = "renamed"
    renamed: ClassVar[dict[str, str]] = {"least_rows": "min_rows"}
    min_rows: int = Field(1, ge=1)

    def keep(self, scores_P):
        return np.ones(len(scores_P), dtype=bool)


del Filter.registry["renamed"]  # other tests ask which filters there are


def test_an_old_name_of_a_setting_is_read_and_said_in_one_line(caplog):
    assert Renamed(least_rows=3) == Renamed(min_rows=3)
    assert caplog.messages == [
        "Renamed: least_rows is now called min_rows; the old name is still read"
    ]


def test_the_old_name_of_a_setting_is_checked_like_the_new_one():
    with pytest.raises(ValidationError) as error:
        Renamed(least_rows=0)
    assert explain(error.value, Renamed, "filter") == [
        "filter.min_rows must be greater than or equal to 1, got 0"
    ]


def test_a_setting_by_both_its_names_is_refused():
    with pytest.raises(ValidationError) as error:
        Renamed(least_rows=3, min_rows=3)
    assert explain(error.value, Renamed, "filter") == [
        "filter: least_rows is the old name of min_rows; remove least_rows"
    ]


def test_suggest_keeps_the_spelling_of_the_known_name():
    assert suggest("frozenlake", ["Bandit", "FrozenLake"]) == "did you mean 'FrozenLake'?"


def test_suggest_without_known_names_says_remove_it():
    assert suggest("x", []) == "remove it"


def test_explain_names_settings_inside_tables_by_their_path():
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"width": 0, "inner": {"dept": 2}})
    assert explain(caught.value, Outer) == [
        "width must be greater than or equal to 1, got 0",
        "unknown setting inner.dept; did you mean 'depth'?",
    ]


def test_explain_says_what_is_missing():
    class Needs(Settings):
        name: str

    with pytest.raises(ValidationError) as caught:
        Needs.model_validate({})
    assert explain(caught.value, Needs, "thing") == ["thing.name is missing; give it a value"]


def test_explain_gives_a_validators_own_words():
    class Even(Settings):
        size: int = 2

        @field_validator("size")
        @classmethod
        def _is_even(cls, size: int) -> int:
            if size % 2:
                raise ValueError(f"must be even, got {size}")
            return size

    with pytest.raises(ValidationError) as caught:
        Even.model_validate({"size": 3})
    assert explain(caught.value, Even) == ["size: must be even, got 3"]


def test_a_table_where_a_number_belongs_is_refused_by_its_path():
    with pytest.raises(ConfigError, match=r"^filter\.mass must be a valid number, got \{'x': 1\}$"):
        Filter.from_dict({"kind": "top_p", "mass": {"x": 1}}, path="filter")


def test_a_base_between_family_and_members_is_no_kind_of_its_own(own_kinds):
    class Halves(Filter):
        """What two filters could share; it names no kind."""

        share: float = 0.5

    assert "Halves" not in {member.__name__ for member in Filter.registry.values()}


def test_installed_packages_bring_their_kinds(monkeypatch):
    class Announced:
        name = "mine"

        def load(self) -> None:
            if loaded:
                raise SystemExit(0)
            loaded.append("my_package.filters")

    def entry_points(*, group: str) -> list[Announced]:
        return [Announced()] if group == "ragen2.plugins" else []

    loaded: list[str] = []
    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    load_installed_plugins()
    assert loaded == ["my_package.filters"]
    with pytest.raises(
        ConfigError, match="installed plugin mine cannot be imported: SystemExit: 0"
    ):
        load_installed_plugins()


def test_a_plugin_file_brings_its_kinds(own_kinds, tmp_path):
    file = tmp_path / "my_filters.py"
    file.write_text(PLUGIN.format(name="AboveMedian", kind="above_median"))
    load_plugin(str(file))
    assert Filter.from_dict({"kind": "above_median"}).kind == "above_median"


def test_a_plugin_file_may_be_named_twice(own_kinds, tmp_path):
    file = tmp_path / "twice.py"
    file.write_text(PLUGIN.format(name="Twice", kind="twice"))
    load_plugin(str(file))
    first = Filter.find("twice")
    load_plugin(str(file))
    assert Filter.find("twice") is first


def test_a_plugin_file_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"plugin file nowhere\.py does not exist"):
        load_plugin("nowhere.py")


def test_a_plugin_module_that_is_not_installed_is_named():
    with pytest.raises(ConfigError, match="plugin 'no_such_module' cannot be imported"):
        load_plugin("no_such_module")


def test_a_plugin_file_that_fails_is_not_taken_for_loaded(tmp_path):
    file = tmp_path / "broken_plugin.py"
    file.write_text("import math\nmath.no_such_function()\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"no_such_function.* \(broken_plugin.py, line 2\)"):
            load_plugin(str(file))
    assert "ragen2_plugin_broken_plugin" not in sys.modules
