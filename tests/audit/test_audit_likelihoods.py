"""Scores from a model or a server: right rows, right columns, right context."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from ragen2.audit.likelihoods import (
    NO_IDS,
    OTHER_IDS,
    PolicyLikelihood,
    ServerLikelihood,
    plain,
    server_and_model,
)
from ragen2.audit.reservoir import TextTrace
from ragen2.audit.rollouts import SampledTokens
from ragen2.errors import ModelError

CHAT = (("system", "rules"), ("user", "task"))


class Letters:
    """A policy over letters: a token is as likely as often as the context holds it."""

    max_context = 40

    @property
    def tokenizer(self):
        return self

    def encode(self, text):
        return [ord(letter) for letter in text]

    def decode(self, ids):
        return "".join(chr(i) for i in ids)

    def start_text(self, text):
        return self.encode(text)

    def start(self, messages):
        self.seen = [(one.role, one.content) for one in messages]
        return self.encode("".join(one.content for one in messages))

    def score(self, pairs, temperature=1.0):
        return [
            np.array([np.log((1 + (pair.context_ids_T == i).sum()) / 100) for i in one])
            for pair in pairs
            for one in [pair.continuation_ids_T]
        ]

    def score_texts(self, pairs):
        return [
            np.array([np.log((1 + context.count(letter)) / 100) for letter in more])
            for context, more in pairs
        ]


def trace(prompt, reasoning: str, lead: str = "") -> TextTrace:
    return TextTrace(prompt, lead, reasoning)


@pytest.mark.parametrize("make", [PolicyLikelihood, ServerLikelihood])
def test_a_trace_is_scored_under_every_prompt_behind_its_tag(make):
    scored = make(Letters(), "letters").score(
        [[trace("aa", "a", "<"), trace("aa", "ab", "<")], [trace("bbb", "b<", "<")]]
    )
    chances = [[0.03, 0.01], [0.03 * 0.01, 0.01 * 0.04], [0.01 * 0.02, 0.04 * 0.02]]
    assert scored.matrix.logp_NP == pytest.approx(np.log(chances))
    assert scored.matrix.length_N.tolist() == [1, 2, 2]
    assert scored.matrix.owner_N.tolist() == [0, 0, 1]


@pytest.mark.parametrize("make", [PolicyLikelihood, ServerLikelihood])
def test_one_prompt_alone_cannot_be_told_from_others(make):
    scored = make(Letters(), "letters").score([[trace("aa", "a"), trace("aa", "b")]])
    assert (scored.matrix, scored.reason) == (None, "fewer than two distinct prompts")


def test_what_does_not_fit_the_context_is_left_out_and_counted():
    long, short = "a" * 39, "b" * 10
    scored = PolicyLikelihood(Letters(), "letters").score(
        [[trace(long, "xx")], [trace(short, "y" * 31)], [trace(short, "z")], [trace("c", "z")]]
    )
    assert scored.unused == {"longer than the model's context": 2}
    assert scored.matrix.logp_NP.shape == (2, 2)


def test_a_template_is_given_three_roles_and_never_one_twice_in_a_row():
    letters = Letters()
    chat = (("developer", "a"), ("user", "b"), ("tool", "c"), ("assistant", "d"), ("user", "e"))
    PolicyLikelihood(letters, "letters").score([[trace(chat, "z")]])
    assert letters.seen == [("system", "a"), ("user", "b\nc"), ("assistant", "d"), ("user", "e")]


def test_chat_for_a_server_waits_for_the_assistant():
    assert plain(CHAT) == "System: rules\nUser: task\nAssistant: "
    assert plain("as it is") == "as it is"


@pytest.fixture
def models() -> Iterator[tuple[str, list[str]]]:
    """A server that lists these models."""
    names: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/v1/models" else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"data": [{"id": name} for name in names]}).encode())

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1", names
    server.shutdown()
    server.server_close()


def test_a_server_is_asked_for_the_model_that_is_not_named(models):
    url, names = models
    assert server_and_model(f"{url}#mine") == (url, "mine")
    names.append("only")
    assert server_and_model(url) == (url, "only")
    names.append("other")
    with pytest.raises(ModelError, match=r"serves 2 models \(only, other\); name one as .*#NAME"):
        server_and_model(url)


def test_a_key_goes_to_the_server_it_is_for_and_no_further(monkeypatch):
    """The server sends its caller on, as one that is taken over could."""
    seen: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            host = self.headers["Host"].partition(":")[0]
            seen.append((host, self.headers["Authorization"]))
            self.send_response(302 if host == "127.0.0.1" else 200)
            self.send_header("Location", f"http://localhost:{self.server.server_port}{self.path}")
            self.end_headers()
            self.wfile.write(json.dumps({"data": [{"id": "only"}]}).encode())

        def log_message(self, *_):
            pass

    monkeypatch.setenv("OPENAI_API_KEY", "theirs")
    monkeypatch.setenv("RAGEN2_API_KEY", "mine")
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found = server_and_model(f"http://127.0.0.1:{server.server_port}", "RAGEN2_API_KEY")
    server.shutdown()
    server.server_close()
    assert found[1] == "only"
    assert seen == [("127.0.0.1", "Bearer mine"), ("localhost", None)]


def test_a_server_that_is_not_there_is_one_line():
    with pytest.raises(ModelError, match="does not say what it serves") as error:
        server_and_model("http://127.0.0.1:9/v1")
    assert "\n" not in str(error.value)


@pytest.fixture
def echo_server() -> Iterator[str]:
    """A completions server whose tokens are letters, each as likely as it was frequent before."""

    def choice(text: str, index: int) -> dict[str, object]:
        counts = [text[:at].count(letter) for at, letter in enumerate(text)]
        logprobs = [float(np.log((1 + count) / 100)) for count in counts]
        scores = {"tokens": list(text), "token_logprobs": [None, *logprobs[1:]]}
        return {
            "index": index,
            "text": text,
            "logprobs": scores | {"text_offset": [*range(len(text))]},
        }

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            choices = [choice(text, index) for index, text in enumerate(body["prompt"])]
            answer = json.dumps({"choices": choices}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_a_real_server_scores_the_text_after_each_prompt(echo_server):
    from ragen2.backends.remote.scorer import ServerScorer

    likelihood = ServerLikelihood(ServerScorer(echo_server, "letters", max_tokens=0), "letters")
    scored = likelihood.score([[trace("aax", "a")], [trace("bbbx", "b")]])
    expected = np.log([[0.03, 0.01], [0.01, 0.04]])
    assert scored.matrix.logp_NP == pytest.approx(expected)
    assert scored.matrix.length_N.tolist() == [1, 1]


class Merging(Letters):
    """Letters, but a full stop and the tag behind it are one token, as in real vocabularies."""

    def encode(self, text):
        return [ord(piece) if len(piece) == 1 else 1000 for piece in re.findall(r"\.<|.", text)]

    def decode(self, ids):
        return "".join(".<" if i == 1000 else chr(i) for i in ids)


def test_a_token_that_straddles_the_tag_is_the_tags_as_in_training():
    scored = PolicyLikelihood(Merging(), "letters").score(
        [[TextTrace(prompt, "", "so it is.", "", "</think>")] for prompt in ("aa", "bb")]
    )
    assert scored.matrix.length_N.tolist() == [len("so it is")] * 2
    assert scored.retokenised == {NO_IDS: 2}


def tokens(prompt: str, reply: str, span: tuple[int, int] | None = None) -> SampledTokens:
    return SampledTokens.of([ord(c) for c in prompt], [ord(c) for c in reply], span)


def test_tokens_of_the_log_are_scored_as_they_are():
    """Not the prompt's text, not the reasoning's."""
    letters = PolicyLikelihood(Letters(), "letters")
    given = [("aa<", "ab>x", (0, 2)), ("bbb<", "b>x", (0, 1))]
    scored = letters.score(
        [
            [TextTrace("another", "<", reply[slice(*span)], tokens=tokens(prompt, reply, span))]
            for prompt, reply, span in given
        ]
    )
    chances = [[0.03 * 0.01, 0.01 * 0.04], [0.01, 0.04]]
    assert scored.matrix.logp_NP == pytest.approx(np.log(chances))
    assert not scored.retokenised


def test_a_trace_that_was_recorded_without_tokens_is_left_out_as_in_training():
    held = [tokens("aa", "b>", (0, 0)), tokens("bb", "b>", (0, 1)), tokens("cc", "b>", (0, 1))]
    scored = PolicyLikelihood(Letters(), "letters").score(
        [[TextTrace("p", "", "b", tokens=one)] for one in held]
    )
    assert scored.matrix.logp_NP.shape == (2, 2)
    assert scored.unused == {"reasoning without tokens": 1}


def test_white_space_that_a_server_took_off_is_found_among_the_tokens():
    letters = PolicyLikelihood(Letters(), "letters")
    held = [tokens(prompt, "<t>\nso\n</t>go") for prompt in ("aa", "bb")]
    scored = letters.score([[TextTrace("p", "<t>", "so", "<t>", "</t>go", one)] for one in held])
    assert scored.matrix.length_N.tolist() == [len("\nso\n")] * 2


def test_tokens_of_another_tokenizer_are_not_scored():
    letters = PolicyLikelihood(Letters(), "letters")
    scored = letters.score(
        [[TextTrace(one, "", "so", tokens=tokens(one, "ZZ", (0, 2)))] for one in ("aa", "bb")]
    )
    assert scored.retokenised == {OTHER_IDS: 2}
    assert scored.matrix.length_N.tolist() == [2, 2]


def test_a_tag_that_the_template_writes_is_not_added_again():
    class Opening(Letters):
        def start(self, messages):
            return [*super().start(messages), *self.encode("<t>\n")]

    scored = PolicyLikelihood(Opening(), "letters").score(
        [[trace((("user", one),), "t", "<t>")] for one in ("a", "b")]
    )
    assert scored.matrix.logp_NP == pytest.approx(np.log(np.full((2, 2), 0.02)))
