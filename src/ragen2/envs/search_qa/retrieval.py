"""Where SearchQA sends a query: an index of its own, by words or by meaning, or a server.

A server is asked in one of the two dialects that search-agent projects use, by POST to ``/retrieve``.
``ragen``: ``{"query", "top_k"}`` -> ``{"results": [{"id", "content", "score"}]}``.
``search_r1``: ``{"queries", "topk", "return_scores"}`` -> ``{"result": [[{"document": {"id",
"contents"}, "score"}]]}``. A server that fails stops the run: its error never becomes something an
agent reads.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from ragen2.consent import LOOPBACK
from ragen2.envs.search_qa.records import Passage, passage_of_contents
from ragen2.errors import ConfigError, EnvError
from ragen2.reading import parse_json

Dialect = Literal["ragen", "search_r1"]

SECONDS_BEFORE_ATTEMPTS = (0.0, 0.5, 1.0)
"""Pauses before each try of a request; only failures that may pass are met with another try."""
LONGEST = 64 * 2**20
"""Bytes of an answer."""


class Index(Protocol):
    """Finds positions in a sequence of texts."""

    def search(self, query: str, top: int) -> list[tuple[int, float]]:
        """(position, score) of the ``top`` best, best first."""


class Retriever(Protocol):
    """Finds passages."""

    def search(self, query: str, top: int) -> list[Passage]:
        """The ``top`` best passages, best first."""


class LocalRetriever:
    """Passages in memory, found through an index of their searchable texts."""

    def __init__(self, passages: Sequence[Passage], index: Index) -> None:
        self.passages = passages
        self.index = index

    def search(self, query: str, top: int) -> list[Passage]:
        """The ``top`` best passages, best first."""
        return [self.passages[position] for position, _ in self.index.search(query, top)]


def searchable_text(passage: Passage) -> str:
    """What an index reads of a passage.

    The title counts twice: on HotpotQA two searches then find both gold passages of 97.0% of the
    questions, with the title once 96.0%.
    """
    return f"{passage.title} {passage.title} {passage.text}"


class RetrievalClient:
    """Asks a server at ``url`` (with or without ``/retrieve``) for passages."""

    def __init__(self, url: str, protocol: Dialect, *, timeout_seconds: float = 30.0) -> None:
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise ConfigError(f"server_url {url!r} is no address: {error}") from error
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(f"server_url must look like http://host:port, got {url!r}")
        base = url.rstrip("/")
        self.url = base if base.endswith("/retrieve") else f"{base}/retrieve"
        self.protocol = protocol
        self.timeout_seconds = timeout_seconds
        # A proxy of the environment cannot reach this machine's own loopback server.
        proxies = urllib.request.ProxyHandler({} if parts.hostname in LOOPBACK else None)
        self._opener = urllib.request.build_opener(proxies)

    def search(self, query: str, top: int) -> list[Passage]:
        """The ``top`` passages for one query, best first."""
        return self.search_many([query], top)[0]

    def search_many(self, queries: Sequence[str], top: int) -> list[list[Passage]]:
        """``search`` for each query; one request in all where the protocol has batches."""
        try:
            if self.protocol == "ragen":
                return [self._ask_one(query, top) for query in queries]
            return self._ask_batch(list(queries), top)
        except (KeyError, TypeError, AttributeError) as error:
            raise EnvError(
                f"retrieval server {self.url} does not answer in the {self.protocol} protocol "
                f"({type(error).__name__}: {error}); set server_protocol to what it speaks"
            ) from error

    def _ask_one(self, query: str, top: int) -> list[Passage]:
        answer = self._post({"query": query, "top_k": top})
        return [_passage(document) for document in answer["results"][:top]]

    def _ask_batch(self, queries: list[str], top: int) -> list[list[Passage]]:
        answer = self._post({"queries": queries, "topk": top, "return_scores": True})["result"]
        if len(answer) != len(queries):
            raise EnvError(
                f"retrieval server {self.url} gave {len(answer)} lists for {len(queries)} queries; "
                "restart it"
            )
        return [
            # Servers that know no scores give the documents bare.
            [_passage(found.get("document", found)) for found in result[:top]]
            for result in answer
        ]

    def _post(self, body: dict[str, Any]) -> Any:
        data = json.dumps(body).encode()
        failure: _Passing | None = None
        for pause in SECONDS_BEFORE_ATTEMPTS:
            time.sleep(pause)
            try:
                return self._post_once(data)
            except _Passing as error:
                failure = error
        raise EnvError(
            f"retrieval server {self.url} failed {len(SECONDS_BEFORE_ATTEMPTS)} times ({failure}); "
            "start it, or correct server_url"
        ) from failure

    def _post_once(self, data: bytes) -> Any:
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked in __init__
            self.url, data=data, headers={"Content-Type": "application/json"}, method="POST"
        )
        try:
            with self._opener.open(request, timeout=self.timeout_seconds) as response:
                return parse_json(_body(response))
        except urllib.error.HTTPError as error:
            if error.code >= 500:
                raise _Passing(f"HTTP {error.code}") from error
            raise EnvError(
                f"retrieval server {self.url} refused the request with HTTP {error.code}; "
                "check server_url and server_protocol"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise _Passing(str(getattr(error, "reason", error))) from error
        except ValueError as error:
            raise EnvError(
                f"retrieval server {self.url} answered something that is not JSON ({error}); "
                "check server_url"
            ) from error


class _Passing(Exception):
    """A failure that another attempt may not meet."""


def _body(response: Any) -> bytes:
    found: bytes = response.read(LONGEST + 1)
    if len(found) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST // 2**20} MB")
    return found


def _passage(document: dict[str, Any]) -> Passage:
    identity = str(document.get("id", ""))
    if "text" in document:
        return Passage(identity, str(document.get("title") or ""), str(document["text"]))
    contents = document["contents"] if "contents" in document else document["content"]
    return passage_of_contents(identity, str(contents))
