"""HTTP to one server that takes and returns JSON: httpx's connections, our retries, failures in one line."""

from __future__ import annotations

import email.utils
import functools
import hashlib
import json
import logging
import os
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Self, TypeVar

import httpx

from ragen2.backends.settings import ServerSettings
from ragen2.consent import LOOPBACK
from ragen2.errors import ConfigError, ModelError, RagenError
from ragen2.reading import parse_json
from ragen2.seeding import stream

logger = logging.getLogger(__name__)

Answer = dict[str, Any]
Form = TypeVar("Form")
Result = TypeVar("Result")

NOT_NOW = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS}
"""Refusals that another try may change; so may every answer from 500 on."""
REFUSED = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}
"""Answers to a request whose form the server does not take."""
NOT_THERE = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}
"""Answers of a server that has no such address."""
JITTER = 0.5
"""A wait is stretched or shortened by up to this share, so that many clients do not come back as one."""
MILLION = 1_000_000
LONGEST = 256 * 2**20
"""Bytes of an answer, unpacked: the log-probs of long prompts take tens of millions."""


class BadAnswer(Exception):
    """The server answered what cannot be an answer: cut, garbled or empty. Another try may be good."""


class Refused(Exception):
    """The server does not take a request of this form; one argument per form that was tried."""


class Missing(ModelError):
    """The server has no such address, or no such model."""


class Stopped(Exception):
    """Nobody waits for this answer any more."""


class _Trouble(Exception):
    """A try that failed, in a way that the next one need not."""

    def __init__(self, text: str, seconds_asked: float | None = None) -> None:
        super().__init__(text)
        self.seconds_asked = seconds_asked


