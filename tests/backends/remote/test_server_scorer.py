"""Scoring over HTTP: a real server in front of the embedded model gives the model's own numbers."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from ragen2.backends.remote.scorer import ServerScorer
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.settings import ServerSettings
from ragen2.bench.score import naive_score
from ragen2.errors import ConfigError, ModelError
from ragen2.policy import Pair
from ragen2.scoring import Trace, cross_score

Answer = tuple[int, Any]


class Model:
    """The embedded model behind ``/v1/completions``, in either dialect, as vLLM answers."""

    def __init__(self, policy: HFPolicy) -> None:
        self.policy = policy
        self.hf = policy.tokenizer.hf
        self.lock = threading.Lock()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.spoil: Callable[[dict[str, Any], dict[str, Any]], Answer] | None = None

    def answer(self, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        with self.lock:
            self.requests.append(body)
            self.headers.append(headers)
            choices = [self._choice(i, prompt, body) for i, prompt in enumerate(body["prompt"])]
            found = {"model": body["model"], "choices": choices[::-1]}  # order is by index
            return self.spoil(body, found) if self.spoil else (200, found)

    def _choice(self, index: int, prompt: Any, body: dict[str, Any]) -> dict[str, Any]:
        ids = (
            self.hf.encode(prompt, add_special_tokens=False) if isinstance(prompt, str) else prompt
        )
        pair = Pair(np.array(ids[:1]), np.array(ids[1:]))
        logp = [None, *naive_score(self.policy.network, [pair], 1.0, rows=1)[0].tolist()]
        choice: dict[str, Any] = {"index": index, "text": "", "logprobs": None}
        if body.get("echo") and "logprobs" in body:
            shown = [*ids, *[9] * body["max_tokens"]]
            choice["logprobs"] = {
                "tokens": [self.hf.decode([i]) for i in shown],
                "token_logprobs": [*logp, *[-0.5] * body["max_tokens"]],
                "text_offset": [0] * len(shown),
            }
        if "prompt_logprobs" in body:
            choice["prompt_logprobs"] = [
                None
                if value is None
                else {str(i): {"logprob": value, "rank": 1, "decoded_token": "x"}}
                for i, value in zip(ids, logp, strict=True)
            ]
        return choice


@pytest.fixture(scope="module")
def served(policy: HFPolicy) -> Iterator[tuple[str, Model]]:
    model = Model(policy)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, found = (404, {"error": {"message": f"no {self.path}"}})
            if self.path == "/v1/completions":
                status, found = model.answer(body, dict(self.headers))
            text = (found if isinstance(found, str) else json.dumps(found)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError):  # the client may have given up
                self.wfile.write(text)

        def log_message(self, *args: Any) -> None:
            """No lines among the tests' own."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", model
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def model(served: tuple[str, Model]) -> Model:
    made = served[1]
    made.spoil = None
    made.requests.clear()
    made.headers.clear()
    return made


@pytest.fixture
def scorer(served: tuple[str, Model], model: Model) -> Callable[..., ServerScorer]:
    def make(**settings: Any) -> ServerScorer:
        how = {name: settings.pop(name) for name in ("dialect", "max_tokens") if name in settings}
        asked = ServerSettings(**{"backoff": 0.001, "retries": 2, **settings})
        return ServerScorer(served[0], "tiny", settings=asked, **how)

    return make


@pytest.fixture(scope="module")
def pairs(lake_prompts) -> list[Pair]:
    words = [np.array(ids) for ids in ([11, 12, 13], [40], [7, 30, 31, 90])]
    return [Pair(prompt, ids) for prompt in lake_prompts[:3] for ids in words]


