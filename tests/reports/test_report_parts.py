"""The parts of the page's data: metrics, charts, events, plane, flow, reward, probes, about."""

from __future__ import annotations

import pytest
from report_runs import FIRST, audit_record, make_run, probe_record, run_of

from ragen2.reports.data.about import (
    absent_of,
    events_of,
    facts_of,
    settings_of,
    state_of,
    timings_of,
    versions_of,
)
from ragen2.reports.data.charts import COLOURS, charts_of, describe, read_page, scope_label
from ragen2.reports.data.flow import flow_of
from ragen2.reports.data.numbers import short, spread_over
from ragen2.reports.data.probes import probes_of
from ragen2.reports.data.report import metrics_of, plane_of
from ragen2.reports.data.rewards import FROM_ROLLOUTS, reward_of
from ragen2.reports.load import as_run, load
from ragen2.runs.checkpoints import checkpoint_folder
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory, record_session


def test_numbers_are_short_and_finite():
    assert short(1 / 3) == 0.333333
    assert short(123456789.0) == 123457000.0
    assert [short(value) for value in (float("nan"), float("inf"), None)] == [None] * 3


@pytest.mark.parametrize(("count", "most"), [(5, 9), (9, 9), (100, 9), (10, 2), (3, 1)])
def test_a_spread_has_both_ends_and_no_more_than_allowed(count, most):
    found = spread_over(range(count), most)
    assert len(found) == min(count, most) == len(set(found))
    assert found[-1] == count - 1
    assert found == sorted(found)
    assert most == 1 or found[0] == 0


def test_a_metric_has_a_value_a_step_and_its_interval_where_it_was_given():
    first = StepRecord(step=0, metrics={"eval/success": 0.5})
    second = StepRecord(
        step=4, metrics={"eval/success": 0.75, "eval/success_low": 0.6, "eval/success_high": 0.9}
    )
    found = metrics_of(run_of(first, StepRecord(step=2, metrics={"a_low": 3.0}), second))
    assert found["eval/success"]["values"] == [0.5, None, 0.75]
    assert found["eval/success"]["low"] == [None, None, 0.6]
    assert found["eval/success"]["high"] == [None, None, 0.9]
    assert found["eval/success"]["unit"] == "share of tasks"
    assert found["a_low"]["values"] == [None, 3.0, None], "a metric may be called so itself"
    assert "eval/success_low" not in found


def test_metrics_are_described_by_their_families():
    assert describe("collapse/turn_12/mi_estimate") == describe("collapse/probe/mi_estimate")
    assert describe("collapse/turn_12/mi_estimate")[0].startswith("nats ")
    assert describe("flow/turn_2/input_action")[0].startswith("nats ")
    assert describe("probe/bucket_3/snr")[1].startswith("squared length")
    assert describe("reward/frozen_lake/variance") == describe("reward/variance")
    assert describe("update/grad_norm")[0] == "", "none is no unit"
    assert describe("mine/own") == ("", "")


def test_a_table_row_is_read_as_plain_text():
    row = "| `a/b` ± | nats | 0 to 1 | H(Z\\|X) of `x`, [see](y.md#z) |\n"
    assert read_page(row) == [["a/b", "nats", "H(Z|X) of x, see"]]


def test_charts_come_with_their_guides_and_without_what_was_not_measured(tmp_path):
    run = load(make_run(tmp_path / "run"))
    found = {chart.id: chart for chart in charts_of(run)}
    assert found["retrieval"].guides[0].metric == f"{FIRST}retrieval_chance"
    assert found["information"].guides[0].metric == f"{FIRST}mi_bound"
    assert "kl" not in found
    assert "tokens" not in found
    assert charts_of(run_of()) == []


def test_turn_positions_share_a_chart_and_are_thinned_out_to_what_can_be_told_apart():
    names = {f"collapse/turn_{k}/retrieval_accuracy": 0.5 for k in range(2, 20)}
    run = run_of(StepRecord(step=1, metrics=names | {f"{FIRST}retrieval_accuracy": 0.5}))
    chart = next(one for one in charts_of(run) if one.id == "retrieval_accuracy_turns")
    assert len(chart.series) == COLOURS
    assert (chart.series[0].name, chart.series[-1].name) == ("turn 1", "turn 19")
    assert [scope_label(one) for one in ("turn_3", "trajectory", "probe", "first_turn")] == [
        "turn 3",
        "all turns",
        "probe set",
        "first turn",
    ]