@dataclass(slots=True)
class Usage:
    """Totals so far, added up from many threads.

    Tokens are those that the server itself counted in answers that arrived.
    """

    requests: int = 0
    failures: int = 0
    """Tries that brought no usable answer; each was made again or ended the run."""
    prompt_tokens: int = 0
    written_tokens: int = 0
    uncounted: int = 0
    """Answers that did not say how many tokens they took."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add_failure(self) -> None:
        """Count a try without a usable answer."""
        with self._lock:
            self.failures += 1

    def add_answer(self, answer: Answer, *, has_tokens: bool = True) -> None:
        """Count an answer, with the tokens it says it took; one to a mere question took none."""
        said = answer.get("usage")
        counts = said if isinstance(said, dict) else {}
        with self._lock:
            self.requests += 1
            self.prompt_tokens += _count(counts.get("prompt_tokens"))
            self.written_tokens += _count(counts.get("completion_tokens"))
            self.uncounted += has_tokens and not counts

    def cost(self, settings: ServerSettings) -> float | None:
        """Money in the unit of the prices; None when no price is set."""
        if not settings.input_price and not settings.output_price:
            return None
        total = (
            self.prompt_tokens * settings.input_price + self.written_tokens * settings.output_price
        )
        return total / MILLION

    def line(self, settings: ServerSettings) -> str:
        """All of it for a person to read."""
        parts = [
            f"{self.requests:,} requests",
            f"{self.prompt_tokens:,} prompt tokens",
            f"{self.written_tokens:,} written tokens",
        ]
        if self.failures:
            parts.insert(1, f"{self.failures:,} failed tries")
        if self.uncounted:
            parts.append(f"{self.uncounted:,} answers without a count of tokens")
        cost = self.cost(settings)
        if cost is not None:
            parts.append(f"cost {cost:.4f}")
        return f"server: {', '.join(parts)}"


class ServerClient:
    """Requests to one server, from many threads, until it is closed; ``url`` is its root or its ``/v1``.

    It lives as long as one batch of requests: within that, connections are used again.
    """

    def __init__(
        self, url: str, settings: ServerSettings | None = None, usage: Usage | None = None
    ) -> None:
        self.root = url.rstrip("/").removesuffix("/v1")
        self.settings = settings or ServerSettings()
        self.stopped = threading.Event()
        """Once set, a call that waits for its next try gives up."""
        self._usage = usage or Usage()
        self._http = _open_http(self.root, self.settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def post(self, path: str, body: Answer, read: Callable[[Answer], Result]) -> Result:
        """What ``read`` makes of the answer to ``body``; a ``BadAnswer`` of it is asked for again.

        A request whose form is not taken raises ``Refused``.
        """
        return self._ask(path, json.dumps(body).encode(), read)

    def get(self, path: str, read: Callable[[Answer], Result]) -> Result:
        """What ``read`` makes of the answer to a request without a body."""
        try:
            return self._ask(path, None, read)
        except Refused as error:  # there is no form of it to choose
            raise ModelError(f"{self.root}/{path} refused the request: {error}") from error

    def _ask(self, path: str, sent: bytes | None, read: Callable[[Answer], Result]) -> Result:
        url = f"{self.root}/{path}"
        tries = self.settings.retries + 1
        for attempt in range(1, tries + 1):
            try:
                answer = self._once(url, sent)
                found = _read(answer, read)
            except BadAnswer as error:
                trouble = _Trouble(f"answered {error}")
            except _Trouble as error:
                trouble = error
            else:
                self._usage.add_answer(answer, has_tokens=sent is not None)
                return found
            self._usage.add_failure()
            if attempt < tries:
                self._wait(url, sent or b"", attempt, trouble)
        raise ModelError(f"{url} {trouble} ({tries} tries); check the address and the server")

    def _wait(self, url: str, sent: bytes, attempt: int, trouble: _Trouble) -> None:
        longest, asked = self.settings.longest_wait, trouble.seconds_asked
        if asked is not None and asked > longest:
            raise ModelError(
                f"{url} {trouble}; it asks to wait {asked:.0f} s, more than server.longest_wait "
                f"({longest:.0f} s); raise that, or come back later"
            )
        seconds = wait_seconds(self.settings, sent, attempt, asked)
        logger.info("%s %s; again in %.1f s", url, trouble, seconds)
        if self.stopped.wait(seconds):
            raise Stopped

    def _once(self, url: str, sent: bytes | None) -> Answer:
        """The answer to one try; what no other try can cure is raised as it is."""
        deadline = time.monotonic() + self.settings.timeout
        method = "GET" if sent is None else "POST"
        try:
            with self._http.stream(method, url, content=sent) as response:
                text = _read_until(response, deadline)
        except httpx.HTTPError as error:
            reason = str(error).rstrip(".") or type(error).__name__
            raise _Trouble(f"cannot be reached: {reason}") from error
        if not response.is_success:
            raise _failure(url, response, text)
        try:
            found = parse_json(text)
        except ValueError as error:
            raise BadAnswer(f"no JSON: {text[:80]!r}") from error
        if not isinstance(found, dict):
            raise BadAnswer(f"{type(found).__name__}, not a JSON object")
        return found


def _read(answer: Answer, read: Callable[[Answer], Result]) -> Result:
    """What ``read`` makes of an answer; where something is not what it should be, it is a bad one."""
    try:
        return read(answer)
    except RagenError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        text = f"in another form ({type(error).__name__}: {error}): {answer}"
        raise BadAnswer(" ".join(text.split())[:200]) from error


def _count(value: Any) -> int:
    """A count of tokens, as far as it is one."""
    return value if isinstance(value, int) and value > 0 else 0


def _open_http(root: str, settings: ServerSettings) -> httpx.Client:
    address = _address(root, settings)
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get(settings.api_key_env, "").strip():
        if not (key.isascii() and key.isprintable()):  # said without the key, which is a secret
            raise ConfigError(
                f"the variable {settings.api_key_env} holds characters that no key has"
            )
        headers["Authorization"] = f"Bearer {key}"
    many = settings.concurrency
    try:
        return httpx.Client(
            headers=headers,
            timeout=settings.timeout,
            limits=httpx.Limits(max_connections=many, max_keepalive_connections=many),
            follow_redirects=True,
            verify=_certificates(),
            proxy=_proxy(address),
            trust_env=False,  # proxies and certificates are those above
        )
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        raise ConfigError(
            f"the proxy of this machine cannot be used: {error}; unset it, or add the server to NO_PROXY"
        ) from error


def _address(root: str, settings: ServerSettings) -> httpx.URL:
    try:
        address = httpx.URL(root)
        is_address = root.startswith(("http://", "https://")) and bool(address.host)
    except httpx.InvalidURL:
        is_address = False
    if not is_address:
        raise ConfigError(f"{root} is no address of a server; it starts with http:// or https://")
    if address.userinfo:  # messages and records name the address
        raise ConfigError(
            f"the address of the server at {address.host} holds a name or a password, which would be "
            f"shown; leave it out, and put a key into the variable {settings.api_key_env}"
        )
    return address


def _proxy(address: httpx.URL) -> str | None:
    """The proxy that this machine has for an address.

    Read by the standard library, which knows more forms of NO_PROXY: httpx fails over "[::1]" and "::1/128",
    and over a proxy that it cannot use even where NO_PROXY names the server.
    """
    found = urllib.request.getproxies().get(address.scheme)
    if (
        address.host in LOOPBACK
        or not found
        or urllib.request.proxy_bypass(address.netloc.decode())
    ):
        return None
    return found if "://" in found else f"http://{found}"


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Those that this machine trusts, where httpx has a list of its own; loading them takes a while."""
    return ssl.create_default_context()