@pytest.mark.parametrize("dialect", ["echo", "prompt_logprobs", None])
@pytest.mark.parametrize("max_tokens", [0, 1, None])
def test_both_dialects_give_the_models_own_scores(scorer, policy, pairs, dialect, max_tokens):
    found = scorer(dialect=dialect, max_tokens=max_tokens, batch=2).score(pairs)
    for one, other in zip(found, policy.score(pairs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_the_url_may_end_in_v1(served, model, policy, pairs):
    found = ServerScorer(f"{served[0]}/v1/", "tiny").score(pairs[:1])
    np.testing.assert_allclose(found[0], policy.score(pairs[:1])[0], atol=1e-4)


def test_pairs_are_batched_after_one_that_finds_the_dialect(scorer, model, pairs):
    scorer(batch=3, concurrency=1).score(pairs)
    assert [len(body["prompt"]) for body in model.requests] == [1, 3, 3, 2]
    assert {body["model"] for body in model.requests} == {"tiny"}


def test_a_server_can_cross_score(scorer, policy, pairs):
    traces = [Trace(pair.context_ids_T, pair.continuation_ids_T) for pair in pairs]
    over_http, here = cross_score(traces, scorer()), cross_score(traces, policy)
    np.testing.assert_allclose(over_http.logp_NP, here.logp_NP, atol=1e-3)


@pytest.mark.parametrize("dialect", ["echo", "prompt_logprobs"])
def test_texts_are_scored_from_the_first_token_that_is_not_the_contexts(scorer, policy, dialect):
    hf = policy.tokenizer.hf
    context, continuations = "You (3,1) Goal (2,2)\n", ["I go right", "now at", "é ✓ hole"]
    found = scorer(dialect=dialect).score_texts([(context, text) for text in continuations])
    for text, score in zip(continuations, found, strict=True):
        ids = hf.encode(context + text, add_special_tokens=False)
        alone = hf.encode(context, add_special_tokens=False)
        assert ids[: len(alone)] == alone, "this boundary is one between tokens"
        pair = Pair(np.array(alone), np.array(ids[len(alone) :]))
        np.testing.assert_allclose(score, policy.score([pair])[0], atol=1e-4)


def test_a_token_across_the_boundary_is_the_continuations(scorer, policy):
    hf = policy.tokenizer.hf
    whole = "Goal is below me"
    ids = hf.encode(whole, add_special_tokens=False)
    at = next(i for i in range(1, len(ids)) if len(hf.decode([ids[i]])) > 1)
    cut = len(hf.decode(ids[:at])) + 1
    (score,) = scorer().score_texts([(whole[:cut], whole[cut:])])
    pair = Pair(np.array(ids[:at]), np.array(ids[at:]))
    np.testing.assert_allclose(score, policy.score([pair])[0], atol=1e-4)


def test_the_key_comes_from_the_environment(scorer, model, pairs, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "secret")
    scorer(api_key_env="SOME_KEY").score(pairs[:1])
    assert model.headers[0]["Authorization"] == "Bearer secret"
    monkeypatch.delenv("SOME_KEY")
    scorer(api_key_env="SOME_KEY").score(pairs[:1])
    assert "Authorization" not in model.headers[-1]


def test_a_server_that_takes_no_zero_is_asked_for_one_token(scorer, model, policy, pairs):
    def refuse_zero(body, found):
        if body["max_tokens"] == 0:
            return 400, {"error": {"message": "max_tokens must be at least 1"}}
        return 200, found

    model.spoil = refuse_zero
    found = scorer().score(pairs)
    for one, other in zip(found, policy.score(pairs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(scorer, model, policy, pairs, status):
    answers = iter([status, status])
    model.spoil = lambda body, found: (next(answers, 200), found)
    found = scorer().score(pairs[:1])
    np.testing.assert_allclose(found[0], policy.score(pairs[:1])[0], atol=1e-4)
    assert len(model.requests) == 3


def test_a_server_that_stays_busy_is_given_up_after_the_retries(scorer, model, pairs):
    model.spoil = lambda body, found: (503, {"error": "loading"})
    with pytest.raises(ModelError, match=r"answered 503: loading \(3 tries\); check the address"):
        scorer().score(pairs)
    assert len(model.requests) == 3


def test_a_server_without_prompt_logprobs_is_named(scorer, model, pairs):
    def plain(body, found):
        return 200, {"choices": [{"index": c["index"], "text": "hi"} for c in found["choices"]]}

    model.spoil = plain
    with pytest.raises(
        ModelError, match=r"does not return prompt log-probs \(echo .*; use a server"
    ):
        scorer().score(pairs)


def test_another_count_of_tokens_is_an_error(scorer, model, pairs):
    def longer(body, found):
        for choice in found["choices"]:
            choice["logprobs"]["tokens"].insert(0, "<s>")
            choice["logprobs"]["token_logprobs"].insert(0, None)
        return 200, found

    model.spoil = longer
    count = len(pairs[0].context_ids_T) + len(pairs[0].continuation_ids_T)
    told = f"returned {count + 1} log-probs for a prompt of {count} tokens; is it another tokenizer"
    with pytest.raises(ModelError, match=told):
        scorer(dialect="echo").score(pairs)


def test_a_changed_prompt_is_an_error(scorer, model, pairs):
    def other(body, found):
        for choice in found["choices"]:
            choice["prompt_logprobs"][-1] = {"3": {"logprob": -1.0}}
        return 200, found

    model.spoil = other
    with pytest.raises(ModelError, match=r"returned token 3 where token 13 was sent"):
        scorer(dialect="prompt_logprobs").score(pairs)


def test_the_prompts_own_token_is_found_among_likelier_ones(scorer, model, policy, pairs):
    def crowded(body, found):
        for choice in found["choices"]:
            choice["prompt_logprobs"] = [
                at and {"499": {"logprob": -0.01}, **at} for at in choice["prompt_logprobs"]
            ]
        return 200, found

    model.spoil = crowded
    found = scorer(dialect="prompt_logprobs").score(pairs[:1])
    np.testing.assert_allclose(found[0], policy.score(pairs[:1])[0], atol=1e-4)


def test_a_token_without_a_log_prob_is_an_error(scorer, model, pairs):
    def hole(body, found):
        found["choices"][0]["logprobs"]["token_logprobs"][-1] = None
        return 200, found

    model.spoil = hole
    with pytest.raises(ModelError, match="returned a token without a finite log-prob"):
        scorer(dialect="echo", max_tokens=0).score(pairs)


def test_prompts_refused_after_the_first_are_told(scorer, model, pairs):
    model.spoil = lambda body, found: (
        (200, found) if len(model.requests) == 1 else (400, {"message": "too long"})
    )
    with pytest.raises(ModelError, match="refused some prompts: too long"):
        scorer().score(pairs)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((401, {"error": {"message": "no key"}}), "answered 401: no key"),
        ((404, "model\nnot found"), "answered 404: model not found"),
        ((501, "no"), "answered 501: no"),
        ((200, {"choices": []}), r"returned 0 answers to 1 prompts; set server\.batch to 1"),
    ],
)
def test_what_no_retry_can_cure_is_told_at_once(scorer, model, pairs, answer, told):
    model.spoil = lambda body, found: answer
    with pytest.raises(ModelError, match=told):
        scorer().score(pairs)
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((200, "<html>"), r"answered no JSON: b'<html>' \(3 tries\)"),
        ((200, [1]), r"answered list, not a JSON object \(3 tries\)"),
        ((200, {"error": "none"}), r"answered without choices: .*none.* \(3 tries\)"),
        ((200, {"choices": [None]}), r"answered without choices: .* \(3 tries\)"),
    ],
)
def test_what_is_no_answer_is_asked_for_again(scorer, model, pairs, answer, told):
    model.spoil = lambda body, found: answer
    with pytest.raises(ModelError, match=told):
        scorer().score(pairs)
    assert len(model.requests) == 3


