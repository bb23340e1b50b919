"""The committed tables, and the decisions of the scorecard, are those that the committed records give."""

from __future__ import annotations

import pytest

import reproducing_tables as page
from committed_records import RESULTS, find_again, read_table
from scorecard import SCORECARD, from_records, scorecard


def test_every_decision_of_the_scorecard_is_recomputed_from_records() -> None:
    assert len(SCORECARD) == 5
    text = page.PAGE.read_text(encoding="utf-8")
    told = text.partition(page.SCORES)[2].partition("<!-- /scorecard -->")[0]
    assert told.strip() == scorecard(from_records), (
        "python benchmarks/committed_records.py, then the page"
    )


FOLDERS = sorted(path.parent.name for path in RESULTS.glob("*/table.json"))


@pytest.mark.parametrize("name", [one for one in FOLDERS if not one.startswith("prompts-")])
def test_a_table_holds_what_its_records_give(name: str) -> None:
    written = read_table(RESULTS / name)["claims"]
    again = {claim.name: claim.estimate for claim in find_again(RESULTS / name).claims}
    assert again.keys() == written.keys()
    for claim, estimate in again.items():
        ends = (estimate.value, estimate.low, estimate.high)
        assert [written[claim][end] for end in ("value", "low", "high")] == [
            None if end is None else pytest.approx(end) for end in ends
        ]
