"""The verdict: words for each regime, since when, what changed, and the numbers behind it."""

from __future__ import annotations

import pytest
from report_runs import FIRST, audit_record, run_of

from ragen2.diagnostics import Regime
from ragen2.reports.load import Run, as_run
from ragen2.reports.verdict import HEADS, NOT_MEASURED, TONES, WORDS, basis, judge
from ragen2.runs.record import FoundFailure, StepRecord

GOOD, BAD = "diverse_grounded", "template_collapse"


def regimes(*names: str | None, metrics: dict[str, float] | None = None) -> Run:
    return run_of(
        *(
            StepRecord(step=step, metrics=metrics or {}, regime=name)
            for step, name in enumerate(names)
        )
    )


def measured(step: int, regime: str, **values: float) -> StepRecord:
    metrics = {f"{FIRST}{name}": value for name, value in values.items()}
    return StepRecord(step=step, metrics=metrics, regime=regime)


def collapsing(*, entropy: tuple[float, float], p_value: float = 0.6) -> Run:
    """Retrieval of 0.96 up to step 139, then 0.25 of 0.25."""
    before = {"retrieval_accuracy": 0.96, "retrieval_chance": 0.25, "retrieval_p_value": 0.005}
    after = {"retrieval_accuracy": 0.25, "retrieval_chance": 0.25, "retrieval_p_value": p_value}
    return run_of(
        *(measured(step, GOOD, conditional_entropy=entropy[0], **before) for step in (138, 139)),
        *(measured(step, BAD, conditional_entropy=entropy[1], **after) for step in (140, 141)),
    )


@pytest.mark.parametrize(
    ("regime", "tone", "word"),
    [
        (Regime.DIVERSE_GROUNDED, "good", "Healthy"),
        (Regime.COMPRESSED_GROUNDED, "fair", "Compressed"),
        (Regime.TEMPLATE_COLLAPSE, "bad", "Template collapse"),
        (Regime.LOW_ENTROPY_COLLAPSE, "bad", "Low-entropy collapse"),
        (Regime.UNDECIDED, "unknown", "Undecided"),
    ],
)
def test_each_regime_has_its_word_and_tone(regime, tone, word):
    verdict = judge(regimes(None, regime.value))
    assert (verdict.word, verdict.tone) == (word, tone)


def test_every_regime_has_words():
    assert set(WORDS) == set(TONES) == set(HEADS) == {regime.value for regime in Regime}


def test_the_last_regime_counts_and_is_dated_from_its_last_change():
    verdict = judge(regimes(None, BAD, GOOD, GOOD, BAD, BAD, BAD))
    assert verdict.word == "Template collapse since step 4"
    assert verdict.evidence[0].text == "template collapse since step 4 (of 6)"
    assert verdict.evidence[0].tone == "bad"


def test_a_collapse_is_told_as_what_fell_and_what_rose():
    verdict = judge(collapsing(entropy=(0.5, 0.8)))
    assert verdict.word == "Template collapse since step 140"
    assert verdict.text.startswith("Retrieval fell from 0.96 to chance while entropy rose. ")
    assert judge(collapsing(entropy=(0.8, 0.5))).text.startswith(
        "Retrieval fell from 0.96 to chance while entropy fell. "
    )
    assert " while entropy stayed. " in judge(collapsing(entropy=(0.8, 0.81))).text


def test_a_fall_to_above_chance_is_told_with_its_number():
    verdict = judge(collapsing(entropy=(0.5, 0.8), p_value=0.005))
    assert verdict.text.startswith("Retrieval fell from 0.96 to 0.25 while entropy rose. ")


def test_a_recovery_is_told_as_a_rise():
    run = run_of(
        measured(1, BAD, retrieval_accuracy=0.25, retrieval_p_value=0.5),
        measured(2, GOOD, retrieval_accuracy=0.9, retrieval_p_value=0.005),
    )
    assert judge(run).word == "Healthy since step 2"
    assert judge(run).text.startswith("Retrieval rose from 0.25 to 0.90. ")


