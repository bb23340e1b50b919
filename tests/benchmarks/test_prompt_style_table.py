"""The table of prompt styles in the docs is what was measured."""

from __future__ import annotations

import json
from pathlib import Path

from prompt_styles import table

ROOT = Path(__file__).parents[2]


def test_the_page_holds_the_table_of_the_measured_rows() -> None:
    rows = json.loads((ROOT / "results" / "prompt_styles.json").read_text())
    assert table(rows) in (ROOT / "docs" / "prompts.md").read_text()
