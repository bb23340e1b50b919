"""What an audit concludes from a log."""

from __future__ import annotations

import json

import numpy as np
import pytest

from logged_rollouts import FILLER, make_rollouts, own_row, verl_row, write_jsonl
from ragen2.audit import PolicyLikelihood, SampleLimits
from ragen2.backends.scripted import ScriptedPolicy
from ragen2.diagnostics import reward_spread
from ragen2.diagnostics.judging.examination import UNDECIDED
from ragen2.reports.load import as_run
from ragen2.reports.verdict import judge
from ragen2.runs.scores import ScoreRecord, write_scores

FIRST = "collapse/first_turn/"


def test_a_grounded_log_and_a_collapsed_one_are_told_apart(audited, tmp_path):
    for grounded, regime in ((True, "diverse_grounded"), (False, "template_collapse")):
        rows = [own_row(one) for one in make_rollouts(tasks=6, members=8, grounded=grounded)]
        record = audited(write_jsonl(tmp_path / f"{regime}.jsonl", rows))
        assert [one.regime for one in record.steps] == [regime, regime]
        assert (record.regime, record.regime_since) == (regime, 1)


def test_one_reasoning_for_everything_is_a_low_entropy_collapse(audited, tmp_path):
    rows = [verl_row(one) for one in make_rollouts(tasks=6, members=8)]
    for row in rows:
        row["output"] = "<think>i walk to the goal</think><answer>Up</answer>"
    record = audited(write_jsonl(tmp_path / "log.jsonl", rows))
    assert record.regime == "low_entropy_collapse"
    assert record.steps[0].metrics[f"{FIRST}conditional_entropy_seq"] == 0.0
    assert record.steps[0].metrics["rollout/distinct_reasoning_ratio"] == 1 / 48
    assert record.steps[0].metrics[f"{FIRST}retrieval_accuracy"] == pytest.approx(1 / 6)


def test_one_reasoning_a_prompt_is_compressed_but_grounded(audited, tmp_path):
    rows = [verl_row(one) for one in make_rollouts(tasks=6, members=8)]
    for row in rows:
        row["output"] = f"<think>{row['uid']}</think><answer>Up</answer>"
    record = audited(write_jsonl(tmp_path / "log.jsonl", rows))
    assert record.regime == "compressed_grounded"


def test_the_verdict_is_of_the_last_step_and_says_since_when(audited, tmp_path):
    healthy = make_rollouts(steps=range(1, 4), tasks=6, members=8)
    collapsed = make_rollouts(steps=range(4, 9), tasks=6, members=8, grounded=False)
    rows = [verl_row(one) for one in (*healthy, *collapsed)]
    record = audited(write_jsonl(tmp_path / "log.jsonl", rows))
    assert [one.regime for one in record.steps[:3]] == ["diverse_grounded"] * 3
    assert (record.regime, record.regime_since) == ("template_collapse", 4)
    assert ("template_collapse", 4) in [(one.name, one.since_step) for one in record.failures]


def test_half_of_the_prompts_lost_from_step_seven_on_is_told_with_its_prompts(audited, tmp_path):
    healthy = make_rollouts(steps=range(1, 7), tasks=6, members=8)
    later = make_rollouts(steps=range(7, 13), tasks=6, members=8)
    lost = make_rollouts(steps=range(7, 13), tasks=6, members=8, grounded=False)
    mixed = [b if b.task < 3 else a for a, b in zip(later, lost, strict=True)]
    rows = [verl_row(one) for one in (*healthy, *mixed)]
    kept: list[ScoreRecord] = []
    record = audited(write_jsonl(tmp_path / "log.jsonl", rows), keep_scores=kept.append)
    assert (record.regime, record.regime_since) == ("partial", 7)
    for one in kept:
        write_scores(tmp_path, one)
    named = judge(as_run(record, tmp_path)).prompts
    assert {one.text.partition("Board ")[2][0] for one in named} == {"0", "1", "2"}


