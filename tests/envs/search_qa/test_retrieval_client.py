"""The retrieval protocol, against a real server process and against broken servers, on loopback."""

import http.client
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ragen2.envs import make
from ragen2.envs.check.conformance import expert_steps
from ragen2.envs.search_qa import retrieval
from ragen2.envs.search_qa.env import SearchQA
from ragen2.envs.search_qa.records import Passage
from ragen2.envs.search_qa.retrieval import RetrievalClient
from ragen2.envs.search_qa.server import MAX_TOP, main
from ragen2.errors import ConfigError, EnvError

PASSAGES = [
    {"id": "a", "title": "Ann", "text": "Ann sails the Tern."},
    {"id": "b", "title": "Tern", "text": "Tern is a ship.\nBo painted it."},
    {"id": "c", "title": "", "text": "A ship without a name."},
]


def start_server(cache, *arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", "ragen2.envs.search_qa.server", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "RAGEN2_CACHE": str(cache)},
    )
    line = process.stdout.readline()
    return process, re.search(r"http://127\.0\.0\.1:\d+", line)[0], line


def stop(process):
    process.terminate()
    process.wait(timeout=10)
    process.stdout.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    corpus = folder / "corpus.jsonl"
    corpus.write_text("\n".join(map(json.dumps, PASSAGES)))
    process, url, line = start_server(folder, "--corpus", str(corpus))
    assert line.startswith("serving 3 passages at ")
    yield url
    stop(process)


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAGEN2_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def _no_pauses(monkeypatch):
    monkeypatch.setattr(retrieval, "SECONDS_BEFORE_ATTEMPTS", (0.0, 0.0, 0.0))


def request(url, method, path, body=b"", headers=()):
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    connection.request(method, path, body, dict(headers))
    response = connection.getresponse()
    answer = response.status, json.loads(response.read())
    connection.close()
    return answer


@pytest.mark.parametrize("protocol", ["ragen", "search_r1"])
def test_both_protocols_bring_back_the_passages(server, protocol):
    client = RetrievalClient(server, protocol)
    assert client.search("Ann", 5) == [Passage("a", "Ann", "Ann sails the Tern.")]
    assert client.search("who painted the ship?", 1) == [
        Passage("b", "Tern", "Tern is a ship.\nBo painted it.")
    ]
    assert client.search("without name", 3) == [Passage("c", "", "A ship without a name.")]
    assert client.search("qwxz", 3) == []
    assert client.search("\x00 \ud800 é ship", 1) != []
    many = client.search_many(["ship", "qwxz", "sails"], 2)
    assert many == [client.search(query, 2) for query in ("ship", "qwxz", "sails")]


def test_replies_have_the_shape_that_other_clients_expect(server):
    body = json.dumps({"query": "Ann", "top_k": 2}).encode()
    status, answer = request(server, "POST", "/retrieve", body)
    assert status == 200
    (found,) = answer["results"]
    assert found == {"id": "a", "content": '"Ann"\nAnn sails the Tern.', "score": found["score"]}
    assert found["score"] > 0
    body = json.dumps({"queries": ["Ann", "?"], "topk": 2, "return_scores": True}).encode()
    status, answer = request(server, "POST", "/retrieve", body)
    document = {"id": "a", "contents": '"Ann"\nAnn sails the Tern.'}
    assert answer == {"result": [[{"document": document, "score": found["score"]}], []]}


def test_the_server_says_how_it_is(server):
    assert request(server, "GET", "/health") == (200, {"status": "ok", "num_passages": 3})
    assert request(server, "GET", "/")[0] == 404
    assert request(server, "POST", "/")[0] == 404


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body must have 1 to"),
        (b"{", "Expecting property name"),
        (b"[]", "must be a JSON object"),
        (b"{}", "needs query"),
        (b'{"query": 3}', "needs query"),
        (b'{"queries": "x"}', "queries must be a list"),
        (b'{"query": "x", "top_k": 0}', "above 0, got 0"),
        (b'{"query": "x", "top_k": true}', "above 0, got True"),
        (b"[" * 100_000, ""),
        (b"\xff", ""),
    ],
)
def test_bad_requests_are_refused_with_a_reason(server, body, message):
    status, answer = request(server, "POST", "/retrieve", body)
    assert status == 400
    assert message in answer["error"]