def test_nobody_at_the_address_is_one_line(pairs):
    patience = ServerSettings(retries=1, backoff=0.001)
    nobody = ServerScorer("http://127.0.0.1:9", "tiny", settings=patience)
    with pytest.raises(ModelError, match=r"cannot be reached: .*refused.* \(2 tries\)"):
        nobody.score(pairs)


def test_a_server_that_is_too_slow_is_given_up(scorer, model, pairs):
    given_up = threading.Event()

    def slow(body, found):
        assert given_up.wait(20)
        return 200, found

    model.spoil = slow
    with pytest.raises(ModelError, match=r"cannot be reached: .*timed out"):
        scorer(timeout=0.05, retries=0).score(pairs)
    given_up.set()


def test_another_temperature_is_an_error(scorer, model, pairs):
    with pytest.raises(ConfigError, match=r"temperature 0.7 cannot be scored by .*score at 1, or"):
        scorer().score(pairs, 0.7)
    assert not model.requests


def test_an_address_of_another_kind_is_an_error(pairs):
    with pytest.raises(ConfigError, match="is no address of a server; it starts with http"):
        ServerScorer("file:///etc/passwd", "tiny").score(pairs)


def test_nothing_asked_is_nothing_sent(scorer, model):
    assert scorer().score([]) == []
    assert scorer().score_texts([]) == []
    assert not model.requests


def test_empty_sides_are_errors(scorer):
    with pytest.raises(ValueError, match="pair 0 has an empty context or continuation"):
        scorer().score([Pair(np.array([1]), np.array([], dtype=np.int64))])
    with pytest.raises(ValueError, match="pair 0 has an empty context or continuation"):
        scorer().score_texts([("", "x")])


@pytest.mark.parametrize("dialect", ["echo", "prompt_logprobs"])
def test_a_context_without_a_whole_token_of_its_own_is_an_error(scorer, dialect):
    with pytest.raises(ModelError, match="they share no whole token; give a longer context"):
        scorer(dialect=dialect).score_texts([("g", "oal is below")])