def _read_until(response: httpx.Response, deadline: float) -> bytes:
    """The whole body. httpx limits each single read; a body that comes in drops must end in time too."""
    parts, size = [], 0
    try:
        for part in response.iter_bytes():
            parts.append(part)
            size += len(part)
            if size > LONGEST:
                raise httpx.ReadError(f"an answer of more than {LONGEST // 2**20} MB")
            if time.monotonic() > deadline:
                raise httpx.ReadTimeout("timed out")
    except httpx.HTTPError:
        if response.is_success:
            raise
        return b""  # the explanation of a failure was cut; the status is enough to go on
    return b"".join(parts)


def _failure(url: str, response: httpx.Response, text: bytes) -> Exception:
    """What to raise for an answer that says no."""
    code, reason = response.status_code, _explanation(text) or response.reason_phrase
    if code in REFUSED:
        return Refused(reason)
    if code in NOT_THERE:
        return Missing(f"{url} answered {code}: {reason}")
    if code not in NOT_NOW and code < HTTPStatus.INTERNAL_SERVER_ERROR:
        return ModelError(f"{url} answered {code}: {reason}")
    return _Trouble(f"answered {code}: {reason}", seconds_asked(response.headers))


def _explanation(text: bytes) -> str:
    """What the server says is wrong, in one line, wherever it puts it."""
    try:
        found = parse_json(text)
    except ValueError:
        found = text.decode(errors="replace")
    if isinstance(found, dict):
        inner = found.get("error", found)
        found = inner.get("message", inner) if isinstance(inner, dict) else inner
    return " ".join(str(found).split())[:200]


def wait_seconds(settings: ServerSettings, sent: bytes, attempt: int, asked: float | None) -> float:
    """Seconds before the try after ``attempt``: doubled each time, jittered, never less than asked.

    The jitter is drawn from a stream named after the request, so a run that is repeated waits alike.
    """
    name = hashlib.blake2b(sent, digest_size=16).hexdigest()
    draw = stream("backoff", name, attempt).uniform(1.0 - JITTER, 1.0 + JITTER)
    own: float = min(settings.longest_wait, settings.backoff * 2.0 ** (attempt - 1) * draw)
    return max(own, asked or 0.0)


def seconds_asked(headers: Mapping[str, str]) -> float | None:
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


def first_taken(forms: Iterable[Form], ask: Callable[[Form], Result]) -> tuple[Form, Result]:
    """The first form of a request that the server takes, and its answer; ``Refused`` when it takes none."""
    reasons = []
    for form in forms:
        try:
            return form, ask(form)
        except Refused as error:
            reasons.append(str(error))
    raise Refused(*reasons)
