"""The table in the docs says what the code says."""

from pathlib import Path

import pytest

from ragen2.envs.table import BEGIN, END, built_in, markdown_table, page_name, with_table
from ragen2.errors import ConfigError

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_holds_the_table_that_the_code_writes():
    page = (DOCS / "environments.md").read_text("utf-8")
    assert with_table(page) == page, "run: python -m ragen2.envs.table docs/environments.md"


@pytest.mark.parametrize("member", built_in(), ids=lambda member: member.__name__)
def test_every_environment_has_a_page(member):
    assert (DOCS / "environments" / page_name(member)).is_file()


def test_a_row_says_how_an_environment_is():
    rows = markdown_table().splitlines()
    assert rows[0] == "| Environment | Stochastic | Multi-turn | State | Reward |"
    assert "| [Bandit](environments/bandit.md) | yes | no | text | dense |" in rows


def test_only_the_part_between_the_marks_changes():
    page = with_table(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert page == f"before\n{BEGIN}\n{markdown_table()}\n{END}\nafter\n"


def test_a_page_without_marks_is_refused():
    with pytest.raises(ConfigError, match="has no place for the table; add the lines"):
        with_table("nothing here")