def test_events_are_read_off_notes_sessions_and_checkpoints(tmp_path):
    path = tmp_path / "run"
    run = RunDirectory.create(path, "steps = 9")
    notes = {
        1: "",
        2: "no update: no prompt has reward variance",
        3: "early warning: MI fell; the last healthy checkpoint, of step 1, is kept",
        4: "no update: no kept prompt has a sampled token; curriculum: level 0 of 2; early warning cleared",
        5: "something else; with a second half",
        6: "the run ends here: the filter kept no prompt for 5 steps in a row",
    }
    for step, note in notes.items():
        kept = 0.0 if step == 2 else 1.0
        run.append(
            StepRecord(
                step=step,
                metrics={"filter/kept": kept},
                note=note,
                regime="diverse_grounded" if step < 5 else "template_collapse",
            )
        )
    checkpoint_folder(path, 4).mkdir(parents=True)
    record_session(path, 0)
    record_session(path, 4)
    found = [(event.step, event.kind) for event in events_of(load(path))]
    assert found == [
        (2, "filter_empty"),
        (3, "warning"),
        (4, "note"),
        (4, "note"),
        (4, "warning"),
        (4, "resume"),
        (4, "checkpoint"),
        (5, "note"),
        (5, "regime"),
        (6, "early_stop"),
    ]
    texts = [event.text for event in events_of(load(path))]
    assert texts[1] == notes[3]
    assert "diverse grounded to template collapse" in texts


def test_the_plane_has_the_points_that_measured_both(tmp_path):
    run = load(make_run(tmp_path / "run", steps=2))
    plane = plane_of(run)
    assert plane is not None
    assert [point["step"] for point in plane["points"]] == [1, 2]
    last = run.records[-1].metrics
    assert plane["points"][-1]["x"] == short(last[f"{FIRST}conditional_entropy"])
    assert plane["points"][-1]["y"] == short(last[f"{FIRST}mi_estimate"])
    assert plane["bound"] == 1.38629
    assert plane_of(run_of(StepRecord(step=0, metrics={}))) is None


def test_the_plane_of_an_audit_by_wording_is_that_of_whole_reasonings(tmp_path):
    record = audit_record()
    steps = [
        one.model_copy(
            update={
                "metrics": {
                    name: value
                    for name, value in one.metrics.items()
                    if not name.startswith(f"{FIRST}conditional_entropy")
                }
                | {f"{FIRST}conditional_entropy_seq": 1.5}
            }
        )
        for one in record.steps
    ]
    plane = plane_of(as_run(record.model_copy(update={"steps": steps}), tmp_path))
    assert plane is not None
    assert plane["y_metric"] == f"{FIRST}mi_seq_estimate"
    assert plane["x_unit"] == plane["y_unit"] == "nats per trace"


def test_links_are_seen_when_positive_and_significant():
    metrics = {
        f"{FIRST}retrieval_above_chance": 0.5,
        f"{FIRST}retrieval_p_value": 0.005,
        "flow/first_turn/reasoning_action_swap_seq": -0.1,
        "flow/first_turn/reasoning_action_swap_p_value": 0.005,
        "flow/first_turn/input_action": 0.4,
        "flow/first_turn/input_action_p_value": 0.2,
        "flow/turn_2/input_action": 0.4,
        "flow/turn_2/input_action_p_value": 0.002,
    }
    first, second = flow_of(run_of(StepRecord(step=3, metrics=metrics)))
    assert (first["turn"], second["turn"], second["step"]) == (1, 2, 3)
    seen = {(link["from"], link["to"], link["metric"]): link["seen"] for link in first["links"]}
    assert list(seen.values()) == [True, False, None, False]
    assert second["links"][-1]["seen"] is True
    assert second["links"][0]["value"] is None


def test_reward_has_each_prompts_signal_and_what_the_filter_kept(tmp_path, group_of):
    path = make_run(tmp_path / "run", steps=2)
    RunDirectory(path).save_rollouts(
        2, [group_of([0.0, 1.0], seed=7), group_of([0.0, 0.0], seed=8)]
    )
    found = reward_of(load(path))
    assert found is not None
    assert found["signal"] == "reward variance"
    assert found["steps"][-1] == {
        "step": 2,
        "scores": [0.25, 0.0],
        "kept": [True, False],
        "seeds": [7, 8],
        "labels": ["live", "too_hard"],
    }
    assert found["steps"][0]["labels"] == []
    (example,) = found["triage"]
    assert (example["label"], example["name"]) == ("too_hard", "FrozenLake seed 8")
    assert example["examples"] == ["member 0: Up -> 0, not solved"]
    assert found["note"] == FROM_ROLLOUTS


