"""The scorecard of docs/reproducing.md: five claims of the paper, each decided from the committed records.

Every decision is read off an interval by the rule of the tables; only the words are written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from committed_records import RESULTS, find_again, grid_of, read_cells, read_table
from normalisation_tables import POINTS, by_arm, gains, read
from ragen2.experiments.cells import MI, change
from ragen2.experiments.findings import Table, decision, estimate_text
from ragen2.experiments.grid import PaperRow
from ragen2.experiments.intervals import Estimate, mean_estimate, paired_estimate

NORMALISATION = "normalisation-small"
Found = Mapping[str, Estimate]
"""Estimates by the name of their claim."""
Source = Callable[[str], Found]
"""Estimates of a folder of results."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A number that speaks about a claim."""

    words: str
    folder: str
    claim: str
    digits: int = 2
    row: PaperRow | None = None
    """What the paper says, where no grid has it."""

    def told(self, source: Source) -> tuple[str, str]:
        """The number, and what it decides."""
        estimate = source(self.folder)[self.claim]
        row = self.row or _paper_row(self.folder, self.claim)
        ours = f"{self.words}: {estimate_text(estimate, self.digits)}, n {estimate.num}"
        return ours, decision(row, estimate)


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """A line of the scorecard."""

    claim: str
    paper: str
    evidence: tuple[Evidence, ...]
    confidence: str


SOKOBAN_GRPO = PaperRow(
    claim="gain, divided",
    about="gain on Sokoban, GRPO",
    says="+9.0 points",
    value=9.0,
    expects="above",
)
MI_CHANGE = "change of MI, dense, divided, no filter"
MI_FALLS = PaperRow(claim=MI_CHANGE, about="MI over training", says="falls", expects="below")
SCORECARD = (
    KeyClaim(
        "Reasoning loses its input while replies stay valid and varied",
        "MI falls in ordinary training",
        (
            Evidence("`small`, rare reward, bonus 0.01", "collapse-small", "change/none/MI"),
            Evidence("`small`, Sokoban, bonus 0.001", NORMALISATION, MI_CHANGE, 2, MI_FALLS),
        ),
        "high that it can happen, under ten times the paper's bonus; low for ordinary training: 32 steps, "
        "not 400",
    ),
    KeyClaim(
        "The filter prevents that",
        "MI kept",
        (
            Evidence("`small`", "collapse-small", "saved/top_p/MI"),
            Evidence("`tiny`, first recipe", "collapse-tiny-lr6e-4", "saved/top_p/MI"),
        ),
        "low for the reason: the filter also makes the bonus weigh less, and the controls are unfinished",
    ),
    KeyClaim(
        "The filter raises success",
        "+3.6 points over all; Sokoban +16.0 with PPO, +9.0 with GRPO",
        (
            Evidence("`tiny`, all", "main_table-tiny", "gain/all/average", 1),
            Evidence("`small`, Sokoban, PPO", "main_table-small", "gain/ppo/Sokoban", 1),
            Evidence("`small`, Sokoban, GRPO", NORMALISATION, "gain, divided", 1, SOKOBAN_GRPO),
        ),
        "high for Sokoban with GRPO at this size, where it undoes the division by the deviation; low beyond",
    ),
    KeyClaim(
        "MI tells success, entropy points the wrong way",
        "+0.39; negative",
        (
            Evidence("`tiny`, MI z-score", "correlation-tiny", "rho/trajectory/mi_zscore"),
            Evidence("`tiny`, H(Z\\|X)", "correlation-tiny", "rho/first_turn/conditional_entropy"),
        ),
        "low: 12 arms, one task, the smallest models",
    ),
    KeyClaim(
        "Prompts without reward variance have little task gradient",
        "rises with variance",
        (
            Evidence("`tiny`, Sokoban, PPO", "gradients-tiny", "trend/Sokoban/ppo/task"),
            Evidence("`small`, Sokoban, PPO", "gradients-small", "trend/Sokoban/ppo/task"),
            Evidence("`small`, Sokoban, GRPO", "gradients-small", "trend/Sokoban/grpo/task"),
        ),
        "low: three seeds; advantages that are divided by the deviation speak against it",
    ),
)


def from_tables(folder: str) -> Found:
    """As the folder's table.json has them."""
    if folder == NORMALISATION:
        return normalisation_claims()
    return {
        name: Estimate(one["value"], one["low"], one["high"], one["num"], one["how"])
        for name, one in read_table(RESULTS / folder)["claims"].items()
    }


@cache
def from_records(folder: str) -> Found:
    """As today's analysis finds them in the folder's records."""
    if folder == NORMALISATION:
        return normalisation_claims()
    return {claim.name: claim.estimate for claim in find_again(RESULTS / folder).claims}


@cache
def normalisation_claims() -> Found:
    """Under the dense reward: the filter's gain with and without division, the plan's D, and MI.

    MI is that of the arm with division and without a filter: the paper's settings but for model and length.
    """
    curves, _, _ = read(RESULTS / NORMALISATION)
    found: dict[str, Estimate | None] = {}
    for reading, ending in (("peak", ""), ("end", ", end")):
        divided, centred = gains(by_arm(curves, "dense", reading))
        found[f"gain, divided{ending}"] = mean_estimate([*divided.values()], "t over paired seeds")
        found[f"gain, centred{ending}"] = mean_estimate([*centred.values()], "t over paired seeds")
        found[f"D{ending}"] = paired_estimate(divided, centred)
    told = {name: one.times(POINTS) for name, one in found.items() if one is not None}
    plain = read_cells(RESULTS / NORMALISATION).where(
        reward="dense", advantage="divided", filter="none"
    )
    fallen = mean_estimate(plain.values(change(MI)))
    return told if fallen is None else {**told, MI_CHANGE: fallen}


def scorecard(source: Source) -> str:
    """The table."""
    rows = []
    for one in SCORECARD:
        told = [evidence.told(source) for evidence in one.evidence]
        ours, decided = ("<br>".join(column) for column in zip(*told, strict=True))
        rows.append((one.claim, one.paper, ours, decided, one.confidence))
    columns = ("claim", "paper", "our best evidence, 95% interval", "decision", "confidence")
    return Table("", columns, tuple(rows)).markdown().replace("\\\\|", "\\|")


def _paper_row(folder: str, claim: str) -> PaperRow:
    data = read_table(RESULTS / folder)
    return next(row for row in grid_of(data).claims_at(data["scale"]) if row.claim == claim)
