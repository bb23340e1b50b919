"""Which columns of a TRL table are rewards: never an extra, and said where it cannot be told."""

from __future__ import annotations

import numpy as np
import pytest

from logged_rollouts import make_rollouts, trl_row, write_csv, write_jsonl, write_parquet
from ragen2.audit import ReadSettings, log_files, parse_columns, read_log


def trl_rows(*, extras=(), weights=(1.0, 1.0), scale="group", members=6):
    """A table as TRL 1.16 makes it: two rewards, then extras, then advantages of the weighted sum."""
    rng = np.random.default_rng(3)
    rows = []
    for task in range(6):
        rewards = np.column_stack([rng.integers(0, 2, members), rng.random(members)])
        total = rewards @ weights
        spread = {"group": total.std(ddof=1) + 1e-4, "none": 1.0}[scale]
        advantage = np.float32((total - total.mean()) / spread).astype(float)
        plays = make_rollouts(steps=[1], tasks=6, members=members)[task * members :][:members]
        for index, one in enumerate(plays):
            known = {"step": 1, "prompt": one.messages, "completion": trl_row(one)["completion"]}
            known |= {"accuracy": float(rewards[index, 0]), "brevity": float(rewards[index, 1])}
            known |= {name: make(rng, one) for name, make in extras}
            rows.append(known | {"advantage": float(advantage[index])})
    return rows


TEMPERATURE = ("temperature", lambda rng, one: float(rng.choice([0.7, 1.0])))
DIFFICULTY = ("difficulty", lambda rng, one: one.task)
ANSWER = ("extracted", lambda rng, one: one.action)


def rewards_of(path):
    log = read_log(log_files([path]), ReadSettings(), lambda _: None)
    plays = [play for one in log.steps[0].prompts() for play in one.plays.items]
    return sorted(play.reward for play in plays if play.reward is not None), log.trl_rewards.note


def sums(rows, *names):
    return pytest.approx(sorted(sum(row[name] for name in names) for row in rows))


@pytest.mark.parametrize("scale", ["group", "none"])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 0.2)])
@pytest.mark.parametrize(
    "extras", [[TEMPERATURE], [DIFFICULTY], [ANSWER, TEMPERATURE], [DIFFICULTY, TEMPERATURE]]
)
def test_no_extra_column_of_trl_is_summed_into_the_reward(tmp_path, scale, weights, extras):
    rows = trl_rows(extras=extras, weights=weights, scale=scale)
    found, note = rewards_of(write_parquet(tmp_path / "completions_00001.parquet", rows))
    assert found == sums(rows, "accuracy", "brevity")
    left = ", ".join(name for name, _ in extras if name != "extracted")
    assert note == (
        f"rewards are accuracy + brevity; {left} left out, as the advantages do not need them"
    )


def test_integer_rewards_of_trl_count(tmp_path):
    rows = [
        {**row, "accuracy": int(row["accuracy"]), "brevity": 0}
        for row in trl_rows(weights=(1.0, 0.0))
    ]
    found, note = rewards_of(write_parquet(tmp_path / "completions_00001.parquet", rows))
    assert found == sums(rows, "accuracy")
    assert set(found) == {0.0, 1.0}
    assert "brevity left out" in note
    alone = [{name: one for name, one in row.items() if name != "brevity"} for row in rows]
    assert rewards_of(write_csv(tmp_path / "table.csv", alone)) == (found, "")


def test_rewards_that_cannot_be_told_are_left_out_with_the_cure(audited, tmp_path):
    rows = trl_rows(extras=[TEMPERATURE], members=2)  # any column fits the advantages of two
    path = write_parquet(tmp_path / "completions_00001.parquet", rows)
    assert rewards_of(path)[0] == []
    record = audited(path)
    assert record.notes == [
        "rewards are left out: which of accuracy, brevity, temperature are rewards cannot be told; "
        "say --columns reward=accuracy+brevity or the like"
    ]
    said = audited(path, columns=parse_columns("reward=accuracy+brevity"))
    mean = np.mean([row["accuracy"] + row["brevity"] for row in rows])
    assert said.steps[0].metrics["reward/mean"] == pytest.approx(mean)


def test_columns_in_another_order_are_rewards_only_by_their_name(tmp_path):
    rows = [dict(sorted(row.items())) for row in trl_rows(extras=[TEMPERATURE])]
    found, note = rewards_of(write_jsonl(tmp_path / "log.jsonl", rows))
    assert found == []
    assert "cannot be told" in note
    named = [{"accuracy_reward": row.pop("accuracy"), **row} for row in rows]
    named = [
        {name: one for name, one in row.items() if name not in {"brevity", "temperature"}}
        for row in named
    ]
    assert rewards_of(write_jsonl(tmp_path / "log.jsonl", named))[0] == sums(
        named, "accuracy_reward"
    )


def test_a_reward_that_was_constant_at_first_is_found_when_it_varies(tmp_path):
    first = [{**row, "brevity": 0.5} for row in trl_rows(weights=(1.0, 0.0), extras=[TEMPERATURE])]
    second = [{**row, "step": 2} for row in trl_rows(extras=[TEMPERATURE])]
    for step, rows in enumerate((first, second, [{**row, "step": 3} for row in first]), 1):
        write_parquet(tmp_path / f"completions_{step:05d}.parquet", rows)
    log = read_log(log_files([tmp_path]), ReadSettings(), lambda _: None)
    assert log.trl_rewards.names == ("accuracy", "brevity")
    assert log.trl_rewards.others == ("temperature",)
