"""A model behind an OpenAI-compatible server that streams: it plays by rule, now and then badly."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MOVES = ("Left", "Down", "Right", "Up")


def written(conversation: Sequence[str]) -> str:
    """What the model says after these messages; one reply in five forgets its tags."""
    drawn = int(hashlib.blake2b("\0".join(conversation).encode(), digest_size=4).hexdigest(), 16)
    move = MOVES[drawn % 4]
    if drawn % 5 == 0:
        return f"I go {move}"
    return f"<think>{move} looks good</think><answer>{move}</answer>"


class Handler(BaseHTTPRequestHandler):
    """Answers whole or in a stream, as asked."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = written([message["content"] for message in body["messages"]])
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        if not body.get("stream"):
            message = {"role": "assistant", "content": text}
            self._send("application/json", json.dumps(answer({"message": message}, usage)))
            return
        parts = [
            answer({"delta": {"role": "assistant", "content": text}, "finish_reason": None}),
            answer({"delta": {}}),
            {**answer({"delta": {}}, usage), "choices": []},
        ]
        lines = [f"data: {json.dumps(part)}\n\n" for part in parts]
        self._send("text/event-stream", "".join([*lines, "data: [DONE]\n\n"]))

    def _send(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Nothing on the console."""


def answer(choice: dict[str, Any], usage: dict[str, int] | None = None) -> dict[str, Any]:
    kind = "chat.completion" if "message" in choice else "chat.completion.chunk"
    return {
        "id": "x",
        "object": kind,
        "created": 0,
        "model": "rule",
        "choices": [{"index": 0, "finish_reason": "stop", **choice}],
        "usage": usage,
    }


@contextmanager
def serving() -> Iterator[str]:
    """The address of the model."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
