"""Run file -> verl's settings, tasks and tokens; none of it needs verl itself."""

from __future__ import annotations

import json
import typing
from pathlib import Path

import numpy as np
import pytest

from ragen2.backends.agent import open_tokenizer
from ragen2.config import dump_config, load_run
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.errors import ConfigError
from ragen2.integrations.verl.sampling import completion_of
from ragen2.integrations.verl.tasks import TaskDataset
from ragen2.integrations.verl.translate import VerlJob, translate
from ragen2.types import Finish

ROOT = Path(__file__).parents[2]


def job(device="cpu", **more):
    return VerlJob(Path("/runs/one"), "/models/tiny", 2048, device, **more)


def settings(*overrides, on=None):
    return translate(load_run(None, overrides), on or job())


def test_the_algorithm_is_the_run_files():
    found = settings(
        "algorithm.clip_low=0.1", "algorithm.clip_high=0.3", "algorithm.dual_clip=3.0", "seed=7"
    )
    actor = "actor_rollout_ref.actor"
    assert found["algorithm.adv_estimator"] == "grpo"
    assert found["critic.enable"] is False
    assert (found[f"{actor}.clip_ratio_low"], found[f"{actor}.clip_ratio_high"]) == (0.1, 0.3)
    assert found[f"{actor}.clip_ratio_c"] == 3.0
    assert found[f"{actor}.loss_agg_mode"] == "token-mean"
    assert found["data.train_batch_size"] == 8
    assert found["actor_rollout_ref.rollout.n"] == 16
    assert found["actor_rollout_ref.rollout.seed"] == 7


def test_without_dual_clip_no_ratio_can_reach_it():
    limit = settings()["actor_rollout_ref.actor.clip_ratio_c"]
    assert limit > np.exp(20.0)  # verl clamps log-ratios at 20


def test_dr_grpo_divides_by_its_constant():
    found = settings("algorithm.kind=dr_grpo", "algorithm.constant_length=300")
    assert found["actor_rollout_ref.actor.loss_agg_mode"] == "seq-mean-token-sum-norm"
    assert found["actor_rollout_ref.actor.loss_scale_factor"] == 300


@pytest.mark.parametrize(("where", "in_loss"), [("loss", True), ("reward", False)])
def test_kl_goes_where_the_run_file_says(where, in_loss):
    found = settings("algorithm.kl_coefficient=0.01", f"algorithm.kl_in={where}")
    assert found["actor_rollout_ref.actor.use_kl_loss"] is in_loss
    assert found["algorithm.use_kl_in_reward"] is not in_loss
    assert found["actor_rollout_ref.actor.kl_loss_coef"] == 0.01
    assert found["algorithm.kl_ctrl.kl_coef"] == 0.01


def test_ppo_has_a_critic_with_its_own_settings():
    found = settings(
        "algorithm.kind=ppo", "algorithm.critic_lr=3e-5", "algorithm.critic_warmup=2", "seed=4"
    )
    assert found["algorithm.adv_estimator"] == "gae"
    assert found["critic.enable"] is True
    assert found["critic.optim.lr"] == 3e-5
    assert found["critic.cliprange_value"] == 0.5
    assert found["critic.model.path"] == found["actor_rollout_ref.model.path"]
    # verl updates the policy from this step on: steps 1 and 2 are the critic's alone.
    assert found["trainer.critic_warmup"] == 3
    assert settings("algorithm.kind=ppo")["trainer.critic_warmup"] == 0


def test_a_critic_without_a_clip_has_one_that_is_never_reached():
    assert settings("algorithm.kind=ppo", "algorithm.value_clip=0.0")["critic.cliprange_value"] >= (
        1e9
    )


@pytest.mark.parametrize(
    ("device", "precision", "trained", "sampled"),
    [
        ("cpu", "auto", "fp32", "float32"),
        ("cuda", "auto", "bf16", "bfloat16"),
        ("cuda", "float32", "fp32", "float32"),
        ("cpu", "bfloat16", "bf16", "bfloat16"),
    ],
)
def test_all_networks_compute_in_one_precision(device, precision, trained, sampled):
    found = settings(f"model.precision={precision}", "algorithm.kind=ppo", on=job(device))
    for engine in ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config"):
        assert found[f"{engine}.mixed_precision.param_dtype"] == trained
    assert found["critic.fsdp.mixed_precision.param_dtype"] == trained
    assert found["actor_rollout_ref.rollout.dtype"] == sampled


