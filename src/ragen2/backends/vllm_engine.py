"""Start vLLM in this process, in the version that this code was tested with."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from ragen2.errors import ConfigError, DependencyError, ModelError

TESTED = "0.32"
"""The minor version whose calls are used here; vLLM changes them between such versions."""
GIB = 2**30
ENVIRONMENT = {
    # In this process: weights are handed over as tensors, not through a pipe.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # The learner's threads live here too; vLLM would bind them to one core.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}


def installed_version() -> str:
    """The version of vLLM, whichever of its packages brought it; another than tested is an error."""
    for package in ("vllm", "vllm-cpu"):
        try:
            found = version(package)
        except PackageNotFoundError:
            continue
        if not found.startswith(f"{TESTED}."):
            raise DependencyError(
                f"vLLM {found} is installed; ragen2 is tested with {TESTED}; "
                f"pip install 'vllm=={TESTED}.*', or leave model.engine out"
            )
        return found
    raise DependencyError(
        "model.engine = \"vllm\" needs vLLM, which is not installed; pip install 'ragen2[vllm]'"
    )


def start_engine(source: str, *, dtype: torch.dtype, max_context: int, memory: float) -> Any:
    """An ``LLM`` of vLLM over the model in ``source``; ``memory`` is its cache's, in GiB."""
    installed_version()
    _refuse_other_processes()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from vllm import LLM

    try:
        return LLM(
            model=source,
            dtype=str(dtype).removeprefix("torch."),
            max_model_len=max_context,
            kv_cache_memory_bytes=int(memory * GIB),
            enforce_eager=not torch.cuda.is_available(),
            # Of the sampling temperature, which is what a learner compares with.
            logprobs_mode="processed_logprobs",
            generation_config="vllm",
            disable_log_stats=True,
        )
    except (ValueError, RuntimeError, OSError, NotImplementedError) as error:
        told = " ".join(str(error).split())[:300]
        raise ModelError(
            f"vLLM cannot run {source}: {told}; leave model.engine out to sample without it"
        ) from error


def _refuse_other_processes() -> None:
    """One process only: vLLM makes a process group of its own in it."""
    group = torch.distributed
    if group.is_available() and group.is_initialized() and group.get_world_size() > 1:
        raise ConfigError(
            f'model.engine = "vllm" runs in one process, got {group.get_world_size()}; leave it out, '
            'or use model.engine = "server"'
        )
