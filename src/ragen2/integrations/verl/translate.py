"""A run file as settings of verl: the same seeds, prompts, rewards, filter and algorithm.

Nothing here imports verl: its settings, and the environment variables that its processes start with, must be
known before.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ragen2.config import RunConfig
from ragen2.errors import ConfigError
from ragen2.integrations.verl.refusals import refuse_untranslatable

PLUGIN = "ragen2.integrations.verl.plugin"
"""Module that each process of verl loads."""
DEVICE = "RAGEN2_VERL_DEVICE"
"""Environment variable of our own jobs, ``cuda`` or ``cpu``: other jobs of verl are left as they are."""
AGENT = "ragen2"
"""Name of our trainer and our agent loop inside verl."""
HF_ROLLOUT = "ragen2_hf"
"""Name of our plain Hugging Face rollout inside verl."""
VLLM_WORKER = "ragen2.integrations.verl.vllm_worker.PackedWeights"
"""What takes new weights inside vLLM on processors."""
CHECKPOINTS = "verl"
"""Folder of verl's own checkpoints inside the run directory."""
HELD_OUT = "#held-out"
"""Follows the run file's name where the held-out tasks are meant."""
NEVER_CLIPPED = 1e9
"""A clip that nothing reaches: verl clamps log-ratios at 20, and exp(20) is below this."""
MICRO_TOKENS = {"cpu": 2_048, "cuda": 32_768}
"""Tokens in memory at once where the run file leaves the choice, as in our own learner."""


@dataclass(frozen=True, slots=True)
class VerlJob:
    """Where and on what a run is trained."""

    run: Path
    model: Path | str
    """Folder or hub id that ``from_pretrained`` opens."""
    context: int
    """Longest sequence of the model."""
    device: Literal["cpu", "cuda"]
    nodes: int = 1
    workers: int = 1
    """GPUs of each node; on a CPU, training processes."""
    joins_cluster: bool = False
    """Whether Ray runs already; otherwise the job starts its own."""
    resume_step: int = 0
    """Step whose checkpoint the job goes on from; 0 starts anew."""


def translate(config: RunConfig, job: VerlJob) -> dict[str, Any]:
    """Settings of verl by dotted name; what has no counterpart is an error that names it."""
    refuse_untranslatable(config)
    if config.model.engine == "plain" and job.device == "cuda":
        raise ConfigError(
            '--engine verl: model.engine is "plain", but the Hugging Face rollout runs on processors '
            "only; use auto, which is vLLM"
        )
    return {
        **_data(config, job),
        **_model(config, job),
        **_actor(config, job),
        **_algorithm(config),
        **_critic(config, job),
        **_rollout(config, job),
        **_trainer(config, job),
    }


def _data(config: RunConfig, job: VerlJob) -> dict[str, Any]:
    """Rows are made by ``TaskDataset`` from the run file itself, in order."""
    run_file = str(job.run / "run.toml")
    prompt = job.context // 2
    return {
        "data.train_files": run_file,
        "data.val_files": run_file + HELD_OUT,
        "data.custom_cls.path": "pkg://ragen2.integrations.verl.tasks",
        "data.custom_cls.name": "TaskDataset",
        "data.train_batch_size": config.rollout.prompts,
        "data.max_prompt_length": prompt,
        "data.max_response_length": job.context - prompt,
        "data.shuffle": False,
        "data.validation_shuffle": False,
        "data.dataloader_num_workers": 0,
        "data.seed": config.seed,
    }


def _model(
    config: RunConfig, job: VerlJob, name: str = "actor_rollout_ref.model"
) -> dict[str, Any]:
    checkpointing = config.learner.gradient_checkpointing
    on_gpu = job.device == "cuda"
    return {
        f"{name}.path": str(job.model),
        f"{name}.enable_gradient_checkpointing": on_gpu
        if checkpointing == "auto"
        else checkpointing,
        f"{name}.use_remove_padding": on_gpu,
        **({} if on_gpu else {f"{name}.override_config.attn_implementation": "sdpa"}),
    }


def _engine(config: RunConfig, job: VerlJob, name: str) -> dict[str, Any]:
    """How one network is laid over the workers, and computed."""
    return {
        f"{name}.strategy": "fsdp2",
        f"{name}.seed": config.seed,
        f"{name}.mixed_precision.param_dtype": "bf16" if _is_low(config, job) else "fp32",
        f"{name}.mixed_precision.reduce_dtype": "fp32",
        f"{name}.use_torch_compile": config.learner.compile,
    }


