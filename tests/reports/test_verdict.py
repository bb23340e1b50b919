"""The verdict of the views: what the examination found, line by line, with the curve to look at."""

from __future__ import annotations

from report_runs import FIRST, audit_record, run_of

from ragen2.diagnostics import examine
from ragen2.diagnostics.judging.examination import NO_RECORDS, UNDECIDED
from ragen2.reports.load import as_run
from ragen2.reports.verdict import basis, judge
from ragen2.runs.record import StepRecord


def scored(step: int, accuracy: float) -> StepRecord:
    """A cross-scoring of 8 prompts x 64 traces."""
    found = {
        "retrieval_accuracy": accuracy,
        "retrieval_chance": 0.125,
        "num_traces": 512.0,
        "conditional_entropy_seq": 9.0,
    }
    return StepRecord(step=step, metrics={f"{FIRST}{name}": v for name, v in found.items()})


def test_the_verdict_is_what_the_examination_says():
    records = [scored(step, 0.96 if step < 140 else 0.125) for step in range(130, 150)]
    verdict, found = judge(run_of(*records)), examine(records)
    assert verdict.word == found.head == "Template collapse since step 140"
    assert (verdict.text, verdict.certainty, verdict.next, verdict.tone) == (
        found.text,
        found.certainty,
        found.next,
        "bad",
    )


def test_every_question_is_a_line_with_its_answer_date_and_curve():
    records = [scored(step, 0.96 if step < 140 else 0.125) for step in range(130, 150)]
    lines = judge(run_of(*records)).evidence
    assert [one.head for one in lines] == [
        "Do replies parse? Not known.",
        "Do rewards tell good rollouts from bad ones? Not known.",
        "Is anything learnt on held-out tasks? Not known.",
        "Is reasoning about its prompt? No since step 140.",
        "Do actions follow the reasoning? Not known.",
    ]
    assert [one.tone for one in lines] == ["unknown", "unknown", "unknown", "bad", "unknown"]
    assert lines[3].metric == f"{FIRST}grounded_share"
    assert lines[3].text == (
        "0% of reasoning traces are as much about their prompt as at steps 130 to 139."
    )


def test_a_run_that_measured_nothing_says_so():
    assert judge(run_of()).word == NO_RECORDS
    verdict = judge(run_of(StepRecord(step=1, metrics={})))
    assert (verdict.word, verdict.tone) == (UNDECIDED, "unknown")


def test_other_failures_are_lines_of_their_own():
    records = [
        StepRecord(step=step, metrics={"rollout/reasoning_tokens": 60.0 if step < 20 else 45.0})
        for step in range(40)
    ]
    last = judge(run_of(*records)).evidence[-1]
    assert (last.head, last.tone) == ("Reasoning shrinkage since step 20.", "fair")
    assert last.text.startswith("Reasoning shrinks: 60.0 tokens per reply")


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
    assert last.head == "At step 10."
    assert last.text.startswith("The chain is whole: input -> reasoning holds")


def test_an_audit_tells_what_it_rests_on(tmp_path):
    record = audit_record()
    assert judge(as_run(record, tmp_path)).evidence
    assert "not from a model's likelihoods" in basis(record)
    assert basis(audit_record(likelihood="model", scorer="tiny")) == "Scored with tiny."