@pytest.mark.parametrize("more", ["algorithm.kind=ppo", "algorithm.kl_in=reward"])
def test_members_cannot_be_left_out_where_credit_needs_the_workers_word_on_them(more):
    left_out = ("filter.kind=trajectory", "algorithm.kl_coefficient=0.1")
    assert settings(*left_out)
    with pytest.raises(ConfigError, match=r"filter\.kind is 'trajectory'"):
        settings(*left_out, more)


def test_a_new_job_never_goes_on_from_old_checkpoints():
    assert settings()["trainer.resume_mode"] == "disable"
    found = settings(on=job(resume_step=40))
    assert found["trainer.resume_mode"] == "resume_path"
    assert found["trainer.resume_from_path"] == "/runs/one/verl/global_step_40"


def test_verl_keeps_one_checkpoint_more_than_the_run():
    assert settings("checkpoints.keep=3")["trainer.max_actor_ckpt_to_keep"] == 4


def test_machines_and_rollout_engine():
    found = settings(on=job("cuda", nodes=2, workers=8))
    assert (found["trainer.nnodes"], found["trainer.n_gpus_per_node"]) == (2, 8)
    assert found["actor_rollout_ref.rollout.name"] == "vllm"
    assert not any(name.startswith("ray_kwargs") for name in found)
    assert settings("model.engine=plain")["actor_rollout_ref.rollout.name"] == "ragen2_hf"


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("rollout.history=current", "rollout.history"),
        ("rollout.resample_rounds=2", "rollout.resample_rounds is 2"),
        ("learner.schedule=linear", "learner.schedule"),
        ("learner.warmup_steps=5", "learner.warmup_steps"),
        ("model.lora_rank=8", "model.lora_rank is 8"),
        ("model.engine=server", 'model.engine is "server"'),
        ("model.engine_memory=8.0", "model.engine_memory is 8"),
        ("probe.every=5", "probe.every is 5"),
        ("evaluation.second_temperature=0.5", "evaluation.second_temperature is 0.5"),
        ("curriculum.mode=adaptive", "curriculum.mode is 'adaptive'"),
    ],
)
def test_what_has_no_counterpart_is_named(override, named):
    with pytest.raises(ConfigError) as caught:
        settings(override)
    assert named in str(caught.value)
    assert str(caught.value).startswith("--engine verl: ")


def test_all_that_has_no_counterpart_is_named_at_once():
    with pytest.raises(ConfigError) as caught:
        settings("probe.every=5", "rollout.resample_rounds=2")
    assert len(str(caught.value).splitlines()) == 2


def test_a_scaled_loss_is_refused_beside_terms_that_would_miss_it():
    assert settings("loss_scale=linear")
    with pytest.raises(ConfigError, match="loss_scale is 'linear'"):
        settings("loss_scale=linear", "algorithm.entropy_coefficient=0.01")


def test_rows_are_the_tasks_of_our_own_loop(tmp_path):
    run = load_run(None, ["seed=3", "rollout.prompts=4", "rollout.group_size=2", "steps=5"])
    (tmp_path / "run.toml").write_text(dump_config(run))
    rows = TaskDataset(str(tmp_path / "run.toml"))
    assert len(rows) == 20
    last_of_step_2 = rows[7]
    assert last_of_step_2["step"] == 2
    assert last_of_step_2["task"] == HELD_OUT_SEEDS + 3 * 10_000_000 + 7
    assert last_of_step_2["__rollout_n__"] == 2
    assert (
        run.env.start(last_of_step_2["task"], 0).observation
        in (last_of_step_2["raw_prompt"][1]["content"])
    )


def test_held_out_rows_are_evaluation_and_then_the_probe_set(tmp_path):
    more = ["evaluation.tasks=3", "evaluation.probe_prompts=2", "evaluation.probe_traces=5"]
    (tmp_path / "run.toml").write_text(dump_config(load_run(None, more)))
    rows = TaskDataset(str(tmp_path / "run.toml") + "#held-out")
    found = [(row["part"], row["task"], row["__rollout_n__"]) for row in rows]
    assert found == [
        ("evaluate", 0, 1),
        ("evaluate", 1, 1),
        ("evaluate", 2, 1),
        ("probe", 0, 5),
        ("probe", 1, 5),
    ]
    own = load_run(None, [*more, "evaluation.own_tasks=true", "seed=2"])
    (tmp_path / "own.toml").write_text(dump_config(own))
    rows = TaskDataset(str(tmp_path / "own.toml") + "#held-out")
    assert [row["task"] for row in rows] == [6, 7, 8, 0, 1]


@pytest.fixture(scope="module")
def tokenizer():
    return open_tokenizer("ragen2-tiny")


