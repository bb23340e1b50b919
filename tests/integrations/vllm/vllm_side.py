"""A real vLLM server of the embedded model, on a CPU, in float32."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ragen2.backends.agent import locate
from ragen2.backends.settings import EMBEDDED

NAME = "tiny"
CLOSE = 1e-3
START_SECONDS = 300
SOURCE = Path(__file__).parents[3] / "src"


@contextmanager
def vllm_server(folder: Path, *arguments: str) -> Iterator[str]:
    """The address of a vLLM server of the embedded model, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {
        **os.environ,
        "PYTHONPATH": str(SOURCE),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    env.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)  # set by vLLM inside this process
    model = ["--model", locate(EMBEDDED).source, "--served-model-name", NAME]
    how = ["--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1", "--port", str(port)]
    log = folder / "server.log"
    # `vllm serve` by its module: the CPU wheel's command looks for a package called vllm.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *model, *how]
    with log.open("w") as out:
        process = subprocess.Popen([*command, *arguments], env=env, stdout=out, stderr=out)
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:  # noqa: S310 - ours
                assert json.load(answer)["data"][0]["id"] == NAME
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-3000:])
