"""Playing and scoring over HTTP: the same numbers as with the model at hand."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from ragen2.backends.remote.policy import ServerPolicy, read_completion
from ragen2.backends.remote.scorer import ServerScorer
from ragen2.backends.scripted import ByteTokenizer, ScriptedPolicy
from ragen2.backends.settings import ServerSettings
from ragen2.config import RunConfig
from ragen2.envs import Bandit
from ragen2.errors import ConfigError, ModelError
from ragen2.policy import Request, SamplingParams
from ragen2.rollout import Rollout
from ragen2.trainer.evaluate import assess
from ragen2.types import Finish


def first_arm(prompt: str, rng: np.random.Generator) -> str:
    """Says which arms it is shown, and takes the first; draws nothing, so that any seed will do."""
    arms = prompt.split("Arms: ")[1].split("\n", maxsplit=1)[0]
    return f"{arms}</think><answer>{arms.split(',')[0]}</answer>"


def likelihood(prompt: str, text: str) -> float:
    return -0.5 if text in prompt else -3.0


SERVED = ScriptedPolicy(first_arm, likelihood)
TOKENS = ByteTokenizer()


class Handler(BaseHTTPRequestHandler):
    """An OpenAI-compatible server of the scripted policy, in the dialect ``echo``."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(body)
        choices = self.echo(body) if body.get("echo") else [self.write(body)]
        answer = json.dumps({"choices": choices}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def write(self, body: dict) -> dict:
        text = first_arm(TOKENS.decode(body["prompt"]), np.random.default_rng(body["seed"]))
        ids = TOKENS.encode(text)
        return {
            "index": 0,
            "text": text,
            "token_ids": ids,
            "logprobs": {"token_logprobs": [-1.0] * len(ids)},
            "finish_reason": "stop",
        }

    def echo(self, body: dict) -> list[dict]:
        return [
            {"index": index, "logprobs": self.prompt_logprobs(ids)}
            for index, ids in enumerate(body["prompt"])
        ]

    def prompt_logprobs(self, ids: list[int]) -> dict:
        """The continuation begins where the opening tag of the prompt ends."""
        start = bytes(i - 1 if i else 0 for i in ids).rfind(b"<think>") + len(b"<think>")
        value = likelihood(TOKENS.decode(ids[:start]), TOKENS.decode(ids[start:]))
        return {
            "tokens": [str(i) for i in ids],
            "token_logprobs": [None] + [-9.0] * (start - 1) + [value] * (len(ids) - start),
        }

    def log_message(self, *_: object) -> None:
        """Nothing on the console."""


class Server(ThreadingHTTPServer):
    """All requests of a batch may knock at the same time."""

    request_queue_size = 64
    seen: list[dict]


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server(("127.0.0.1", 0), Handler)
    served.seen = []
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield served
    served.shutdown()
    served.server_close()


@pytest.fixture
def policy(server) -> ServerPolicy:
    url = f"http://127.0.0.1:{server.server_port}/v1"
    return ServerPolicy(ServerScorer(url, "scripted", settings=ServerSettings(retries=0)), TOKENS)


def test_a_served_model_is_assessed_as_the_same_model_at_hand(policy):
    config = RunConfig(
        env=Bandit(risky_chance=1.0),
        rollout=Rollout(prompts=6, group_size=4, actions_per_turn=1),
        evaluation={"tasks": 10},
    )
    found, expected = assess(config, policy), assess(config, SERVED)
    assert found.regime == expected.regime == "diverse_grounded"
    assert found.metrics == pytest.approx(expected.metrics)


def test_every_request_has_the_seed_of_its_own_stream(policy, server):
    ids = np.array(TOKENS.encode("Arms: a,b\n<think>"), dtype=np.int64)
    requests = [Request(ids, (0, "x", luck)) for luck in range(4)]
    policy.sample(requests, SamplingParams(max_tokens=7, stop=("</answer>",)))
    policy.sample(requests, SamplingParams())
    seeds = [body["seed"] for body in server.seen]
    assert len(set(seeds)) == 4
    assert sorted(seeds[:4]) == sorted(seeds[4:])
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert server.seen[0]["prompt"] == ids.tolist()
    assert server.seen[0]["max_tokens"] == 7


def test_another_temperature_is_refused_in_one_line(policy):
    with pytest.raises(ConfigError, match=r"^temperature 0\.5 cannot be sampled from http"):
        policy.sample([], SamplingParams(temperature=0.5))


GOOD = {"text": "a</answer>", "token_ids": [1, 2], "logprobs": {"token_logprobs": [-0.1, -0.2]}}


@pytest.mark.parametrize(
    ("change", "finish"),
    [
        ({"finish_reason": "stop"}, Finish.STOP),
        ({"finish_reason": "stop", "text": "no more"}, Finish.EOS),
        ({"finish_reason": "length", "text": "cut"}, Finish.LENGTH),
    ],
)
def test_why_a_reply_ended_is_read_off_the_answer(change, finish):
    found = read_completion(GOOD | change, SamplingParams(), "http://x")
    assert found.finish is finish
    assert found.ids_T.tolist() == [1, 2]
    assert found.logprobs_T.tolist() == [-0.1, -0.2]


@pytest.mark.parametrize(
    "change", [{"token_ids": None}, {"logprobs": None}, {"token_ids": [1, 2, 3]}]
)
def test_an_answer_without_its_ids_and_log_probs_is_refused(change):
    with pytest.raises(ModelError, match="http://x does not return the ids of what it sampled"):
        read_completion(GOOD | change, SamplingParams(), "http://x")
