"""A TRL run leaves a run directory that the rest of ragen2 reads, and goes on exactly after a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jobs
import numpy as np
import pytest
from datasets import Dataset
from typer.testing import CliRunner

from ragen2.cli.app import app
from ragen2.config import Stops, WarningSettings
from ragen2.diagnostics import Reward, Surface, measure
from ragen2.errors import ConfigError, RunError
from ragen2.filtering import TopP
from ragen2.integrations.trl import SNRGRPOTrainer, SNRSettings
from ragen2.integrations.trl.run_log import STATE, RunLog
from ragen2.reports.data.matrices import matrices_of
from ragen2.reports.load import load_run_directory
from ragen2.reports.page import write_report
from ragen2.runs.scores import list_scores, read_scores
from ragen2.runs.store import RunDirectory
from ragen2.runs.trajectories import groups_of
from ragen2.trainer.state import AlarmState

REWARDS = jobs.paid({number: [0, 1, 1, 0] if number % 2 else [1, 1, 1, 1] for number in range(16)})
MODEL_METRICS = (
    "mi_estimate",
    "mi_seq_estimate",
    "mi_zscore",
    "mi_zscore_ema",
    "mi_zscore_ema_seq",
    "retrieval_accuracy",
    "retrieval_accuracy@2",
    "conditional_entropy",
    "reasoning_entropy_seq",
)


def job(folder: Path, **changes: Any) -> Any:
    """Four prompts of four rows per step, the tasks going on from step to step."""
    settings = {"per_device_train_batch_size": 16, "max_steps": 4, "snr": SNRSettings()}
    return jobs.run(SNRGRPOTrainer, folder, jobs.tasks(*range(16)), REWARDS, **(settings | changes))


def records(folder: Path) -> list[Any]:
    return RunDirectory.open(folder / "out" / "ragen2").records()


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    """A run whose weights stay as they are, and its model as a folder."""
    folder = tmp_path_factory.mktemp("run")
    model = jobs.moved_model(folder)
    model.save_pretrained(folder / "moved")
    jobs.tokenizer().save_pretrained(folder / "moved")
    job(folder, model=model, log_completions=True, num_completions_to_print=0)
    return folder


def audited(done: Path, log: str) -> list[dict[str, Any]]:
    out = done / f"audit_{Path(log).name}"
    flags = ["--max-prompts", "8", "--max-traces", "8", "--out", str(out)]
    result = CliRunner().invoke(
        app,
        ["audit", str(done / log), "--model", str(done / "moved"), *flags],
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    return json.loads((out / "audit.json").read_text())["steps"]


@pytest.mark.parametrize("log", ["out/ragen2", "out/completions"])
def test_what_is_logged_is_what_audit_finds_in_the_same_completions(done, log):
    """In our run directory and in TRL's own tables, step by step, moving averages included."""
    found = audited(done, log)
    logged = records(done)
    assert [one["step"] for one in found] == [one.step for one in logged] == [1, 2, 3, 4]
    for one, other in zip(found, logged, strict=True):
        for name in MODEL_METRICS:
            metric = f"collapse/first_turn/{name}"
            assert one["metrics"][metric] == pytest.approx(other.metrics[metric], abs=1e-5), name
        assert one["metrics"]["reward/variance"] == other.metrics["reward/variance"]
    ema = [one.metrics["collapse/first_turn/mi_zscore_ema"] for one in logged]
    plain = [one.metrics["collapse/first_turn/mi_zscore"] for one in logged]
    assert ema[0] == plain[0]
    assert ema[2] != plain[2]


def paid_by_length(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(str(one)) % 2) for one in completions]


@pytest.mark.parametrize("is_chat", [False, True], ids=["text", "chat"])
def test_what_was_scored_whole_is_found_again_in_the_run_directory(tmp_path, is_chat):
    """The model samples by itself, not at temperature 1, and all that it writes is scored."""
    model = jobs.moved_model(tmp_path)
    model.save_pretrained(tmp_path / "moved")
    jobs.tokenizer().save_pretrained(tmp_path / "moved")
    prompts = [jobs.prompt(number) for number in range(4)]
    data = {"prompt": prompts if is_chat else [one[0]["content"] for one in prompts]}
    jobs.run(
        SNRGRPOTrainer,
        tmp_path,
        Dataset.from_dict(data),
        paid_by_length,
        model=model,
        rollout_func=None,
        temperature=0.7,
        max_completion_length=12,
        per_device_train_batch_size=16,
        snr=SNRSettings(reasoning="all"),
    )
    (record,), (found,) = records(tmp_path), audited(tmp_path, "out/ragen2")
    for name in MODEL_METRICS:
        metric = f"collapse/first_turn/{name}"
        assert found["metrics"][metric] == pytest.approx(record.metrics[metric], abs=1e-6), name