def test_a_log_says_when_its_reasoning_lost_the_prompt(audited, tmp_path):
    healthy = make_rollouts(steps=range(1, 9), tasks=6, members=8)
    collapsed = make_rollouts(steps=range(9, 14), tasks=6, members=8, grounded=False)
    rows = [verl_row(one) for one in (*healthy, *collapsed)]
    record = audited(write_jsonl(tmp_path / "log.jsonl", rows))
    (lost,) = [one for one in record.failures if one.name == "grounding_lost"]
    assert (lost.since_step, lost.severity) == (9, "severe")
    assert lost.text.startswith("Grounding is being lost: mutual information fell to ")
    assert lost.text.endswith("; the early warning comes at step 10")
    assert [one.metrics["warning/level"] for one in record.steps] == [0.0] * 9 + [1.0] * 4
    assert record.steps[8].metrics["warning/statistic"] > 0.0


def test_a_loss_that_the_log_recovers_from_is_told_as_past(audited, tmp_path):
    parts = [(range(1, 9), True), (range(9, 12), False), (range(12, 20), True)]
    rollouts = [
        one
        for steps, grounded in parts
        for one in make_rollouts(steps=steps, tasks=6, members=8, grounded=grounded)
    ]
    record = audited(write_jsonl(tmp_path / "log.jsonl", [verl_row(one) for one in rollouts]))
    (lost,) = [one for one in record.failures if one.name == "grounding_lost"]
    assert (lost.since_step, lost.severity) == (9, "warning")
    assert "; it is back at step 1" in lost.text


def test_a_log_that_was_never_grounded_is_told_apart_from_one_that_lost_it(audited, tmp_path):
    rollouts = make_rollouts(steps=range(1, 12), tasks=6, members=8, grounded=False)
    record = audited(write_jsonl(tmp_path / "log.jsonl", [verl_row(one) for one in rollouts]))
    found = [one for one in record.failures if one.name in {"grounding_lost", "never_grounded"}]
    assert [(one.name, one.since_step) for one in found] == [("never_grounded", 1)]
    assert all(one.metrics["warning/level"] == 0.0 for one in record.steps)


def test_reward_numbers_are_those_of_the_groups(audited, tmp_path):
    rollouts = make_rollouts(steps=[1])
    rewards = np.random.default_rng(0).normal(size=len(rollouts)).round(3)
    rows = [verl_row(one) | {"score": float(r)} for one, r in zip(rollouts, rewards, strict=True)]
    record = audited(write_jsonl(tmp_path / "log.jsonl", rows))
    expected = reward_spread([rewards[task * 6 : task * 6 + 6] for task in range(4)])
    found = record.steps[0].metrics
    assert {n: found[f"reward/{n}"] for n in expected} == pytest.approx(expected)
    assert found["triage/live"] == 1.0


def test_prompts_whose_reward_sees_no_difference_are_shown(audited, tmp_path):
    rows = [own_row(one) for one in make_rollouts(steps=[1])]
    for row in rows:
        if row["seed"] == 0:
            row |= {"reward": 0.5, "solved": row["luck"] % 2 == 0}
    record = audited(write_jsonl(tmp_path / "log.jsonl", rows))
    assert record.steps[0].metrics["triage/reward_blind"] == 0.25
    assert record.steps[0].metrics["reward/dead_ratio"] == 0.25
    (blind,) = record.blind_prompts
    assert (blind.step, blind.reason) == (1, "3 of 6 solved it, yet all were paid 0.5")


def test_a_log_without_rewards_says_so(audited, tmp_path):
    rows = [{"prompt": one.user, "response": one.reply} for one in make_rollouts(steps=[1])]
    rows[0]["reward"] = "none"
    record = audited(write_jsonl(tmp_path / "log.jsonl", rows))
    assert record.steps[0].absent["reward"] == "the log holds no usable rewards"
    assert "reward/mean" not in record.steps[0].metrics
    assert f"{FIRST}mi_estimate" in record.steps[0].metrics


