"""A small retrieval server: ``python -m ragen2.envs.search_qa.server --corpus FILE``.

It answers ``POST /retrieve`` in both dialects of ``retrieval`` and ``GET /health``, from a
BM25 index of the corpus, or of the generated world where no corpus is given. It listens on the
loopback address unless ``--host`` names another.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ragen2.envs.search_qa.records import Passage, read_passages
from ragen2.envs.search_qa.retrieval import searchable_text
from ragen2.envs.search_qa.world import load_world
from ragen2.envs.toolkit.text_index import TextIndex
from ragen2.errors import RagenError

MAX_BODY_BYTES = 4 << 20
MAX_TOP = 100
DEFAULT_TOP = 5


class BadRequest(Exception):
    """A request that cannot be answered; its text goes back to the caller."""


class RetrievalServer(ThreadingHTTPServer):
    """An HTTP server that holds passages and their index."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], passages: Sequence[Passage]) -> None:
        self.passages = passages
        self.index = TextIndex.cached([searchable_text(passage) for passage in passages])
        super().__init__(address, _Handler)

    def answer(self, body: Any) -> dict[str, Any]:
        """The reply to one request body; ``BadRequest`` says what is wrong with the body."""
        if not isinstance(body, dict):
            raise BadRequest("the body must be a JSON object")
        if "queries" in body:
            queries = body["queries"]
            if not isinstance(queries, list) or not all(isinstance(one, str) for one in queries):
                raise BadRequest("queries must be a list of strings")
            top = _top(body.get("topk"))
            return {"result": [self._documents(query, top) for query in queries]}
        if not isinstance(body.get("query"), str):
            raise BadRequest("the body needs query (a string) or queries (a list of strings)")
        found = self._documents(body["query"], _top(body.get("top_k")))
        return {
            "results": [
                {
                    "id": one["document"]["id"],
                    "content": one["document"]["contents"],
                    "score": one["score"],
                }
                for one in found
            ]
        }

    def _documents(self, query: str, top: int) -> list[dict[str, Any]]:
        return [
            {"document": _document(self.passages[position]), "score": score}
            for position, score in self.index.search(query, top)
        ]


class _Handler(BaseHTTPRequestHandler):
    server: RetrievalServer

    def do_GET(self) -> None:
        if self.path == "/health":
            self._reply(200, {"status": "ok", "num_passages": len(self.server.passages)})
        else:
            self._reply(404, {"error": "there is GET /health and POST /retrieve"})

    def do_POST(self) -> None:
        if self.path.rstrip("/") != "/retrieve":
            self._reply(404, {"error": "there is GET /health and POST /retrieve"})
            return
        try:
            self._reply(200, self.server.answer(json.loads(self._body())))
        except (BadRequest, ValueError, RecursionError) as error:
            self._reply(400, {"error": str(error)})

    def log_message(self, format: str, *args: Any) -> None:
        """One line per request would drown whatever else the terminal shows."""

    def _body(self) -> bytes:
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 < length <= MAX_BODY_BYTES:
            raise BadRequest(f"the body must have 1 to {MAX_BODY_BYTES} bytes, not {length}")
        return self.rfile.read(length)

    def _reply(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until interrupted; the first line on standard output says where."""
    parser = argparse.ArgumentParser(prog="python -m ragen2.envs.search_qa.server")
    parser.add_argument("--corpus", help="passage file or hub id; the generated world if left out")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="port; 0 takes a free one")
    parser.add_argument("--num-passages", type=int, default=20_000, help="size of that world")
    parser.add_argument("--world-seed", type=int, default=0, help="seed of that world")
    options = parser.parse_args(arguments)
    try:
        passages = (
            read_passages(options.corpus)
            if options.corpus
            else load_world(options.num_passages, options.world_seed).passages
        )
        server = RetrievalServer((options.host, options.port), passages)
    except (RagenError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    host, port = server.server_address[:2]
    sys.stdout.write(f"serving {len(passages)} passages at http://{host!s}:{port}\n")
    sys.stdout.flush()
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 130
    return 0


def _top(value: Any) -> int:
    if value is None:
        return DEFAULT_TOP
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadRequest(f"the number of passages must be a whole number above 0, got {value!r}")
    return min(value, MAX_TOP)


def _document(passage: Passage) -> dict[str, str]:
    """Search-R1's form: the quoted title is the first line of the contents."""
    contents = f'"{passage.title}"\n{passage.text}' if passage.title else passage.text
    return {"id": passage.id, "contents": contents}


if __name__ == "__main__":
    sys.exit(main())