def test_an_audit_and_a_run_without_prompts_have_no_reward_part(tmp_path):
    assert reward_of(as_run(audit_record(), tmp_path)) is None
    assert reward_of(run_of(StepRecord(step=0, metrics={}))) is None


def test_probes_of_steps_and_of_the_verb_stand_in_order(tmp_path):
    path = make_run(tmp_path / "run", steps=2)
    run = RunDirectory(path)
    run.append(StepRecord(step=9, metrics=probe_record().report.metrics()))
    folder = path / "probe" / "step_000006"
    folder.mkdir(parents=True)
    (folder / "probe.json").write_text(probe_record().model_dump_json())
    verb, online = probes_of(load(path))
    assert (verb["step"], online["step"]) == (6, 9)
    assert [one["name"] for one in online["buckets"]] == [
        "bucket_1",
        "bucket_2",
        "bucket_3",
        "all",
    ]
    for mine, theirs in zip(verb["buckets"], online["buckets"], strict=True):
        assert mine["norms"] == theirs["norms"]
        assert (mine["variance"], mine["prompts"]) == (theirs["variance"], theirs["prompts"])
        assert mine["cosines"] == theirs["cosines"] == {"task_kl": -0.25}
    assert len(verb["prompts"]) == 4
    assert verb["text"] == online["text"]


def test_ten_buckets_are_put_in_the_order_of_their_numbers():
    metrics = {f"probe/bucket_{i}/task_norm": float(i) for i in range(1, 12)}
    (probe,) = probes_of(run_of(StepRecord(step=1, metrics=metrics)))
    assert [one["norms"]["task"] for one in probe["buckets"]] == list(range(1, 12))


def test_a_run_is_empty_unfinished_or_finished():
    steps = {"steps": 5}
    assert state_of(run_of(settings=steps)) == "empty"
    assert state_of(run_of(StepRecord(step=3, metrics={}), settings=steps)) == "unfinished"
    assert state_of(run_of(StepRecord(step=5, metrics={}), settings=steps)) == "finished"
    stopped = StepRecord(step=3, metrics={}, note="the run ends here: nothing kept")
    assert state_of(run_of(stopped, settings=steps)) == "finished"


def test_settings_are_sections_of_text_and_lists_of_tables_are_numbered():
    settings = {
        "seed": 3,
        "plugins": [],
        "env": {"kind": "Sokoban", "size": 6},
        "diagnostics": [{"kind": "reward"}, {"kind": "collapse", "scopes": ["turns"]}],
    }
    assert settings_of(run_of(settings=settings)) == [
        ["run", [["seed", "3"], ["plugins", "[]"]]],
        ["env: Sokoban", [["kind", "Sokoban"], ["size", "6"]]],
        ["diagnostics 1: reward", [["kind", "reward"]]],
        ["diagnostics 2: collapse", [["kind", "collapse"], ["scopes", '["turns"]']]],
    ]


def test_seconds_stand_beside_their_steps_without_their_sum(tmp_path):
    found = timings_of(load(make_run(tmp_path / "run", steps=1)))
    assert found == {"evaluate": [1.0, None], "rollout": [None, 2.0], "update": [None, 1.0]}


def test_reasons_for_what_is_absent_are_told_once_with_their_steps():
    records = [StepRecord(step=n, metrics={}, absent={"a": "why"}) for n in (1, 2, 5)]
    one = StepRecord(step=7, metrics={}, absent={"b": "else"})
    assert absent_of(run_of(*records, one)) == [
        ["a", "why (3 steps, 1 to 5)"],
        ["b", "else (step 7)"],
    ]


def test_facts_and_versions_are_those_of_the_run(tmp_path):
    path = make_run(tmp_path / "run")
    record_session(path, 0)
    run = load(path)
    facts = dict(facts_of(run))
    assert facts["environment"] == "FrozenLake"
    assert facts["steps"] == "3 of 3"
    assert "ragen2" in dict(versions_of(run))
    assert all(name.endswith("(of this page)") for name, _ in versions_of(run_of()))
