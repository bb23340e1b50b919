"""A server of the embedded model's tokenizer that answers by rule, and can be told to misbehave.

It has no network: a reply depends on prompt and seed alone, so that two runs can be compared byte by
byte, however often a request had to be made.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MOVES = ("Left", "Down", "Right", "Up")
MODEL = "tiny"
GOOD = "good"


def body_name(body: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=8).hexdigest()


class Behaviour:
    """What the server does with each try of a request, and what it has seen."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.lock = threading.Lock()
        self.tries: Counter[str] = Counter()
        self.delivered: Counter[str] = Counter()
        """Whole answers that were sent, by request."""
        self.faults: Counter[str] = Counter()
        self.inside = self.most_inside = 0
        self.release = threading.Event()
        """Set to let go of requests that are held."""
        self.held = threading.Semaphore(0)
        """Gets one more for each request that is held."""
        self.fault: Callable[[str, int], str] = lambda name, attempt: GOOD
        self.unknown: frozenset[str] = frozenset()
        """Settings that a request must not have."""
        self.is_chat_only = False
        self.seen: list[dict[str, Any]] = []
        self.connections: set[tuple[str, int]] = set()
        """Addresses that requests came from: one per connection."""
        self.question_status = 200

    def choose(self, name: str) -> str:
        """Count a try and say what happens to it."""
        with self.lock:
            self.tries[name] += 1
            chosen = self.fault(name, self.tries[name])
            if chosen != GOOD:
                self.faults[chosen] += 1
            return chosen

    @contextmanager
    def visit(self) -> Iterator[None]:
        with self.lock:
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        yield
        with self.lock:
            self.inside -= 1

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        if "messages" in body:
            return self._chat(body)
        if body.get("echo"):
            prompts = [
                self.tokenizer.encode(one, add_special_tokens=False)
                if isinstance(one, str)
                else one
                for one in body["prompt"]
            ]
            choices = [self._scored(i, ids) for i, ids in enumerate(prompts)]
            read = sum(len(ids) for ids in prompts)
            return {
                "choices": choices,
                "usage": {"prompt_tokens": read, "completion_tokens": 0},
            }
        drawn = int(body_name({"prompt": body["prompt"], "seed": body["seed"]}), 16)
        move = MOVES[drawn % 4]
        text = f" I go {move.lower()}</think><answer>{move}</answer>"
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        logprobs = [-0.25 * (1 + token % 5) for token in ids]
        choice = {
            "index": 0,
            "text": text,
            "token_ids": ids,
            "logprobs": {"token_logprobs": logprobs},
            "finish_reason": "stop",
        }
        used = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
        return {"choices": [choice], "usage": used}

    def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Words that depend on the conversation and the seed; some go on after their answer."""
        drawn = int(body_name({"messages": body["messages"], "seed": body.get("seed")}), 16)
        move = MOVES[drawn % 4]
        more = "\nGood luck!" if drawn % 3 == 0 else ""
        text = f"\n<think>I go {move.lower()}</think>\n<answer>{move}</answer>{more}"
        read = sum(len(one["content"].split()) for one in body["messages"])
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }
        used = {"prompt_tokens": read, "completion_tokens": len(text.split())}
        return {"choices": [choice], "usage": used}

    def _scored(self, index: int, ids: list[int]) -> dict[str, Any]:
        """Log-probs that depend on the token and on the whole prompt, as a model's do."""
        salt = int(body_name({"ids": ids[:-1]}), 16)
        values = [None, *(-0.1 - ((token * 31 + salt) % 97) / 50 for token in ids[1:])]
        logprobs = {"tokens": [str(i) for i in ids], "token_logprobs": values}
        return {"index": index, "logprobs": logprobs}


