"""The verdict: words for each regime, since when, and the numbers behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen2.diagnostics import Regime
from ragen2.reports.load import Run
from ragen2.reports.verdict import TONES, WORDS, judge
from ragen2.runs.record import StepRecord


def run_of(*regimes: str | None, metrics: dict[str, float] | None = None) -> Run:
    records = [
        StepRecord(step=step, metrics=metrics or {}, regime=name)
        for step, name in enumerate(regimes)
    ]
    return Run(Path("run"), {}, tuple(records))


@pytest.mark.parametrize(
    ("regime", "tone", "opening"),
    [
        (Regime.DIVERSE_GROUNDED, "good", "Healthy: "),
        (Regime.COMPRESSED_GROUNDED, "fair", "Compressed: "),
        (Regime.TEMPLATE_COLLAPSE, "bad", "Template collapse: "),
        (Regime.LOW_ENTROPY_COLLAPSE, "bad", "Low-entropy collapse: "),
    ],
)
def test_each_regime_has_its_words_and_tone(regime, tone, opening):
    verdict = judge(run_of(None, regime.value))
    assert verdict.words.startswith(opening)
    assert verdict.tone == tone


def test_every_regime_has_words():
    assert set(WORDS) == set(TONES) == {regime.value for regime in Regime}


def test_the_last_regime_counts_and_is_dated_from_its_last_change():
    good, bad = "diverse_grounded", "template_collapse"
    verdict = judge(run_of(None, bad, good, good, bad, bad, bad))
    assert verdict.words == WORDS[bad]
    assert verdict.evidence[0] == "template collapse since step 4 (of 6)"


def test_a_run_that_measured_nothing_says_so():
    verdict = judge(run_of(None, None))
    assert verdict.words == "Collapse was not measured in this run."
    assert verdict.tone == "fair"
    assert verdict.evidence == ()


def test_evidence_has_first_and_last_values_and_the_last_interval():
    records = [
        StepRecord(step=0, metrics={"eval/success": 0.25}),
        StepRecord(
            step=8,
            metrics={"eval/success": 0.75, "eval/success_low": 0.7, "eval/success_high": 0.8},
        ),
    ]
    plain = judge(Run(Path("run"), {}, tuple(records))).evidence
    assert plain == ("held-out success: 0.250 at step 0, 0.750 at step 8",)
    with_interval = judge(Run(Path("run"), {}, tuple(records[1:]))).evidence
    assert with_interval == (
        "held-out success: 0.750 at step 8, 0.750 at step 8 (95% 0.700 to 0.800)",
    )


def test_evidence_of_a_measured_run_names_retrieval_information_and_entropy():
    prefix = "collapse/first_turn/"
    names = ("retrieval_accuracy", "mi_estimate", "conditional_entropy")
    found = judge(run_of("diverse_grounded", metrics={f"{prefix}{name}": 0.5 for name in names}))
    assert [line.split(":")[0] for line in found.evidence[1:]] == [
        "retrieval accuracy",
        "mutual information, nats a token",
        "conditional entropy H(Z|X), nats a token",
    ]


def test_other_failures_are_named_beside_the_regime_and_told_with_their_date():
    records = [
        StepRecord(
            step=step,
            metrics={"rollout/reasoning_tokens": 60.0 if step < 20 else 20.0},
            regime="diverse_grounded",
        )
        for step in range(40)
    ]
    verdict = judge(Run(Path("run"), {}, tuple(records)))
    assert verdict.words == f"{WORDS['diverse_grounded']} Besides: reasoning shrinkage."
    assert verdict.tone == "fair"
    assert verdict.evidence[-1].startswith(
        "reasoning shrinkage since step 20: Reasoning shrinks: 60.0 "
    )


def test_the_chain_is_read_off_the_newest_numbers():
    first = StepRecord(
        step=1,
        metrics={
            "collapse/first_turn/retrieval_above_chance": 0.5,
            "collapse/first_turn/retrieval_p_value": 0.005,
        },
    )
    second = StepRecord(
        step=10,
        metrics={
            "flow/first_turn/reasoning_action_swap_seq": 1.0,
            "flow/first_turn/reasoning_action_swap_p_value": 0.005,
            "flow/first_turn/input_action": 0.5,
            "flow/first_turn/input_action_p_value": 0.005,
        },
    )
    last = judge(Run(Path("run"), {}, (first, second))).evidence[-1]
    assert last.startswith("step 10: The chain is whole: input -> reasoning holds")
