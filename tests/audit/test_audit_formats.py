"""Every format gives the numbers that the same rollouts give in ours; real samples are read whole."""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from logged_rollouts import (
    chat_row,
    make_rollouts,
    own_row,
    ragen_row,
    result_row,
    table_row,
    trl_row,
    verifiers_row,
    verl_row,
    write_csv,
    write_jsonl,
    write_parquet,
)
from ragen2.audit import PolicyLikelihood, SampleLimits, WordLikelihood, parse_columns
from ragen2.audit.files import read_rows
from ragen2.audit.likelihoods import Likelihood
from ragen2.audit.readers import READERS, detect
from ragen2.errors import ConfigError
from ragen2.runs.record import AuditRecord

SAMPLES = Path(__file__).parent / "samples"
MAP = "prompt=q,completion=a,reward=r,step=at,group=g"
WRITERS = {
    "ragen2": (own_row, write_jsonl, "log.jsonl"),
    "verl": (verl_row, write_jsonl, "log.jsonl"),
    "ragen": (ragen_row, write_jsonl, "log.jsonl"),
    "chats": (chat_row, write_jsonl, "log.jsonl"),
    "verifiers": (verifiers_row, write_jsonl, "traces.jsonl"),
    "verifiers results": (result_row, write_jsonl, "results.jsonl"),
    "trl": (trl_row, write_parquet, "completions_00001.parquet"),
    "columns jsonl": (table_row, write_jsonl, "log.jsonl"),
    "columns parquet": (table_row, write_parquet, "log.parquet"),
    "columns csv": (table_row, write_csv, "log.csv"),
}
NOT_IN_EVERY_FORMAT = ("rollout/success", "triage/")
"""Whether a task was solved is known to two formats only, and triage makes use of it."""


@cache
def tiny() -> PolicyLikelihood:
    import torch

    from ragen2.backends.agent import open_policy, quiet_transformers

    torch.set_num_threads(1)
    quiet_transformers()
    return PolicyLikelihood(open_policy("ragen2-tiny", "cpu"), "ragen2-tiny")


def audit_format(
    audited: Callable[..., AuditRecord], name: str, folder: Path, likelihood: Likelihood
) -> AuditRecord:
    make, write, file = WRITERS[name]
    path = write(folder / file, [make(one) for one in make_rollouts()])
    columns = parse_columns(MAP) if name.startswith("columns") else None
    return audited(path, columns=columns, likelihood=likelihood)


def numbers(record: AuditRecord) -> list[tuple[int, str | None, dict[str, float]]]:
    return [
        (
            one.step,
            one.regime,
            {n: v for n, v in one.metrics.items() if not n.startswith(NOT_IN_EVERY_FORMAT)},
        )
        for one in record.steps
    ]


@pytest.mark.parametrize("scores", ["wording", "model"])
@pytest.mark.parametrize("name", [name for name in WRITERS if name != "ragen2"])
def test_a_foreign_format_gives_exactly_our_numbers(audited, tmp_path, name, scores):
    likelihood = WordLikelihood() if scores == "wording" else tiny()
    (tmp_path / "own").mkdir()
    ours = audit_format(audited, "ragen2", tmp_path / "own", likelihood)
    theirs = audit_format(audited, name, tmp_path, likelihood)
    assert theirs.formats == [name.split()[0]]
    assert "collapse/first_turn/mi_estimate" in ours.steps[0].metrics
    assert numbers(theirs) == numbers(ours)


def test_scores_of_our_own_rollouts_are_those_of_training(audited, tmp_path):
    """A log of text gives what the sampled tokens give: same prompt, same pre-filled tag."""
    import numpy as np

    from ragen2.diagnostics import measure
    from ragen2.scoring import Trace, cross_score
    from ragen2.types import Message

    likelihood = tiny()
    rollouts = make_rollouts(steps=[1])
    path = write_jsonl(tmp_path / "log.jsonl", [own_row(one) for one in rollouts])
    found = audited(path, likelihood=likelihood).steps[0].metrics
    tokenizer = likelihood.policy.tokenizer
    traces = [
        Trace(
            np.array(
                [
                    *tokenizer.start([Message(m["role"], m["content"]) for m in one.messages]),
                    *tokenizer.encode("<think>"),
                ]
            ),
            np.array(tokenizer.encode(one.reasoning)),
        )
        for one in rollouts
    ]
    matrix = cross_score(traces, likelihood.policy)
    expected = measure(matrix.logp_NP, matrix.length_N, matrix.owner_N, resamples=0)
    for name in ("mi_estimate", "mi_seq_estimate", "retrieval_accuracy", "conditional_entropy"):
        assert found[f"collapse/first_turn/{name}"] == pytest.approx(expected[name], abs=1e-5)