def _actor(config: RunConfig, job: VerlJob) -> dict[str, Any]:
    learner = config.learner
    name, reference = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
    return {
        f"{name}.strategy": "fsdp2",
        **_engine(config, job, f"{name}.fsdp_config"),
        f"{reference}.strategy": "fsdp2",
        **_engine(config, job, f"{reference}.fsdp_config"),
        f"{name}.use_torch_compile": learner.compile,
        f"{name}.use_dynamic_bsz": True,
        f"{name}.ppo_max_token_len_per_gpu": _micro_tokens(config, job),
        f"{name}.ppo_mini_batch_size": config.rollout.prompts,
        f"{name}.ppo_epochs": learner.epochs,
        f"{name}.data_loader_seed": config.seed,
        f"{name}.grad_clip": learner.grad_clip,
        f"{name}.optim.clip_grad": learner.grad_clip,
        f"{name}.optim.lr": learner.lr,
        f"{name}.optim.weight_decay": learner.weight_decay,
        f"{name}.optim.lr_warmup_steps": learner.warmup_steps or -1,
        f"{name}.optim.lr_scheduler_type": learner.schedule,
        f"{name}.optim.min_lr_ratio": learner.lr_end,
        f"{name}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        f"{name}.checkpoint.load_contents": ["model", "optimizer", "extra"],
    }


def _micro_tokens(config: RunConfig, job: VerlJob) -> int:
    """Tokens in memory at once; they must hold the longest sequence."""
    return max(config.learner.micro_tokens or MICRO_TOKENS[job.device], job.context)


def _is_low(config: RunConfig, job: VerlJob) -> bool:
    """Whether 16 bits compute; masters and their optimiser have 32."""
    precision = config.model.precision
    return precision == "bfloat16" or (precision == "auto" and job.device == "cuda")


def _algorithm(config: RunConfig) -> dict[str, Any]:
    """The loss. Advantages are given by the run's own algorithm, whatever the estimator's name."""
    one = config.algorithm
    name = "actor_rollout_ref.actor"
    return {
        "algorithm.adv_estimator": "gae" if one.critic else "grpo",
        "algorithm.use_kl_in_reward": one.needs_reference_in_reward,
        "algorithm.kl_penalty": one.kl_estimator,
        "algorithm.kl_ctrl.kl_coef": one.kl_coefficient,
        f"{name}.clip_ratio": one.clip_low,
        f"{name}.clip_ratio_low": one.clip_low,
        f"{name}.clip_ratio_high": one.clip_high,
        f"{name}.clip_ratio_c": one.dual_clip or NEVER_CLIPPED,
        f"{name}.loss_agg_mode": one.aggregation.replace("_", "-"),
        f"{name}.loss_scale_factor": one.constant_length
        if one.aggregation == "seq_mean_token_sum_norm"
        else None,
        f"{name}.entropy_coeff": one.entropy_coefficient,
        f"{name}.use_kl_loss": one.needs_reference,
        f"{name}.kl_loss_coef": one.kl_coefficient,
        f"{name}.kl_loss_type": one.kl_estimator,
    }


def _critic(config: RunConfig, job: VerlJob) -> dict[str, Any]:
    critic, learner = config.algorithm.critic, config.learner
    if critic is None:
        return {"critic.enable": False}
    return {
        "critic.enable": True,
        # verl counts the first step that updates the policy, we the steps before it, in which advantages
        # would be noise because the critic knows nothing of the task yet.
        "trainer.critic_warmup": critic.warmup + 1 if critic.warmup else 0,
        **_model(config, job, "critic.model"),
        "critic.strategy": "fsdp2",
        **_engine(config, job, "critic.fsdp"),
        "critic.optim.lr": critic.lr,
        "critic.optim.weight_decay": 0.0,
        "critic.optim.lr_scheduler_type": "constant",
        "critic.optim.clip_grad": learner.grad_clip,
        "critic.grad_clip": learner.grad_clip,
        "critic.use_dynamic_bsz": True,
        "critic.ppo_max_token_len_per_gpu": _micro_tokens(config, job),
        "critic.data_loader_seed": config.seed,
        "critic.cliprange_value": critic.value_clip or NEVER_CLIPPED,
        "critic.loss_agg_mode": "token-mean",
        "critic.loss_scale_factor": None,
    }


