"""The table in the docs says what the code says."""

from pathlib import Path

import pytest

from ragen2.envs import Env
from ragen2.errors import ConfigError
from ragen2.reference import (
    LEVELS_BEGIN,
    LEVELS_END,
    TABLE_BEGIN,
    TABLE_END,
    built_in_kinds,
    environment_page,
    environments_table,
    levels_table,
    with_environments,
)

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_page_holds_the_table_that_the_code_writes():
    page = (DOCS / "environments.md").read_text("utf-8")
    assert with_environments(page) == page, "run make docs"


@pytest.mark.parametrize("member", built_in_kinds(Env), ids=lambda member: member.__name__)
def test_every_environment_has_a_page(member):
    assert (DOCS / "environments" / environment_page(member)).is_file()


def test_a_row_says_how_an_environment_is():
    rows = environments_table().splitlines()
    assert rows[0] == "| Environment | Stochastic | Multi-turn | State | Reward |"
    assert "| [Bandit](environments/bandit.md) | yes | no | text | dense |" in rows


def test_only_the_part_between_the_marks_changes():
    levels = f"{LEVELS_BEGIN}\n{levels_table()}\n{LEVELS_END}\nend\n"
    old = f"before\n{TABLE_BEGIN}\nold\n{TABLE_END}\nafter\n{LEVELS_BEGIN}{LEVELS_END}\nend\n"
    expected = f"before\n{TABLE_BEGIN}\n{environments_table()}\n{TABLE_END}\nafter\n{levels}"
    assert with_environments(old) == expected


def test_a_row_names_the_levels_below_the_defaults_easiest_first():
    rows = levels_table().splitlines()
    assert "| FrozenLake | max_distance 1; max_distance 2; max_distance 3 |" in rows
    assert "| Countdown | min_numbers 2, max_numbers 2; max_numbers 3 |" in rows
    assert not [row for row in rows if "Bandit" in row]


def test_a_page_without_marks_is_refused():
    with pytest.raises(ConfigError, match="has no place for the table; add the lines"):
        with_environments("nothing here")