def test_the_tables_that_trl_wrote_are_read(audited):
    record = audited(SAMPLES / "trl")
    assert record.formats == ["trl"]
    assert (record.rows.read, record.rows.used) == (32, 32)
    assert [one.step for one in record.steps] == [1, 2]
    assert record.rows.no_trace["no reasoning"] == 17
    # Two reward functions: 1 for a closed reasoning and a small bonus for brevity; two extras besides.
    rows = list(read_rows(SAMPLES / "trl/completions/completions_00001.parquet", lambda _: None))
    mean = sum(row["closes_reasoning"] + row["is_short"] for row in rows) / len(rows)
    assert record.steps[0].metrics["reward/mean"] == pytest.approx(mean)
    assert record.notes == [
        "rewards are closes_reasoning + is_short; temperature, words left out, as the advantages do not "
        "need them"
    ]


def test_the_traces_that_verifiers_wrote_are_read(audited):
    record = audited(SAMPLES / "verifiers", limits=SampleLimits(turns=2))
    assert record.formats == ["verifiers"]
    assert (record.rows.read, record.rows.used) == (64, 64)
    assert [one.step for one in record.steps] == [1, 2]
    assert record.steps[0].regime == "diverse_grounded"
    assert record.steps[0].metrics["collapse/turn_2/num_prompts"] == 4.0
    # 3 of 4 replies are right; brevity adds half of one over the length, about 30 characters.
    assert 0.76 < record.steps[0].metrics["reward/mean"] < 0.775


def test_the_dumps_of_verl_are_read_in_the_order_of_their_steps(audited):
    record = audited(SAMPLES / "verl")
    assert (record.formats, record.rows.used) == (["verl"], 64)
    assert [one.step for one in record.steps] == [9, 10]
    assert record.steps[0].metrics["reward/mean"] == 0.5


def test_the_export_of_ragen_is_read_and_its_rewards_are_not_believed(audited):
    record = audited(SAMPLES / "ragen", limits=SampleLimits(turns=2))
    assert (record.formats, record.rows.used) == (["ragen"], 32)
    assert "collapse/turn_2/retrieval_accuracy" in record.steps[0].metrics
    assert record.steps[0].metrics["rollout/success"] == 0.5
    assert "reward/mean" not in record.steps[0].metrics
    assert record.steps[0].absent["reward"] == "the log holds no usable rewards"
    assert "RAGEN's exporter" in record.notes[0]


def test_rewards_of_verifiers_are_weighted():
    rewards = {"a": {"score": 1.0, "weight": 0.5}, "b": {"score": 2.0}, "c": None}
    row = verifiers_row(make_rollouts()[0])
    row["traces"][0]["rewards"] = rewards
    (rollout,) = READERS["verifiers"].read(row)
    assert rollout.reward == 2.5


@pytest.mark.parametrize("parent", [99, -1, "x", 2])
def test_a_message_graph_that_leads_nowhere_is_counted(audited, tmp_path, parent):
    rows = [verifiers_row(one) for one in make_rollouts(steps=[1])]
    rows[0]["traces"][0]["nodes"][2]["parent"] = parent
    record = audited(write_jsonl(tmp_path / "traces.jsonl", rows))
    assert record.rows.unused == {"broken message graph": 1}


def test_a_row_is_of_the_first_format_that_fits():
    one = make_rollouts()[0]
    rows = {"ragen2": own_row, "verl": verl_row, "ragen": ragen_row, "trl": trl_row}
    rows |= {"verifiers": verifiers_row, "chats": chat_row}
    assert {name: detect(make(one)).name for name, make in rows.items()} == {n: n for n in rows}
    assert detect({"prompt": "p", "response": "r"}).name == "columns"
    assert detect({"messages": chat_row(one)["messages"], "response": "r"}).name == "columns"
    assert detect({"x": 1}) is None
    assert detect({"messages": [{"role": "user", "content": "a question alone"}]}) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "",
            "--columns takes FIELD=COLUMN pairs with fields prompt, completion, reward, step, group, got ''",
        ),
        ("prompt=q,completion", "got 'completion'"),
        ("prompt=q,completion=a,foo=b", "got 'foo=b'"),
    ],
)
def test_a_wrong_column_map_says_what_is_wrong(text, told):
    with pytest.raises(ConfigError, match=told.replace("(", r"\(")):
        parse_columns(text)


def test_a_reward_may_be_a_sum_of_columns(audited, tmp_path):
    rows = [table_row(one) | {"bonus": 2.0} for one in make_rollouts(steps=[1])]
    path = write_jsonl(tmp_path / "log.jsonl", rows)
    columns = parse_columns("prompt=q,completion=a,reward=r+bonus")
    assert audited(path, columns=columns).steps[0].metrics["reward/mean"] == 2.5


def test_a_reward_column_that_no_row_has_is_told(audited, tmp_path):
    path = write_jsonl(tmp_path / "log.jsonl", [table_row(one) for one in make_rollouts()])
    record = audited(path, columns=parse_columns("prompt=q,completion=a,reward=r+bonsu"))
    assert record.notes == ["no row has a number in each column of reward=r+bonsu; check --columns"]


def test_a_csv_field_may_be_long_and_the_limit_of_the_process_stays(tmp_path):
    before = csv.field_size_limit()
    long = "x" * (before + 1)
    path = write_csv(tmp_path / "log.csv", [{"q": long, "r": "1"}])
    rows = read_rows(path, lambda read: None)
    assert next(rows) == {"q": long, "r": "1"}
    assert csv.field_size_limit() == before
