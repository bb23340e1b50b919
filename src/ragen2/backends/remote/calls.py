"""One HTTP endpoint that takes and returns JSON: retries, and failures in one line."""

from __future__ import annotations

import email.utils
import hashlib
import json
import logging
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, TypeVar

from ragen2.backends.remote.settings import ServerSettings
from ragen2.backends.remote.usage import Meter
from ragen2.errors import ConfigError, ModelError
from ragen2.seeding import stream

logger = logging.getLogger(__name__)

Answer = dict[str, Any]
Read = TypeVar("Read")

NOT_NOW = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS}
"""Refusals that another try may change; so may every answer from 500 on."""
REFUSED = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}
"""Answers to a request whose form the server does not take."""
NOT_THERE = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}
"""Answers of a server that has no such address."""
READ_BYTES = 65_536
JITTER = 0.5
"""A wait is stretched or shortened by up to this share, so that many clients do not come back as one."""


class BadAnswer(Exception):
    """The server answered what cannot be an answer: cut, garbled or empty. Another try may be good."""


class Missing(ModelError):
    """The server has no such address, or no such model."""


class Stopped(Exception):
    """Nobody waits for this answer any more."""


def root_of(url: str) -> str:
    """The server's root, of its address with or without ``/v1``."""
    return url.rstrip("/").removesuffix("/v1")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to post, how patiently, and who counts what it takes."""

    url: str
    settings: ServerSettings = field(default_factory=ServerSettings)
    meter: Meter = field(default_factory=Meter)
    stopped: threading.Event = field(default_factory=threading.Event)
    """Once set, a call that waits for its next try gives up."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"{self.url} is no address of a server; it starts with http:// or https://"
            )

    def post(
        self, body: Answer, *, refused: type[Exception], read: Callable[[Answer], Read]
    ) -> Read:
        """What ``read`` makes of the answer to ``body``; a ``BadAnswer`` of it is asked for again.

        A request whose form is not taken raises ``refused``.
        """
        return self._ask(json.dumps(body).encode(), refused, read)

    def get(self, read: Callable[[Answer], Read]) -> Read:
        """What ``read`` makes of the answer to a request without a body."""
        return self._ask(None, ModelError, read)

    def _ask(
        self, sent: bytes | None, refused: type[Exception], read: Callable[[Answer], Read]
    ) -> Read:
        tries = self.settings.retries + 1
        for attempt in range(1, tries + 1):
            asked: float | None = None
            try:
                answer = self._once(sent)
                found = read(answer)
                self.meter.answered(answer, has_tokens=sent is not None)
            except urllib.error.HTTPError as error:
                told = _server_words(error)
                if error.code in REFUSED:
                    raise refused(told) from error
                if error.code in NOT_THERE:
                    raise Missing(f"{self.url} answered {error.code}: {told}") from error
                if error.code not in NOT_NOW and error.code < HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise ModelError(f"{self.url} answered {error.code}: {told}") from error
                trouble, asked = f"answered {error.code}: {told}", seconds_asked(error.headers)
            except BadAnswer as error:
                trouble = f"answered {error}"
            except (OSError, HTTPException) as error:
                trouble = f"cannot be reached: {getattr(error, 'reason', None) or error!r}"
            else:
                return found
            self.meter.failed()
            if attempt < tries:
                self._wait(sent or b"", attempt, asked, trouble)
        raise ModelError(f"{self.url} {trouble} ({tries} tries); check the address and the server")

    def _wait(self, sent: bytes, attempt: int, asked: float | None, trouble: str) -> None:
        if asked is not None and asked > self.settings.longest_wait:
            raise ModelError(
                f"{self.url} {trouble}; it asks to wait {asked:.0f} s, more than server.longest_wait "
                f"({self.settings.longest_wait:.0f} s); raise that, or come back later"
            )
        seconds = wait_seconds(self.settings, sent, attempt, asked)
        logger.info("%s %s; again in %.1f s", self.url, trouble, seconds)
        if self.stopped.wait(seconds):
            raise Stopped

    def _once(self, sent: bytes | None) -> Answer:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self.settings.api_key_env, ""):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked above
            self.url, sent, headers, method="GET" if sent is None else "POST"
        )
        timeout = self.settings.timeout
        deadline = time.monotonic() + timeout
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310 - as above
            text = _read_until(answer, deadline)
        try:
            found = json.loads(text)
        except ValueError as error:
            raise BadAnswer(f"no JSON: {text[:80]!r}") from error
        if not isinstance(found, dict):
            raise BadAnswer(f"{type(found).__name__}, not a JSON object")
        return found


def _read_until(answer: Any, deadline: float) -> bytes:
    """The whole body; one that comes in drops keeps every single read short, but must end in time."""
    parts = []
    while part := answer.read1(READ_BYTES):
        parts.append(part)
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return b"".join(parts)


def wait_seconds(settings: ServerSettings, sent: bytes, attempt: int, asked: float | None) -> float:
    """Seconds before the try after ``attempt``: doubled each time, jittered, never less than asked.

    The jitter is drawn from a stream named after the request, so a run that is repeated waits alike.
    """
    name = hashlib.blake2b(sent, digest_size=16).hexdigest()
    draw = stream("backoff", name, attempt).uniform(1.0 - JITTER, 1.0 + JITTER)
    own: float = min(settings.longest_wait, settings.backoff * 2.0 ** (attempt - 1) * draw)
    return max(own, asked or 0.0)


def seconds_asked(headers: Any) -> float | None:
    """Seconds that the header ``Retry-After`` asks for, as a number or as a date; None without one."""
    text = (headers.get("Retry-After") or "").strip()
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass  # then it is a date
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None  # neither of the two forms there are: as if it were not there


def _server_words(error: urllib.error.HTTPError) -> str:
    """What the server says is wrong, in one line, wherever it puts it."""
    try:
        text = error.read().decode(errors="replace")
    except (OSError, HTTPException):
        return str(error.reason)  # the explanation was cut; the status is enough to go on
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    if isinstance(found, dict):
        inner = found.get("error", found)
        found = inner.get("message", inner) if isinstance(inner, dict) else inner
    return " ".join(str(found).split())[:200] or str(error.reason)