def test_a_run_that_was_collapsed_from_the_start_never_depended_on_its_prompt():
    run = run_of(measured(1, BAD, retrieval_accuracy=0.2, retrieval_chance=0.25))
    assert judge(run).word == "Template collapse"
    assert judge(run).text == (
        "Retrieval is at 0.20 (chance 0.25). Reasoning is varied, but does not depend on its prompt."
    )


def test_a_run_that_measured_nothing_says_so():
    verdict = judge(regimes(None, None))
    assert (verdict.word, verdict.tone, verdict.evidence) == (NOT_MEASURED, "unknown", ())
    assert judge(run_of()).word == NOT_MEASURED


def test_evidence_has_first_and_last_values_and_the_last_interval():
    first = StepRecord(step=0, metrics={"eval/success": 0.25})
    last = StepRecord(
        step=8, metrics={"eval/success": 0.75, "eval/success_low": 0.7, "eval/success_high": 0.8}
    )
    (plain,) = judge(run_of(first, last)).evidence
    assert (plain.text, plain.metric) == (
        "held-out success: 0.25 at step 0, 0.75 at step 8",
        "eval/success",
    )
    (alone,) = judge(run_of(last)).evidence
    assert alone.text == "held-out success: 0.75 at step 8 (95% 0.7 to 0.8)"


def test_retrieval_is_told_against_chance_and_speaks_for_or_against():
    healthy, collapsed = (
        judge(
            run_of(
                measured(
                    1,
                    regime,
                    retrieval_accuracy=0.5,
                    retrieval_chance=0.25,
                    retrieval_p_value=p_value,
                )
            )
        ).evidence[1]
        for regime, p_value in ((GOOD, 0.005), (BAD, 0.3))
    )
    assert healthy.text == "retrieval accuracy: 0.5 at step 1; chance 0.25, p 0.005"
    assert (healthy.tone, collapsed.tone) == ("good", "bad")


def test_evidence_of_a_measured_run_names_retrieval_information_and_entropy():
    names = ("retrieval_accuracy", "mi_estimate", "conditional_entropy")
    found = judge(regimes(GOOD, metrics={f"{FIRST}{name}": 0.5 for name in names}))
    assert [one.text.split(":")[0] for one in found.evidence[1:]] == [
        "retrieval accuracy",
        "mutual information, nats per token",
        "conditional entropy H(Z|X), nats per token",
    ]


def test_other_failures_are_named_beside_the_regime_and_told_with_their_date():
    records = [
        StepRecord(
            step=step,
            metrics={"rollout/reasoning_tokens": 60.0 if step < 20 else 20.0},
            regime=GOOD,
        )
        for step in range(40)
    ]
    verdict = judge(run_of(*records))
    assert verdict.text == f"{WORDS[GOOD]} Besides: reasoning shrinkage."
    assert verdict.tone == "fair"
    assert verdict.evidence[-1].text.startswith(
        "reasoning shrinkage since step 20: Reasoning shrinks: 60.0 "
    )


def test_the_chain_is_read_off_the_newest_numbers():
    first = StepRecord(
        step=1,
        metrics={f"{FIRST}retrieval_above_chance": 0.5, f"{FIRST}retrieval_p_value": 0.005},
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
    last = judge(run_of(first, second)).evidence[-1]
    assert last.text.startswith("step 10: The chain is whole: input -> reasoning holds")


def test_an_audit_tells_its_own_failures_and_what_it_rests_on(tmp_path):
    failure = FoundFailure(
        name="reasoning_shrinkage", since_step=2, severity="severe", text="short"
    )
    record = audit_record(failures=[failure])
    verdict = judge(as_run(record, tmp_path))
    assert verdict.text.endswith("Besides: reasoning shrinkage.")
    assert verdict.evidence[-1].text == "reasoning shrinkage since step 2: short"
    assert verdict.evidence[-1].tone == "bad"
    assert "not from a model's likelihoods" in basis(record)
    assert basis(audit_record(likelihood="model", scorer="tiny")) == "Scored with tiny."
