"""Start a verl job: compose its settings, set up its processes, wait for its end."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ragen2.backends.agent import locate, pick_device
from ragen2.backends.sampling.hf import DEFAULT_CONTEXT
from ragen2.config import RunConfig
from ragen2.consent import TRUSTED
from ragen2.errors import ModelError, RagenError, RunError
from ragen2.integrations.verl.translate import DEVICE, PLUGIN, VerlJob
from ragen2.integrations.versions import require_tested


def describe_job(config: RunConfig, run: Path, nodes: int, workers: int | None) -> VerlJob:
    """Where the model is, how long its sequences may be, and what it is trained on."""
    from transformers import AutoConfig

    location = locate(config.model.path)
    if location.gguf_file:
        raise ModelError(
            f"verl opens no GGUF files, and {config.model.path} is one; give a Hugging Face folder"
        )
    is_here = Path(location.source).is_dir()
    source = str(Path(location.source).resolve()) if is_here else location.source
    shape = AutoConfig.from_pretrained(source, **location.options)
    context = int(getattr(shape, "max_position_embeddings", None) or DEFAULT_CONTEXT)
    # A cluster's head may have no GPU; only `auto` has to look for one.
    device = pick_device("auto") if config.model.device == "auto" else config.model.device
    return VerlJob(
        run=run.resolve(),
        model=source,
        context=context,
        device="cuda" if device == "cuda" else "cpu",
        nodes=nodes,
        workers=workers or num_devices(device),
        joins_cluster=bool(os.environ.get("RAY_ADDRESS")),
    )


def num_devices(device: str) -> int:
    """GPUs of this machine, or one process on processors."""
    import torch

    return torch.cuda.device_count() or 1 if device == "cuda" else 1


def processes(job: VerlJob) -> dict[str, str]:
    """Environment variables of every process of the job."""
    common = {
        "VERL_USE_EXTERNAL_MODULES": PLUGIN,
        "VERL_USE_EXTERNAL_PLUGINS": "none",  # the line above loads it, and says so when it cannot
        "TOKENIZERS_PARALLELISM": "false",
        # Each process would list the engines that are not installed.
        "PYTHONWARNINGS": "ignore::UserWarning:verl.workers.engine",
        DEVICE: job.device,
        TRUSTED: os.environ.get(TRUSTED, ""),  # each process reads the run file
    }
    if job.device == "cuda":
        return common
    return {
        **common,
        # verl lists its FSDP engine for GPUs only; nothing in it asks for one.
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_ENGINE_VENDOR": "nvidia",
        "TQ_LOGGING_LEVEL": "ERROR",  # it counts cores, process by process
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }


def run_job(job: VerlJob, settings: Mapping[str, Any]) -> None:
    """Train to the end; an error in any of verl's processes ends all of them, in one line."""
    require_tested("verl")
    os.environ.update(processes(job))
    warnings.filterwarnings("ignore", category=UserWarning, module=r"verl\.workers\.engine$")
    from ray.exceptions import RayError
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

    config = compose(settings)
    config.ray_kwargs.ray_init.runtime_env.env_vars = processes(job)
    try:
        run_ppo(config, task_runner_class=TaskRunnerV1)
    except RayError as error:
        raise plain_error(error) from error


def plain_error(error: Exception) -> RagenError:
    """The cause of a job's failure, without the chain of Ray's wrappers: that is in the log above."""
    cause: Any = error
    while (deeper := getattr(cause, "cause", None)) is not None:
        cause = deeper
    if isinstance(cause, RagenError):
        return cause
    message = (str(cause).strip() or "no message").splitlines()[0]
    return RunError(
        f"verl's job failed with {type(cause).__name__}: {message}; its log has the rest, and the run can "
        "be resumed"
    )


def compose(settings: Mapping[str, Any]) -> Any:
    """The defaults of verl with ``settings`` laid over them, checked by verl."""
    import verl.trainer
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    folder = Path(verl.trainer.__file__).parent / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = hydra_compose("ppo_trainer")
    OmegaConf.set_struct(config, False)
    for name, value in settings.items():
        OmegaConf.update(config, name, value, force_add=True)
    validate_config(
        config=config,
        use_reference_policy=need_reference_policy(config),
        use_critic=need_critic(config),
    )
    return config