def test_trl_logs_the_same_numbers(done):
    logged = json.loads((done / "out" / "ragen2" / "steps.jsonl").read_text().splitlines()[1])
    assert logged["metrics"]["filter/kept_ratio"] == 0.5
    assert logged["kept"] == [False, True, False, True]
    assert logged["scores"] == pytest.approx([0.0, 1 / 3, 0.0, 1 / 3])
    assert {"update/loss", "update/grad_norm", "update/kl", "filter/entropy_before"} <= set(
        logged["metrics"]
    )


def test_what_trl_does_not_know_is_absent_and_not_made_up(done):
    (first, *_) = records(done)
    assert "rollout/success" not in first.metrics
    assert "success_reward" in first.absent["rollout/success"]
    assert "rollout/env_errors" not in first.metrics
    lines = (done / "out" / "ragen2" / "rollouts" / "step_000001.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 16
    assert {row["solved"] for row in rows} == {None}
    assert rows[1]["reward"] == 1.0
    groups = groups_of(lines)
    assert [len(group.trajectories) for group in groups] == [4] * 4
    turn = groups[0].trajectories[2].turns[0]
    assert turn.completion.text == jobs.text(0, 2).removeprefix("<think>")
    assert turn.reply.reasoning == jobs.text(0, 2)[len("<think>") :].partition("</think>")[0]


def test_a_success_reward_makes_success_known(tmp_path):
    job(tmp_path, max_steps=1, snr=SNRSettings(success_reward=1.0, diagnostics=(Surface(),)))
    (record,) = records(tmp_path)
    assert record.metrics["rollout/success"] == 0.75
    assert record.metrics["filter/kept_ratio_always_solved"] == 0.0
    assert record.metrics["filter/kept_ratio_sometimes_solved"] == 1.0


def test_a_report_can_be_made_of_the_run(done):
    run = load_run_directory(done / "out" / "ragen2")
    assert run.settings["engine"] == "trl"
    assert run.settings["filter"]["kind"] == "top_p"
    assert run.series("collapse/first_turn/retrieval_accuracy").steps == (1, 2, 3, 4)
    page = write_report([run.path], done / "report.html")
    assert "retrieval" in page.read_text()


def test_score_matrices_are_saved_and_the_report_shows_them(done):
    run = load_run_directory(done / "out" / "ragen2")
    files = list_scores(run.path)
    assert [step for step, _ in files] == [1, 2, 3, 4]
    for (_, path), record in zip(files, records(done), strict=True):
        (scope,) = read_scores(path).scopes
        logp_NP = np.array(scope.logp, dtype=np.float64)
        found = measure(logp_NP, scope.length, scope.owner, resamples=100)
        for name in ("mi_estimate", "retrieval_accuracy", "num_traces"):
            recorded = record.metrics[f"collapse/{scope.name}/{name}"]
            assert found[name] == pytest.approx(recorded, abs=1e-3), name
    entries, blocks, _ = matrices_of(run, "one")
    assert len(entries) == 4
    page = write_report([run.path], done / "matrices.html").read_text()
    assert all(name.partition("-")[2] in page for name in blocks)


EMPTY = jobs.paid({number: [1, 1, 1, 1] for number in range(16)})


def test_an_early_stop_ends_training_after_the_step_that_follows(tmp_path):
    stops = Stops(empty_steps=2, variance_steps=0, success_evaluations=0)
    trainer = jobs.run(
        SNRGRPOTrainer,
        tmp_path,
        jobs.tasks(*range(16)),
        EMPTY,
        per_device_train_batch_size=16,
        max_steps=6,
        snr=SNRSettings(diagnostics=(), stops=stops),
    )
    found = records(tmp_path)
    assert trainer.state.global_step == 3
    assert [one.step for one in found] == [1, 2, 3]
    reason = "the run ends here: the filter kept no prompt for 2 steps in a row"
    assert [reason in one.note for one in found] == [False, True, False]
    settings = load_run_directory(tmp_path / "out" / "ragen2").settings
    assert settings["stops"]["empty_steps"] == 2


def test_without_rules_no_early_stop_ends_training(tmp_path):
    """TRL's own arguments say when a run ends, though the filter keeps nothing for six steps."""
    trainer = jobs.run(
        SNRGRPOTrainer,
        tmp_path,
        jobs.tasks(*range(16)),
        EMPTY,
        per_device_train_batch_size=16,
        max_steps=6,
        snr=SNRSettings(diagnostics=()),
    )
    assert trainer.state.global_step == 6
    assert "stops" not in load_run_directory(tmp_path / "out" / "ragen2").settings


def test_a_state_of_the_form_before_is_read(tmp_path):
    """It had the warning and its baseline at the top, and knew of no early stops."""
    checkpoint = tmp_path / "checkpoint-7"
    checkpoint.mkdir()
    old = {
        "step": 7,
        "ema": {"first_turn": {"std": 0.5, "std_seq": 2.0}},
        "baseline": {"mi_estimate": 0.25, "retrieval_accuracy": 0.5},
        "warning": {"statistic": 1.5, "is_raised": False},
        "regime": "diverse",
    }
    (checkpoint / STATE).write_text(json.dumps(old))
    log = RunLog(SNRSettings(), tmp_path / "run", {"engine": "trl"}, seed=0, temperature=1.0)
    assert log.resume(checkpoint)
    state = log.state
    assert (state.step, state.regime) == (7, "diverse")
    assert state.ema["first_turn"].std == 0.5
    assert state.watch == AlarmState()
    log.save(checkpoint, 7)
    assert log.resume(checkpoint)
    assert log.state == state


def test_a_state_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / STATE).write_text('{"step": "many"}')
    log = RunLog(SNRSettings(), tmp_path / "run", {"engine": "trl"}, seed=0, temperature=1.0)
    with pytest.raises(
        RunError, match=r"ragen2_state.json cannot be read: .*; resume from another"
    ):
        log.resume(tmp_path)


