"""What an analysis finds: tables, figures, and named numbers that can be held against the paper's."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ragen2.diagnostics.statistics.resampling import student_quantile
from ragen2.experiments.grid import PaperRow
from ragen2.experiments.intervals import Estimate
from ragen2.reports.figures import NamedFigure

Entry = str | float | int | Estimate | None
ClaimVerdict = Literal[
    "supports",
    "excludes",
    "undecided",
    "as expected, no effect",
    "measured",
    "no estimate",
    "not run",
]
OVER = re.compile(r"over (?:paired )?(\w+)")
"""What an estimate's interval draws or averages: seeds, runs, arms, cells."""
NUMBER, WORDS_ALONE = "the paper's number", "what the paper says"
MOST_NEEDED = 1000
"""Seeds beyond which a number of them is not worth telling."""
Labels = Mapping[str, str]
EMPTY = "-"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns; an entry is a word, a number, an estimate or nothing."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    digits: int = 2

    def markdown(self) -> str:
        """As a table of Markdown."""
        words = [_is_word_column(self.rows, index) for index in range(len(self.columns))]
        line = ["---" if is_words else "---:" for is_words in words]
        rows = [[entry_text(entry, self.digits) for entry in row] for row in self.rows]
        lines = [[_escaped(text) for text in row] for row in [self.columns, *rows]]
        return "\n".join(f"| {' | '.join(row)} |" for row in [lines[0], line, *lines[1:]])


@dataclass(frozen=True, slots=True)
class Claim:
    """A number with a name, as ``gain/ppo/Sokoban``, that answers part of the question."""

    name: str
    estimate: Estimate
    unit: str
    digits: int = 2