def test_what_came_after_the_answer_is_forgotten(tokenizer):
    ids = tokenizer.encode("<think>go</think><answer>Up</answer> and more")
    found = completion_of(ids, [-0.1 * n for n in range(len(ids))], ("</answer>",), tokenizer)
    assert found.finish is Finish.STOP
    assert "</answer>" in found.text
    assert "more" not in found.text
    without_last = tokenizer.decode(found.ids_T[:-1])
    assert "</answer>" not in without_last
    assert found.logprobs_T.tolist() == [-0.1 * n for n in range(len(found.ids_T))]


def test_an_end_of_message_and_a_cut_reply_are_told_apart(tokenizer):
    ids = tokenizer.encode("<think>go")
    (eos,) = tokenizer.eos_ids
    ended = completion_of([*ids, eos], [0.0] * (len(ids) + 1), ("</answer>",), tokenizer)
    assert ended.finish is Finish.EOS
    assert ended.ids_T[-1] == eos
    assert completion_of(ids, [0.0] * len(ids), ("</answer>",), tokenizer).finish is Finish.LENGTH


READ_BY_THE_JOB = {
    "model": {"path", "device"},
    "learner": {"max_bad_updates", "minibatches"},
    "rollout": {
        *("window", "thinking", "actions_per_turn", "format_penalty", "max_tokens", "luck"),
        *("surplus_actions", "preset"),
    },
    "algorithm": {
        *("credit_to", "turn_gamma", "overlong_buffer", "scale_by_std"),
        *("gamma", "lam", "whiten", "bi_level", "baseline"),
    },
    "evaluation": {"own_tasks", "tasks", "probe_prompts", "probe_traces"},
    "checkpoints": {"rollouts_every"},
}
"""Not settings of verl: our own code reads them, inside the job or while it is described."""
SPEED_ONLY = {
    "model": {"score_tokens"},
    "learner": {"parallel"},
    "rollout": {"env_workers", "cohorts"},
}
WITH_ANOTHER = {
    "model.lora_alpha": "model.lora_rank=4",
    "model.frozen": "model.lora_rank=4",
    "algorithm.constant_length": "algorithm.aggregation=seq_mean_token_sum_norm",
    "algorithm.kl_in": "algorithm.kl_coefficient=0.1",
    "probe.buckets": "probe.every=2",
    "probe.edges": "probe.every=2",
    **{
        f"curriculum.{name}": "curriculum.mode=adaptive"
        for name in ("success_low", "success_high", "window", "start_level")
    },
}
"""Settings that say nothing until another one does."""


def other_values(field, value):
    for part in (field.annotation, *typing.get_args(field.annotation)):
        if typing.get_origin(part) is typing.Literal:
            yield from (one for one in typing.get_args(part) if one != value)
    if bool in (field.annotation, *typing.get_args(field.annotation)):
        yield value is not True
    elif isinstance(value, int | float):
        yield from (value * 0.5, value * 0.9, value + 1, value * 2 + 3_000)
    elif isinstance(value, tuple):
        yield from ([0.0, 0.5], ["tensorboard"])
    else:
        yield "another"


def is_heard(base, path, field, value):
    """Whether another value of a setting changes what verl is told, or is refused by name."""
    with_another = WITH_ANOTHER.get(path, "")
    base = [*base, with_another] if with_another else base
    for other in other_values(field, value):
        try:
            changed = load_run(None, [*base, f"{path}={json.dumps(other)}"])
        except ConfigError:  # no legal value
            continue
        try:
            if translate(changed, job()) != translate(load_run(None, base), job()):
                return True
        except ConfigError as error:
            return (with_another.partition("=")[0] or path) in str(error)
    return False


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "dapo", "rloo", "ppo", "reinforce_plus_plus"])
def test_no_setting_is_dropped_in_silence(kind):
    base = [f"algorithm.kind={kind}"]
    config = load_run(None, base)
    parts = ["algorithm"] if kind != "grpo" else ["algorithm", "model", "learner", "rollout"]
    parts += (
        ["evaluation", "checkpoints", "probe", "logging", "curriculum"] if kind == "grpo" else []
    )
    unheard = [
        f"{part}.{name}"
        for part in parts
        for name, field in type(getattr(config, part)).model_fields.items()
        if name != "kind"
        and name not in READ_BY_THE_JOB.get(part, set()) | SPEED_ONLY.get(part, set())
        and not is_heard(base, f"{part}.{name}", field, getattr(getattr(config, part), name))
    ]
    assert unheard == []