def _rollout(config: RunConfig, job: VerlJob) -> dict[str, Any]:
    rollout, is_plain = config.rollout, config.model.engine == "plain"
    name = "actor_rollout_ref.rollout"
    return {
        f"{name}.name": HF_ROLLOUT if is_plain else "vllm",
        "reward.reward_model.rollout.name": HF_ROLLOUT if is_plain else "vllm",
        f"{name}.n": rollout.group_size,
        f"{name}.seed": config.seed,
        f"{name}.dtype": "bfloat16" if _is_low(config, job) else "float32",
        f"{name}.temperature": rollout.temperature,
        f"{name}.top_p": rollout.top_p,
        f"{name}.top_k": rollout.top_k or -1,
        f"{name}.val_kwargs.temperature": config.evaluation.temperature,
        f"{name}.val_kwargs.top_p": rollout.top_p,
        f"{name}.val_kwargs.top_k": rollout.top_k or -1,
        f"{name}.val_kwargs.do_sample": True,
        f"{name}.max_model_len": job.context,
        f"{name}.calculate_log_probs": True,
        f"{name}.agent.default_agent_loop": AGENT,
    }


def _trainer(config: RunConfig, job: VerlJob) -> dict[str, Any]:
    kept = config.checkpoints.keep + 1  # verl's newest may not be one of the run's yet
    return {
        "ragen2.run": str(job.run),
        "trainer.v1.trainer_mode": AGENT,
        "trainer.device": job.device,
        "trainer.nnodes": job.nodes,
        "trainer.n_gpus_per_node": job.workers,
        "trainer.logger": ["console", *config.logging.to],
        "trainer.project_name": config.logging.project,
        "trainer.experiment_name": job.run.name,
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": config.steps,
        "trainer.val_before_train": True,
        "trainer.test_freq": config.evaluation.every,
        "trainer.save_freq": config.checkpoints.every,
        "trainer.max_actor_ckpt_to_keep": kept,
        "trainer.max_critic_ckpt_to_keep": kept,
        "trainer.default_local_dir": str(job.run / CHECKPOINTS),
        **_resume(job),
    }


def verl_checkpoint(run: Path, step: int) -> Path:
    """The checkpoint that verl wrote of a step: what a job goes on from."""
    return run / CHECKPOINTS / f"global_step_{step}"


def _resume(job: VerlJob) -> dict[str, Any]:
    if not job.resume_step:
        return {"trainer.resume_mode": "disable"}
    return {
        "trainer.resume_mode": "resume_path",
        "trainer.resume_from_path": str(verl_checkpoint(job.run, job.resume_step)),
    }


def defaults(job: VerlJob) -> dict[str, Any]:
    """What fits most jobs of this kind and decides no result; the user may say otherwise."""
    rollout = "actor_rollout_ref.rollout"
    if job.device == "cuda":
        return {
            f"{rollout}.tensor_model_parallel_size": 1,
            f"{rollout}.agent.num_workers": 8 * job.nodes,
            "reward.num_workers": 1,
        }
    return {
        f"{rollout}.tensor_model_parallel_size": job.workers,  # one server for all
        "reward.num_workers": 1,
        f"{rollout}.agent.num_workers": 1,
        f"{rollout}.free_cache_engine": False,
        f"{rollout}.enable_sleep_mode": False,  # vLLM cannot on processors
        f"{rollout}.enforce_eager": True,
        f"{rollout}.engine_kwargs.vllm.worker_extension_cls": VLLM_WORKER,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        **({} if job.joins_cluster else _own_cluster(job)),
    }


def _own_cluster(job: VerlJob) -> dict[str, Any]:
    """A Ray of the job's own, on processors."""
    ray = "ray_kwargs.ray_init"
    return {
        f"{ray}.num_cpus": 6 + 4 * job.workers,  # Ray starts a process for each
        # Ray counts training processes in "GPU" slots, also where there is no GPU.
        f"{ray}.num_gpus": job.workers,
        f"{ray}.include_dashboard": False,
        f"{ray}.object_store_memory": 400_000_000,
    }