def test_a_body_too_long_is_not_read(server):
    headers = {"Content-Length": str(10**12)}
    status, answer = request(server, "POST", "/retrieve", b"", headers.items())
    assert (status, "1000000000000" in answer["error"]) == (400, True)


def test_too_many_wanted_are_capped(server):
    body = json.dumps({"query": "ship", "top_k": 10**9}).encode()
    status, answer = request(server, "POST", "/retrieve", body)
    assert status == 200
    assert len(answer["results"]) <= MAX_TOP


def test_the_environment_plays_against_the_generated_world_of_a_server(tmp_path):
    process, url, line = start_server(tmp_path, "--num-passages", "400")
    try:
        assert line.startswith("serving 400 passages")
        local = make("SearchQA", num_passages=400)
        for protocol in ("ragen", "search_r1"):
            remote = SearchQA(
                num_passages=400, retriever="server", server_url=url, server_protocol=protocol
            )
            for seed in range(5):
                assert expert_steps(remote, seed)[-1].solved
                ours, theirs = local.start(seed, 0), remote.start(seed, 0)
                for episode in (ours, theirs):
                    episode.step(episode.expert()[0])
                assert ours.observation == theirs.observation
    finally:
        stop(process)


@pytest.mark.usefixtures("_no_pauses")
def test_a_dead_server_stops_the_run(tmp_path):
    process, url, _ = start_server(tmp_path, "--num-passages", "200")
    env = SearchQA(num_passages=200, retriever="server", server_url=url)
    episode = env.start(0, 0)
    assert episode.step("search[born]").effective
    before = episode.observation
    stop(process)
    with pytest.raises(EnvError, match=r"failed 3 times \(.*refused.*\); start it, or correct"):
        episode.step("search[born]")
    assert episode.observation == before


class Broken(ThreadingHTTPServer):
    """Answers every request with the same bytes, or hangs up."""

    daemon_threads = True

    def __init__(self, status, body):
        self.reply = (status, body)
        self.num_requests = 0
        super().__init__(("127.0.0.1", 0), BrokenHandler)


class BrokenHandler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.num_requests += 1
        status, body = self.server.reply
        if not status:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def broken(request):
    server = Broken(*request.param)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("_no_pauses")
@pytest.mark.parametrize(
    ("broken", "message", "num_requests"),
    [
        ((500, b"oops"), r"failed 3 times \(HTTP 500\)", 3),
        ((0, b""), "failed 3 times", 3),
        ((404, b""), "refused the request with HTTP 404; check server_url", 1),
        ((200, b"<html>"), "something that is not JSON", 1),
        ((200, b"\xff\xfe"), "something that is not JSON", 1),
        ((200, b"{}"), "does not answer in the search_r1 protocol", 1),
        ((200, b"[1]"), "does not answer in the search_r1 protocol", 1),
        ((200, b'{"result": [[{"document": {"id": 1}}]]}'), "does not answer in the", 1),
        ((200, b'{"result": []}'), "gave 0 lists for 1 queries", 1),
    ],
    indirect=["broken"],
)
def test_what_a_broken_server_says_is_an_error(broken, message, num_requests):
    client = RetrievalClient(f"http://127.0.0.1:{broken.server_port}", "search_r1")
    with pytest.raises(EnvError, match=message):
        client.search("x", 3)
    assert broken.num_requests == num_requests


@pytest.mark.parametrize(
    "broken", [(200, b'{"result": [[{"id": 1, "text": "t"}]]}')], indirect=True
)
def test_servers_without_scores_and_with_titles_apart_are_understood(broken):
    client = RetrievalClient(f"http://127.0.0.1:{broken.server_port}/retrieve/", "search_r1")
    assert client.search("x", 3) == [Passage("1", "", "t")]


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "file:///etc/passwd", "ftp://host", "http://"]
)
def test_only_web_addresses_are_servers(url):
    with pytest.raises(ConfigError, match="server_url must look like http://host:port"):
        RetrievalClient(url, "ragen")


def test_a_corpus_that_cannot_be_read_ends_the_server_with_a_line(tmp_path, capsys):
    assert main(["--corpus", str(tmp_path / "none.jsonl"), "--port", "0"]) == 2
    assert "none.jsonl" in capsys.readouterr().err
