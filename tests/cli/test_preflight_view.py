"""What preflight prints fits a terminal and says what was found."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ragen2.cli.views.preflight import show
from ragen2.diagnostics import Label, NoiseSplit, Played, Triaged
from ragen2.diagnostics.metrics.problems import ProblemCount
from ragen2.diagnostics.metrics.reward import DeadForecast
from ragen2.trainer.advice import Advice, Decision
from ragen2.trainer.incentives import Incentives
from ragen2.trainer.preflight import SCOPE, FilterForecast, Preflight

LONG = Played(0.5, solved=False, actions=("Down",) * 20, outcome="You (1,1) Goal (3,3) " * 5)
BLIND = [
    Triaged(f"Lake seed {seed}", Label.REWARD_BLIND, "all paid 0.5", (("member 0", LONG),))
    for seed in range(5)
]
FOUND = Preflight(
    env="Lake",
    model="tiny",
    num_prompts=6,
    group_size=4,
    metrics={
        "rollout/success": 0.25,
        "reward/mean": 0.4,
        "reward/variance": 0.125,
        "reward/std": 0.25,
        "reward/variance_std_over_mean": 1.25,
        "reward/dead_ratio": 0.5,
        "reward/effective_batch": 12.0,
        f"{SCOPE}/retrieval_accuracy": 0.75,
        f"{SCOPE}/retrieval_chance": 0.125,
        f"{SCOPE}/mi_estimate": -0.001,
        f"{SCOPE}/mi_bound": 2.08,
    },
    ratio_interval=(0.7, 2.2),
    filters=(FilterForecast("top_p", {"mass": 0.9}, True, 0.4, 0.2, 0.6, 2, 11.0),),
    group_sizes=(DeadForecast(4, 0.5, False), DeadForecast(16, 0.25, True)),
    prompts=(*BLIND, Triaged("Lake seed 9", Label.LIVE, "rewards differ")),
    noise=NoiseSplit(policy=0.09, environment=0.01),
    noise_by_prompt=(),
    regime="template_collapse",
    incentives=Incentives(invalid=-0.5, idle=-0.5, random=-0.9, failed=-1.0, expert=9.7),
    problems=(ProblemCount("no </answer>", 3, ("go up", "go down")),),
    advice=Advice(Decision.FIX_FIRST, "NO-GO: fix this first", ("one", "two " * 40)),
    absent={"group_sizes/64": "why not"},
)


def printed(width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    show(FOUND, console)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal(width):
    assert max(len(line.rstrip()) for line in printed(width).splitlines()) <= width


def test_it_shows_what_was_found():
    text = printed(100)
    for piece in (
        "Lake · tiny · 6 prompts x 4 = 24 episodes",
        "95%: 0.70 to 2.20",
        "luck's part of RV",
        "10%",
        "20% to 60%",
        "16*",
        "prompts  1 live, 0 too easy, 0 too hard, 5 reward blind, 0 unclear",
        "and 2 more reward blind",
        "no group_sizes/64: why not",
        "template collapse",
        "no </answer>",
        "go up",
        "always invalid -0.50, changing nothing -0.50, random -0.90, expert 9.70",
    ):
        assert piece in text, piece
    assert "-0.00" not in text
    assert text.index("NO-GO: fix this first") < text.index("- one") < text.index("- two")


def test_a_play_stays_on_one_line_and_shows_where_it_led():
    (line, *_) = [line for line in printed(100).splitlines() if "member 0" in line]
    assert line.startswith("  member 0  paid 0.5  not solved  Down || Down")
    assert "-> You (1,1)" in line