@dataclass(frozen=True, slots=True)
class Findings:
    """All that an analysis has to say."""

    tables: Sequence[Table]
    claims: Sequence[Claim] = ()
    figures: Sequence[NamedFigure] = ()
    notes: Sequence[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which of an experiment's cells have a finished run: why a claim may have no estimate."""

    planned: Sequence[Labels] = ()
    finished: Sequence[Labels] = ()
    words: frozenset[str] = frozenset()
    """Labels that the grid has at any scale."""

    def without_estimate(self, claim: str) -> Literal["no estimate", "not run"]:
        """``no estimate`` where every cell has a finished run, and the claim speaks of no label besides.

        A claim like ``gain/ppo/MetaMathQA`` stays ``not run`` at a scale without that task.
        """
        here = {label for labels in self.planned for label in labels.values()}
        is_planned = bool(self.planned) and self.words & set(claim.split("/")) <= here
        is_finished = all(labels in self.finished for labels in self.planned)
        return "no estimate" if is_planned and is_finished else "not run"


NOTHING_RUN = Coverage()


def claimed(name: str, estimate: Estimate | None, unit: str, digits: int = 2) -> list[Claim]:
    """The claim in a list, to be added to others; an empty one where there is no estimate."""
    return [] if estimate is None else [Claim(name, estimate, unit, digits)]


def verdict(
    row: PaperRow, estimate: Estimate | None, coverage: Coverage = NOTHING_RUN
) -> ClaimVerdict:
    """What the interval says about the paper's number.

    ``supports``: the whole interval lies on the paper's side of 0. ``excludes``: the paper's number lies
    outside of it, or the whole interval on the other side where the paper gives a direction alone. ``as
    expected, no effect``: the paper says that there is nothing, and the interval lies within the margin
    around 0. ``undecided``: none of these, or no interval. ``measured`` is what the paper left open;
    ``no estimate``: the runs are finished and do not give it.
    """
    if estimate is None:
        return coverage.without_estimate(row.claim)
    if row.expects == "open":
        return "measured"
    if estimate.low is None or estimate.high is None:
        return "undecided"
    if row.expects == "near" and row.within is not None:
        if -row.within <= estimate.low and estimate.high <= row.within:
            return "as expected, no effect"
        is_apart = estimate.low > row.within or estimate.high < -row.within
        return "excludes" if is_apart else "undecided"
    expected, other = estimate.is_above, estimate.is_below
    if row.expects == "below":
        expected, other = other, expected
    if expected:
        return "supports"
    return "excludes" if other or not _holds(estimate, row.value) else "undecided"


def decision(row: PaperRow, estimate: Estimate | None, coverage: Coverage = NOTHING_RUN) -> str:
    """The verdict with what goes with it: how large against the paper's number, or how many would decide."""
    word = verdict(row, estimate, coverage)
    if estimate is None:
        return word
    if word == "supports" and row.value is not None and not _holds(estimate, row.value):
        return (
            f"{word}, {'more' if abs(estimate.value) > abs(row.value) else 'less'} than its number"
        )
    if word == "excludes":
        return f"{word} {WORDS_ALONE if row.value is None else NUMBER}"
    if word == "undecided":
        return f"{word}; {_would_decide(row, estimate)}"
    return word


def num_needed(row: PaperRow, estimate: Estimate) -> int | None:
    """Seeds, runs or arms after which the interval is too short to be undecided, if they scatter as these.

    Too short to hold both 0 and the paper's number; 0 and the margin, where the paper says that there is
    nothing; and where it gives a direction alone, too short to hold 0 if the value stays. None without an
    interval, or where no number within reason would do.
    """
    if estimate.low is None or estimate.high is None or estimate.num < 2:
        return None
    told_apart = row.within if row.expects == "near" else row.value
    apart = abs(told_apart) / 2.0 if told_apart else abs(estimate.value)
    half = (estimate.high - estimate.low) / 2.0
    by_seeds = estimate.how.startswith("t ")
    scatter = half * math.sqrt(estimate.num) / _quantile(estimate.num, by_seeds)
    for num in range(estimate.num + 1, MOST_NEEDED + 1):
        if _quantile(num, by_seeds) * scatter / math.sqrt(num) <= apart:
            return num
    return None


def _quantile(num: int, by_seeds: bool) -> float:
    return student_quantile(num - 1.0) if by_seeds else 1.96


def _would_decide(row: PaperRow, estimate: Estimate) -> str:
    if estimate.low is None:
        return "no interval"
    found = OVER.search(estimate.how)
    what = found[1] if found else "values"
    needed = num_needed(row, estimate)
    return f"{needed} {what} would decide" if needed else f"over {MOST_NEEDED} {what} would decide"


def _holds(estimate: Estimate, value: float | None) -> bool:
    """Whether a number lies in the interval; one that is not given does."""
    if value is None or estimate.low is None or estimate.high is None:
        return True
    return estimate.low <= value <= estimate.high


def paper_table(
    rows: Sequence[PaperRow], claims: Sequence[Claim], coverage: Coverage = NOTHING_RUN
) -> Table | None:
    """The paper's numbers beside ours; None where the paper says nothing."""
    if not rows:
        return None
    known = {claim.name: claim for claim in claims}
    return Table(
        "Beside the paper",
        ("what", "paper", "ours", "n", "verdict"),
        tuple(_paper_row(row, known.get(row.claim), coverage) for row in rows),
    )


def entry_text(entry: Entry, digits: int = 2) -> str:
    """An entry as people read it."""
    if entry is None:
        return EMPTY
    if isinstance(entry, Estimate):
        return estimate_text(entry, digits)
    if isinstance(entry, float):
        return f"{entry:.{digits}f}"
    return str(entry)


def estimate_text(estimate: Estimate, digits: int = 2) -> str:
    """``0.12 [0.03, 0.21]``, or the value alone where there is no interval."""
    value = f"{estimate.value:.{digits}f}"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def findings_data(
    found: Findings, rows: Sequence[PaperRow], coverage: Coverage = NOTHING_RUN
) -> dict[str, Any]:
    """Everything but the figures, as JSON can hold it."""
    known = {claim.name: claim.estimate for claim in found.claims}
    return {
        "tables": [
            {
                "title": table.title,
                "columns": list(table.columns),
                "rows": [[_plain(entry) for entry in row] for row in table.rows],
            }
            for table in found.tables
        ],
        "claims": {
            claim.name: {**asdict(claim.estimate), "unit": claim.unit, "digits": claim.digits}
            for claim in found.claims
        },
        "paper": [
            {
                **row.model_dump(exclude={"only"}),
                "verdict": verdict(row, known.get(row.claim), coverage),
                "decision": decision(row, known.get(row.claim), coverage),
            }
            for row in rows
        ],
        "notes": list(found.notes),
    }


def _paper_row(row: PaperRow, claim: Claim | None, coverage: Coverage) -> tuple[Entry, ...]:
    if claim is None:
        why = coverage.without_estimate(row.claim)
        return row.about, row.says or EMPTY, why, EMPTY, why
    ours = f"{estimate_text(claim.estimate, claim.digits)} {claim.unit}".strip()
    return row.about, row.says or EMPTY, ours, claim.estimate.num, decision(row, claim.estimate)


def _escaped(text: str) -> str:
    """A bar inside an entry must not end it."""
    return text.replace("|", "\\|")


def _plain(entry: Entry) -> Any:
    return asdict(entry) if isinstance(entry, Estimate) else entry


def _is_word_column(rows: Sequence[Sequence[Entry]], index: int) -> bool:
    return all(isinstance(row[index], str) or row[index] is None for row in rows)
