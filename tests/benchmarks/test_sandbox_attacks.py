"""The page of the sandbox shows what was measured, and what was measured holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attack_programs import SEEN_WITHOUT_MOUNTS
from sandbox_attacks import table

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "results" / "sandbox_attacks.json").read_text())


def test_the_page_shows_the_table_of_the_results() -> None:
    page = (ROOT / "docs" / "environments" / "deepcoder.md").read_text()
    assert table(RESULTS) in page


@pytest.mark.parametrize("name", RESULTS["isolations"])
def test_nothing_got_through(name: str) -> None:
    row = RESULTS["isolations"][name]
    known = SEEN_WITHOUT_MOUNTS if not row["has_files"] else ()
    assert set(row["attacks_succeeded"]) == set(known)
    assert row["calls_reached"] == []
    assert row["forgeries_passed"] == {}
    assert row["programs_right"] == row["programs"]
