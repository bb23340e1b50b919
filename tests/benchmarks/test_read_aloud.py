"""The verdicts that docs/diagnostics/failures.md quotes are those on the records that results/ holds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from ragen2.diagnostics import examine
from ragen2.runs.record import StepRecord

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results/experiments/collapse-small/records.jsonl.gz"


def quoted() -> str:
    page = (ROOT / "docs/diagnostics/failures.md").read_text()
    part = page.partition("<!-- read aloud -->")[2].partition("<!-- /read aloud -->")[0]
    return " ".join(part.replace("\n> ", " ").split())


@pytest.mark.parametrize("run", ["keep_all-a21e8f1bb7-seed4", "top_p-7d9a14ae8f-seed0"])
def test_the_page_quotes_the_verdict_on_a_recorded_run(run):
    with gzip.open(RECORDS, "rt", encoding="utf-8") as lines:
        rows = [row for row in map(json.loads, lines) if row["run"].endswith(run)]
    found = examine([StepRecord(step=row["step"], metrics=row["metrics"]) for row in rows])
    text = f"{found.head}. {found.text} How sure: {found.certainty} Next: {found.next}"
    assert text in quoted()