class Handler(BaseHTTPRequestHandler):
    """Sends what the behaviour decides, well or badly."""

    protocol_version = "HTTP/1.1"
    # Head and body are two small writes: on a connection that is used again, the second would wait 40 ms.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        status = self.server.behaviour.question_status
        models = {"data": [{"id": MODEL, "max_model_len": 2048}], "error": "no list"}
        self._send(json.dumps(models).encode(), status)

    def do_POST(self) -> None:
        behaviour: Behaviour = self.server.behaviour
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = body_name(body)
        with behaviour.lock:
            behaviour.seen.append(body)
            behaviour.connections.add(self.client_address)
        if behaviour.is_chat_only and not self.path.endswith("/v1/chat/completions"):
            self._send(b'{"error": {"message": "this is a chat model"}}', 404)
            return
        if bad := sorted(behaviour.unknown & body.keys()):
            self._send(json.dumps({"error": f"unknown setting {bad[0]}"}).encode(), 400)
            return
        with behaviour.visit():
            getattr(self, f"_{behaviour.choose(name)}")(behaviour, body, name)

    def _good(self, behaviour: Behaviour, body: dict[str, Any], name: str) -> None:
        self._send(json.dumps(behaviour.answer(body)).encode())
        with behaviour.lock:
            behaviour.delivered[name] += 1

    def _busy(self, *_: Any) -> None:
        self._send(b'{"error": {"message": "slow down"}}', 429, {"Retry-After": "0"})

    def _broken(self, *_: Any) -> None:
        self._send(b"<h1>oh no</h1>", 500)

    def _gone(self, *_: Any) -> None:
        self._send(b'{"message": "loading"}', 503)

    def _garbled(self, behaviour: Behaviour, body: dict[str, Any], _: str) -> None:
        self._send(json.dumps(behaviour.answer(body)).encode()[:-9])

    def _empty(self, *_: Any) -> None:
        self._send(b'{"object": "nothing"}')

    def _denied(self, *_: Any) -> None:
        self._send(b'{"error": {"message": "wrong key"}}', 401)

    def _later(self, *_: Any) -> None:
        self._send(b'{"error": "quota"}', 429, {"Retry-After": "3600"})

    def _aborted(self, behaviour: Behaviour, body: dict[str, Any], _: str) -> None:
        found = behaviour.answer(body)
        for choice in found["choices"]:
            choice["finish_reason"] = "abort"
        self._send(json.dumps(found).encode())

    def _cut(self, behaviour: Behaviour, body: dict[str, Any], _: str) -> None:
        """Promise all, send half, hang up."""
        whole = json.dumps(behaviour.answer(body)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(whole)))
        self.end_headers()
        self.wfile.write(whole[: len(whole) // 2])
        self.close_connection = True

    def _cut_stream(self, behaviour: Behaviour, body: dict[str, Any], _: str) -> None:
        """One chunk of a chunked answer, and not the last."""
        whole = json.dumps(behaviour.answer(body)).encode()
        half = whole[: len(whole) // 2]
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(f"{len(half):x}\r\n".encode() + half + b"\r\n")
        self.close_connection = True

    def _hung_up(self, *_: Any) -> None:
        self.close_connection = True

    def _held(self, behaviour: Behaviour, body: dict[str, Any], name: str) -> None:
        """Nothing until it is let go."""
        behaviour.held.release()
        behaviour.release.wait(60)
        self.close_connection = True

    def _slow(self, *_: Any) -> None:
        self.server.behaviour.release.wait(4.0)
        self.close_connection = True

    def _dripping(self, behaviour: Behaviour, body: dict[str, Any], _: str) -> None:
        """Byte by byte, for ten seconds."""
        whole = json.dumps(behaviour.answer(body)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(whole)))
        self.end_headers()
        for at in range(200):
            self.wfile.write(whole[at : at + 1])
            self.wfile.flush()
            if behaviour.release.wait(0.05):
                break
        self.close_connection = True

    def _send(self, text: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(text))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nothing on the console."""


class Server(ThreadingHTTPServer):
    """Threads that end with the test; a client that hung up is no news."""

    daemon_threads = True
    request_queue_size = 64
    block_on_close = False
    behaviour: Behaviour

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing on the console."""


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[str]:
    """The address of a server that behaves so."""
    server = Server(("127.0.0.1", 0), Handler)
    server.behaviour = behaviour
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        behaviour.release.set()
        server.shutdown()
        server.server_close()
        thread.join()