def test_without_a_model_entropies_are_absent_with_the_reason(audited, tmp_path):
    rows = [verl_row(one) for one in make_rollouts()]
    step = audited(write_jsonl(tmp_path / "log.jsonl", rows)).steps[0]
    assert f"{FIRST}reasoning_entropy" not in step.metrics
    assert not {n for n in step.metrics if "logprob" in n}
    assert step.absent[f"{FIRST}reasoning_entropy"].startswith("needs --model")


def test_too_few_reasonings_are_undecided_or_absent_never_made_up(audited, tmp_path):
    rows = [verl_row(one) for one in make_rollouts(steps=[1], tasks=2, members=2)]
    for row in rows:
        row["output"] = "<think>hmm</think>"
    record = audited(write_jsonl(tmp_path / "log.jsonl", rows))
    assert record.regime is None
    assert record.steps[0].absent["collapse/first_turn"] == (
        "no reasoning trace uses a word that tells the prompts apart; without --model this needs at "
        "least 3 reasoning traces per prompt"
    )
    verdict = judge(as_run(record, tmp_path))
    assert verdict.word == UNDECIDED
    assert verdict.text.endswith(
        "Reasoning was not compared across prompts: no reasoning trace uses a word that tells the prompts "
        "apart; without --model this needs at least 3 reasoning traces per prompt."
    )
    rows = [verl_row(one) for one in make_rollouts(steps=[1], tasks=2, members=3)]
    assert audited(write_jsonl(tmp_path / "log.jsonl", rows)).regime == "undecided"


@pytest.mark.parametrize("replies", [1, 2])
def test_few_replies_that_quote_their_prompt_are_grounded_and_others_are_no_collapse(
    audited, tmp_path, replies
):
    for grounded, regime in ((True, "diverse_grounded"), (False, "undecided")):
        made = make_rollouts(steps=[1], tasks=6, members=replies, grounded=grounded)
        path = write_jsonl(tmp_path / f"{regime}.jsonl", [verl_row(one) for one in made])
        step = audited(path).steps[0]
        assert step.regime == regime
        assert step.metrics[f"{FIRST}fitted_traces"] == 0.0
    assert step.note.endswith("log at least 6 per prompt, or pass --model")


def test_a_long_reasoning_is_cut_and_counted(audited, tmp_path):
    rows = [verl_row(one) for one in make_rollouts()]
    rows[0]["output"] = f"<think>{'word ' * 4000}</think>"
    record = audited(write_jsonl(tmp_path / "log.jsonl", rows))
    assert record.notes == ["1 reasoning traces were cut after 8192 characters"]


def test_reasoning_in_chinese_that_shrinks_is_seen(audited, tmp_path):
    """It has no spaces: counted by them, every trace would be one word."""
    rows = []
    for one in make_rollouts(steps=range(1, 25)):
        text = "我看着地图然后慢慢地走向目标所在的地方" * (25 - one.step)
        rows.append(verl_row(one) | {"output": f"<think>{text}</think>"})
    record = audited(write_jsonl(tmp_path / "log.jsonl", rows))
    assert record.steps[-1].metrics["rollout/reasoning_words"] == 19.0
    assert "reasoning_shrinkage" in [one.name for one in record.failures]


def test_steps_that_were_left_out_are_told(audited, tmp_path):
    rows = [verl_row(one) for one in make_rollouts(steps=range(1, 8))]
    record = audited(write_jsonl(tmp_path / "log.jsonl", rows), limits=SampleLimits(steps=3))
    assert [one.step for one in record.steps] == [1, 3, 7]
    assert record.notes == ["3 of 7 steps are measured; raise --max-steps for more"]


