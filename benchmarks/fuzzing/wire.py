"""Readers of what comes over HTTP: replies of servers, and requests to ours."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.mutations import BYTES, JSON, Form
from fuzzing.reader import Make, Reader
from fuzzing.runs import make_run

SECONDS = 5.0
"""For one answer."""


class AnyAnswer(ThreadingHTTPServer):
    """Answers every request with the bytes it holds, as a body or as all there is of the answer."""

    daemon_threads = True

    def __init__(self, *, is_whole: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.is_whole = is_whole
        self.data = b""
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: AnyAnswer

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_POST(self) -> None:
        """Answer whatever was asked."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        data = self.server.data
        self.close_connection = True
        if self.server.is_whole:
            self.wfile.write(data)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST


USAGE = {"prompt_tokens": 3, "completion_tokens": 2}
COMPLETION = {
    "choices": [
        {
            "index": 0,
            "text": "go</think>",
            "finish_reason": "stop",
            "token_ids": [5, 6],
            "logprobs": {"token_logprobs": [-0.5, -1.0], "tokens": ["a", "b"]},
            "prompt_logprobs": [None, {"2": {"logprob": -1.0}}, {"3": {"logprob": -0.1}}],
        }
    ],
    "usage": USAGE,
}
CHAT = {
    "choices": [
        {
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "go", "reasoning_content": "think"},
        }
    ],
    "usage": USAGE,
}
ECHO = {
    "choices": [
        {"index": 0, "logprobs": {"token_logprobs": [None, -1, -2], "tokens": ["a", "b", "c"]}}
    ]
}
MODELS = {"data": [{"id": "m", "max_model_len": 64}]}
FOUND = {
    "results": [{"id": 1, "title": "T", "text": "x"}],
    "result": [[{"document": {"contents": "a\nb"}}]],
}


def reply_reader(ask: Callable[[str], object], *answers: Any, form: Form = JSON) -> Make:
    """What a server's reply is read into."""

    def make(folder: Path) -> Reader:
        del folder
        server = AnyAnswer(is_whole=form is BYTES)

        def read(data: bytes) -> object:
            server.data = data
            return ask(server.url)

        return Reader(form, [_seed(answer, form) for answer in answers], read)

    return make


def _seed(answer: Any, form: Form) -> bytes:
    body = json.dumps(answer).encode()
    if form is not BYTES:
        return body
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _settings() -> Any:
    from ragen2.backends.settings import ServerSettings

    return ServerSettings(retries=0, timeout=SECONDS)


def ask_tokens(url: str) -> None:
    """Completions as ids, and the served context."""
    from ragen2.backends.remote.policy import ServerPolicy, served_context
    from ragen2.backends.remote.scorer import ServerScorer
    from ragen2.backends.scripted import ByteTokenizer
    from ragen2.policy import Request, SamplingParams

    policy = ServerPolicy(ServerScorer(url, "m", settings=_settings()), ByteTokenizer())
    served_context(policy.scorer)
    request = Request(np.array([1, 2, 3]), ("fuzz",))
    policy.sample([request], SamplingParams(max_tokens=4, stop=("</think>",)))
    policy.usage_line()


def ask_chat(url: str) -> None:
    """Replies of a chat."""
    from ragen2.backends.remote.policy import ChatServer
    from ragen2.policy import ChatRequest, SamplingParams
    from ragen2.types import Message

    chat = ChatServer(url, "m", settings=_settings())
    chat.reply([ChatRequest((Message("user", "x"),), ("fuzz",))], SamplingParams(max_tokens=4))
    chat.usage_line()


def ask_scores(url: str) -> None:
    """Log-probs of prompts, by ids and by texts, and the only model there is."""
    from ragen2.audit.likelihoods import server_and_model
    from ragen2.backends.remote.scorer import ServerScorer
    from ragen2.errors import RagenError
    from ragen2.policy import Pair

    scorer = ServerScorer(url, "m", settings=_settings())
    problems = []
    for ask in (
        lambda: scorer.score([Pair(np.array([1]), np.array([2, 3]))]),
        lambda: scorer.score_texts([("a", "bc")]),
        lambda: server_and_model(url),
    ):
        try:
            ask()
        except RagenError as error:
            problems.append(error)
    if len(problems) == 3:
        raise problems[0]


def ask_passages(url: str) -> None:
    """Passages of a retrieval server, in both protocols."""
    from ragen2.envs.search_qa.retrieval import RetrievalClient
    from ragen2.errors import EnvError

    problems = []
    for protocol in ("ragen", "search_r1"):
        try:
            RetrievalClient(url, protocol, timeout_seconds=SECONDS).search("x", 2)
        except EnvError as error:
            problems.append(error)
    if problems:
        raise problems[0]


class Complaints(logging.Handler):
    """Whatever a server logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.found.append(record)


def watch_reader(folder: Path) -> Reader:
    """Requests to ``ragen2 watch``: each is answered or hung up on, nothing is logged as an error."""
    from ragen2.reports import watch

    server = watch.open_watch([make_run(folder / "run")])
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    complaints = Complaints()
    watch.logger.addHandler(complaints)
    lines = [
        f"GET /?token={server.access.token} HTTP/1.1",
        f"GET /data.json?since=x&token={server.access.token} HTTP/1.1",
        f"HEAD http://localhost/block.json?name=r0-episodes-1&token={server.access.token} HTTP/1.0",
        "POST / HTTP/1.1",
    ]
    head = (
        f"Host: localhost\r\nCookie: a=b; {server.access.set_cookie}\r\nAccept-Encoding: gzip\r\n"
    )
    more = (
        f"Authorization: Bearer {server.access.token}\r\nContent-Length: 0\r\nConnection: close\r\n"
    )

    def read(data: bytes) -> None:
        with socket.create_connection(server.server_address[:2], timeout=SECONDS) as wire:
            try:
                wire.sendall(data)
                wire.shutdown(socket.SHUT_WR)
                while wire.recv(65536):
                    pass
            except TimeoutError:  # neither answered nor hung up on
                raise
            except OSError:
                pass
        if complaints.found:
            record = complaints.found.pop()
            raise (record.exc_info[1] if record.exc_info else None) or RuntimeError(record.msg)

    return Reader(BYTES, [f"{line}\r\n{head}{more}\r\n".encode() for line in lines], read)


WIRE: dict[str, Make] = {
    "reply: completions": reply_reader(ask_tokens, COMPLETION, {**COMPLETION, **MODELS}),
    "reply: chat": reply_reader(ask_chat, CHAT),
    "reply: scores": reply_reader(ask_scores, COMPLETION, ECHO, {**ECHO, **MODELS}),
    "reply: passages": reply_reader(ask_passages, FOUND),
    "reply: raw HTTP": reply_reader(ask_chat, CHAT, form=BYTES),
    "request to watch": watch_reader,
}
"""Every reader of HTTP, by name."""
