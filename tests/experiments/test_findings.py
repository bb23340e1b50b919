"""Tables, and the verdict about a number of the paper."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from ragen2.diagnostics.statistics.resampling import student_quantile
from ragen2.experiments.findings import (
    Claim,
    Coverage,
    Findings,
    Table,
    decision,
    entry_text,
    findings_data,
    num_needed,
    paper_table,
    verdict,
)
from ragen2.experiments.grid import PaperRow
from ragen2.experiments.intervals import Estimate, mean_estimate


def row(expects: str, claim: str = "gain", value: float | None = None) -> PaperRow:
    within = 0.2 if expects == "near" else None
    return PaperRow(
        claim=claim, about="the gain", says="+1", expects=expects, within=within, value=value
    )


def found(low: float | None, high: float | None) -> Estimate:
    return Estimate(0.5, low, high, 3, "")


@pytest.mark.parametrize(
    ("expects", "low", "high", "expected"),
    [
        ("above", 0.1, 0.9, "supports"),
        ("above", -0.9, -0.1, "excludes"),
        ("above", -0.1, 0.9, "undecided"),
        ("below", -0.9, -0.1, "supports"),
        ("below", 0.1, 0.9, "excludes"),
        ("below", -0.1, 0.9, "undecided"),
        ("near", -0.1, 0.2, "as expected, no effect"),
        ("near", 0.05, 0.1, "as expected, no effect"),
        ("near", -0.1, 0.9, "undecided"),
        ("near", 0.1, 0.9, "undecided"),
        ("near", 0.3, 0.9, "excludes"),
        ("near", -0.9, -0.3, "excludes"),
        ("above", None, None, "undecided"),
        ("near", None, None, "undecided"),
        ("open", 0.1, 0.9, "measured"),
    ],
)
def test_a_verdict_asks_where_the_whole_interval_lies(expects, low, high, expected):
    assert verdict(row(expects), found(low, high)) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.5, 0.9, "excludes the paper's number"),  # 1.0 is not in it, though 0 is
        (-0.5, 1.1, "undecided; 9 seeds would decide"),
        (0.1, 1.1, "supports"),
        (0.1, 0.9, "supports, less than its number"),
    ],
)
def test_an_interval_is_held_against_the_papers_number(low, high, expected):
    estimate = Estimate((low + high) / 2.0, low, high, 5, "t over paired seeds")
    assert decision(row("above", value=1.0), estimate) == expected


def test_seeds_that_would_decide_make_an_interval_too_short_for_both_numbers():
    """Five seeds whose values scatter by 1: an interval of 1.24 to each side."""
    five = mean_estimate([-1.0 + x for x in (-1.2, -0.6, 0.0, 0.6, 1.2)])
    scatter = float(np.std([-1.2, -0.6, 0.0, 0.6, 1.2], ddof=1))
    needed = num_needed(row("above", value=0.9), five)
    assert student_quantile(needed - 1.0) * scatter / needed**0.5 <= 0.45
    assert student_quantile(needed - 2.0) * scatter / (needed - 1) ** 0.5 > 0.45
    assert num_needed(row("above", value=1e-6), five) is None
    assert num_needed(row("above"), mean_estimate([1.0])) is None


def test_words_without_a_number_are_excluded_by_the_other_side_alone():
    assert decision(row("above"), found(-0.9, -0.1)) == "excludes what the paper says"
    assert decision(row("above"), Estimate(0.4, None, None, 9, "too few arms")) == (
        "undecided; no interval"
    )


@pytest.mark.parametrize(("expects", "within"), [("near", None), ("above", 0.1)])
def test_a_margin_goes_with_numbers_that_are_said_to_be_none(expects, within):
    with pytest.raises(ValidationError, match="`within` goes with expects"):
        PaperRow(claim="gain", about="the gain", says="0", expects=expects, within=within)


@pytest.mark.parametrize("expects", ["above", "open"])
def test_a_number_that_was_not_measured_is_not_run(expects):
    assert verdict(row(expects), None) == "not run"


NONE, TOP_P = ({"task": "Box", "filter": arm} for arm in ("none", "top_p"))
WORDS = frozenset({"Box", "Lake", "none", "top_p"})


@pytest.mark.parametrize(
    ("claim", "finished", "expected"),
    [
        ("lead/Box/none", [NONE, TOP_P], "no estimate"),
        ("lead/Box/none", [NONE, NONE], "not run"),  # another arm may be what it lacks
        ("lead/Lake/none", [NONE, TOP_P], "not run"),  # a task that this scale does not have
        ("lead/all/average", [NONE, TOP_P], "no estimate"),
    ],
)
def test_finished_runs_without_the_number_give_no_estimate(claim, finished, expected):
    coverage = Coverage([NONE, TOP_P, NONE, TOP_P], finished, WORDS)
    assert verdict(row("above", claim), None, coverage) == expected
    assert verdict(row("above", claim), found(0.1, 0.9), coverage) == "supports"
    (told,) = paper_table([row("above", claim)], [], coverage).rows
    assert told == ("the gain", "+1", expected, "-", expected)
    (data,) = findings_data(Findings([]), [row("above", claim)], coverage)["paper"]
    assert data["verdict"] == expected


def test_the_papers_rows_stand_beside_ours_and_missing_ones_say_so():
    table = paper_table(
        [row("above"), row("above", "other")], [Claim("gain", found(0.25, 0.75), "points", 1)]
    )
    assert table.rows == (
        ("the gain", "+1", "0.5 [0.2, 0.8] points", 3, "supports"),
        ("the gain", "+1", "not run", "-", "not run"),
    )
    assert paper_table([], []) is None


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (None, "-"),
        (0.256, "0.26"),
        (3, "3"),
        ("word", "word"),
        (Estimate(0.5, 0.25, 0.75, 3, ""), "0.50 [0.25, 0.75]"),
        (Estimate(0.5, None, None, 1, ""), "0.50"),
    ],
)
def test_entries_are_written_as_people_read_them(entry, text):
    assert entry_text(entry) == text


def test_markdown_aligns_numbers_and_escapes_bars():
    table = Table("t", ("what", "H(Z|X)"), (("a", 1.0), ("b", None)))
    assert table.markdown().splitlines() == [
        "| what | H(Z\\|X) |",
        "| --- | ---: |",
        "| a | 1.00 |",
        "| b | - |",
    ]


def test_the_data_hold_tables_claims_and_verdicts():
    told = findings_data(
        Findings(
            [Table("t", ("a",), ((found(0.1, 0.9),),))], [Claim("gain", found(0.1, 0.9), "points")]
        ),
        [row("above"), row("below", "other")],
    )
    assert told["tables"][0]["rows"][0][0]["low"] == 0.1
    assert told["claims"]["gain"] | {"how": ""} == {
        "value": 0.5,
        "low": 0.1,
        "high": 0.9,
        "num": 3,
        "how": "",
        "unit": "points",
        "digits": 2,
    }
    assert [one["verdict"] for one in told["paper"]] == ["supports", "not run"]