def test_later_turns_are_measured_when_asked_for(audited, tmp_path):
    rows = []
    for one in make_rollouts(tasks=6, members=8):
        row = own_row(one)
        other = " ".join(np.random.default_rng(one.member).choice(FILLER, 5))
        second = {"text": f"{other}</think><answer>Up</answer>", "reasoning": other}
        rows.append(row | {"turns": [row["turns"][0] | {"observation": "moved"}, second]})
    path = write_jsonl(tmp_path / "log.jsonl", rows)
    step = audited(path, limits=SampleLimits(turns=3)).steps[0]
    assert step.metrics[f"{FIRST}retrieval_p_value"] <= 0.01
    assert step.metrics["collapse/turn_2/retrieval_p_value"] > 0.01
    assert "collapse/turn_3" in step.absent
    assert "collapse/turn_2/num_traces" not in audited(path).steps[0].metrics


def test_every_number_of_the_file_is_finite(audited, tmp_path):
    rows = [verl_row(one) | {"score": float("nan")} for one in make_rollouts()]
    record = audited(write_jsonl(tmp_path / "log.jsonl", rows))
    assert "NaN" not in record.model_dump_json()
    assert json.loads(record.model_dump_json())["steps"][0]["absent"]["reward"]


def test_the_verdict_on_a_log_without_steps_names_none(audited, tmp_path):
    rows = [
        {"prompt": one.user, "response": one.reply} for one in make_rollouts(steps=[1], members=8)
    ]
    verdict = judge(as_run(audited(write_jsonl(tmp_path / "log.jsonl", rows)), tmp_path))
    assert verdict.word == "Healthy"
    assert not [line for line in verdict.evidence if "since step" in line.head + line.text]


def test_the_verdict_tells_since_when_why_and_against_what(audited, tmp_path):
    rows = [verl_row(one) for one in make_rollouts(tasks=6, members=8)]
    record = audited(write_jsonl(tmp_path / "log.jsonl", rows))
    verdict = judge(as_run(record, tmp_path))
    assert (verdict.word, verdict.tone) == ("Healthy", "good")
    assert "100% of reasoning traces are about their prompt." in verdict.text
    assert verdict.certainty.startswith("95% interval 9")
    assert "from 48 traces of 2 steps" in verdict.certainty


def test_the_kept_matrices_are_those_that_the_numbers_rest_on(audited, tmp_path):
    rollouts = make_rollouts(tasks=4, members=8)
    path = write_jsonl(tmp_path / "log.jsonl", [verl_row(one) for one in rollouts])
    kept: list[ScoreRecord] = []
    record = audited(path, keep_scores=kept.append)
    assert [one.step for one in kept] == [one.step for one in record.steps]
    (scope,) = kept[0].scopes
    best = [row.index(max(row)) for row in scope.logp]
    hits = np.mean([a == b for a, b in zip(best, scope.owner, strict=True)])
    assert hits == record.steps[0].metrics[f"{FIRST}retrieval_accuracy"]
    places = {one.user: one.action.lower() for one in rollouts}
    for reasoning, owner in zip(scope.reasonings, scope.owner, strict=True):
        board = next(user for user in places if user in scope.prompts[owner])
        assert reasoning.endswith(places[board]), "a grounded reasoning names its own board's place"


def test_notes_say_how_far_scores_are_from_the_runs_own(audited, tmp_path):
    policy = ScriptedPolicy(lambda prompt, rng: "")
    rows = [verl_row(one) for one in make_rollouts(steps=[1], tasks=2, members=3)]
    path = write_jsonl(tmp_path / "log.jsonl", rows)
    told = audited(path, likelihood=PolicyLikelihood(policy, "bytes", 0.7)).notes
    again = (
        "6 of 6 reasoning traces were tokenised again, because the log holds no token ids: scores are "
        "the run's own where it sampled the usual tokens of these texts, at temperature 0.7"
    )
    assert told == [again]
    for row in rows:  # as after another template than ChatML
        row["input"] = row["input"].replace("user\n", "user:")
    path = write_jsonl(tmp_path / "log.jsonl", rows)
    told = audited(path, likelihood=PolicyLikelihood(policy, "bytes", 0.7)).notes
    assert told[0] == again
    assert told[1].startswith("verl's prompts lack their special tokens: where a template other")
    assert audited(path).notes == []
