"""Several runs on one GPU: each keeps to its share, and one that does not fit says what needs less."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from ragen2.backends import agent as loading
from ragen2.backends import device as gpu_memory
from ragen2.backends.agent import pick_device
from ragen2.backends.device import free_memory, total_memory
from ragen2.backends.settings import GPU_SHARE
from ragen2.cli import app as app_module
from ragen2.cli import jobs as jobs_module
from ragen2.cli.jobs import gpu_sharing
from ragen2.config import RunConfig
from ragen2.errors import ModelError
from ragen2.trainer.jobs.mps import Sharing
from ragen2.trainer.jobs.run import Job

FULL = (
    "CUDA out of memory. Tried to allocate 4.23 GiB. GPU 0 has a total capacity of 139.80 GiB of which "
    "3.07 GiB is free."
)


def jobs(count: int) -> list[Job]:
    return [Job(f"run {seed}", RunConfig(seed=seed), Path(f"run-{seed}")) for seed in range(count)]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(jobs_module, "has_gpu", lambda: True)
    monkeypatch.setattr(
        jobs_module, "shared_gpu", lambda: nullcontext(Sharing(True, "", {"A": "b"}))
    )
    monkeypatch.delenv(GPU_SHARE, raising=False)
    return monkeypatch


@pytest.mark.parametrize(("at_once", "count", "share"), [(4, 9, "0.2500"), (8, 2, "0.5000")])
def test_runs_that_meet_on_a_gpu_get_equal_shares_of_its_memory(
    gpu: pytest.MonkeyPatch, at_once: int, count: int, share: str
) -> None:
    with gpu_sharing(jobs(count), at_once, mps=True) as sharing:
        assert sharing.variables == {"A": "b", GPU_SHARE: share}
    with gpu_sharing(jobs(count), at_once, mps=False) as sharing:
        assert sharing.variables == {GPU_SHARE: share}


def test_a_run_alone_or_on_a_cpu_has_no_share_and_the_users_own_is_kept(
    gpu: pytest.MonkeyPatch,
) -> None:
    with gpu_sharing(jobs(3), 1, mps=True) as sharing:
        assert sharing.variables == {}
    gpu.setenv(GPU_SHARE, "0.1")
    with gpu_sharing(jobs(3), 3, mps=False) as sharing:
        assert sharing.variables == {GPU_SHARE: "0.1"}
    gpu.setattr(jobs_module, "has_gpu", lambda: False)
    with gpu_sharing(jobs(3), 3, mps=True) as sharing:
        assert sharing.variables == {}


def test_a_process_keeps_to_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", taken.append)
    monkeypatch.setattr(loading, "prepare_products", lambda: None)
    monkeypatch.delenv(GPU_SHARE, raising=False)
    assert pick_device("auto") == "cuda"
    assert taken == []
    monkeypatch.setenv(GPU_SHARE, "0.25")
    assert pick_device("cuda") == "cuda"
    assert taken == [0.25]
    monkeypatch.setenv(GPU_SHARE, "a quarter")
    with pytest.raises(ModelError, match="RAGEN2_GPU_SHARE is 'a quarter'; give a share above 0"):
        pick_device("cuda")


@pytest.mark.parametrize(("share", "total", "free"), [(None, 100, 40), ("0.5", 50, 20)])
def test_what_is_free_is_inside_the_share(
    monkeypatch: pytest.MonkeyPatch, share: str | None, total: int, free: int
) -> None:
    """Of 100 bytes 10 are nobody's; this process holds 60, 30 of them unused."""

    class Properties:
        total_memory = 100

    cuda = gpu_memory.torch.cuda
    monkeypatch.setattr(cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(cuda, "mem_get_info", lambda device: (10, 100))
    monkeypatch.setattr(cuda, "memory_allocated", lambda device: 30)
    monkeypatch.setattr(cuda, "memory_reserved", lambda device: 60)
    monkeypatch.delenv(GPU_SHARE, raising=False)
    if share:
        monkeypatch.setenv(GPU_SHARE, share)
    device = torch.device("cuda")
    assert (total_memory(device), free_memory(device)) == (total, free)


def test_memory_that_is_not_enough_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> int:
        raise torch.OutOfMemoryError(FULL)

    monkeypatch.setattr(app_module, "app", fail)
    monkeypatch.setattr(sys, "argv", ["ragen2", "train"])
    with pytest.raises(SystemExit) as ended:
        app_module.main()
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "ragen2: CUDA out of memory. Tried to allocate 4.23 GiB; smaller settings: fewer --jobs"
    )


def test_other_errors_of_torch_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> int:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(app_module, "app", fail)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        app_module.main()