def test_a_resumed_run_keeps_its_averages(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    steps = {
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "save_strategy": "steps",
        "save_steps": 2,
    }
    job(whole, **steps)
    job(parts, **(steps | {"max_steps": 3}))
    state = json.loads((parts / "out" / "checkpoint-2" / "ragen2_state.json").read_text())
    assert state["step"] == 2
    assert state["ema"]["first_turn"]["std"] > 0.0
    job(parts, **steps, resume=str(parts / "out" / "checkpoint-2"))
    assert [one.step for one in records(parts)] == [1, 2, 3, 4]
    for one, other in zip(records(whole), records(parts), strict=True):
        assert one.metrics == pytest.approx(other.metrics, rel=1e-4, abs=1e-6)
        assert one.regime == other.regime


def test_a_run_directory_is_not_written_over(tmp_path):
    job(tmp_path, max_steps=1, snr=SNRSettings(diagnostics=()))
    with pytest.raises(RunError, match="is not empty; give another with SNRSettings"):
        job(tmp_path, max_steps=1, snr=SNRSettings(diagnostics=()))
    elsewhere = tmp_path / "elsewhere"
    job(tmp_path, max_steps=1, snr=SNRSettings(diagnostics=(), run_dir=elsewhere))
    assert RunDirectory.open(elsewhere).records()


def test_several_generation_batches_of_one_step_make_one_record(tmp_path):
    """Gradient accumulation of 2 over generation batches of one step each."""
    more = {"gradient_accumulation_steps": 2, "steps_per_generation": 1, "max_steps": 2}
    job(tmp_path, **more, snr=SNRSettings(filter=TopP(mass=1.0), diagnostics=(Reward(),)))
    found = records(tmp_path)
    assert [(one.step, len(one.kept), len(one.seeds)) for one in found] == [(1, 8, 8), (2, 8, 8)]
    rows = (tmp_path / "out" / "ragen2" / "rollouts" / "step_000002.jsonl").read_text().splitlines()
    assert len(rows) == 32


def test_a_batch_that_is_used_twice_is_recorded_once(tmp_path):
    job(tmp_path, num_iterations=2, max_steps=2, snr=SNRSettings(diagnostics=(Reward(),)))
    first, second = records(tmp_path)
    assert first.kept
    assert not second.kept
    assert "reward/mean" not in second.metrics
    assert "update/loss" in second.metrics


def test_groups_of_different_prompts_are_refused(tmp_path):
    class Wandering(jobs.Scripted):
        """Each row plays a task of its own, as an environment that chooses in reset() would."""

        def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
            return super().__call__([jobs.prompt(i) for i in range(len(prompts))], trainer)

    with pytest.raises(ConfigError, match="group 0 of step 1 holds 4 different prompts in 4 rows"):
        job(tmp_path, max_steps=1, rollout_func=Wandering(jobs.tokenizer()))


def test_trls_own_filter_goes_first(tmp_path, caplog):
    """A GRPOConfig of a version that filters by reward variance itself, and is asked to."""
    import trl

    class Filtering(trl.GRPOConfig):
        reward_variance_filtering = "top_p"

    settings = jobs.arguments(tmp_path)
    settings.__class__ = Filtering
    trainer = SNRGRPOTrainer(
        model=jobs.moved_model(tmp_path),
        reward_funcs=REWARDS,
        args=settings,
        train_dataset=jobs.tasks(0, 1),
        processing_class=jobs.tokenizer(),
    )
    assert trainer.snr.filter.kind == "keep_all"
    assert "TRL filters by reward variance itself" in caplog.text


def test_mistakes_are_told_together(tmp_path):
    settings = SNRSettings(
        filter=TopP(signal="entropy", noise_replays=3),
        warning=WarningSettings(response="checkpoint"),
    )
    with pytest.raises(ConfigError) as caught:
        job(tmp_path, snr=settings, multi_objective_aggregation="normalize_then_sum")
    lines = str(caught.value).splitlines()
    assert [line.split()[0] for line in lines] == [
        "multi_objective_aggregation",
        "filter.signal",
        "filter.noise_replays",
        "warning.response",
    ]
