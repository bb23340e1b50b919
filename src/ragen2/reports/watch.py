"""Run directories as they are now, and the server of ``ragen2 watch`` that shows them on one page.

A page's data is built once per change of the files. No file is ever looked up by what a request says: three
paths are known, the rest is 404.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import ipaddress
import logging
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ragen2.errors import ConfigError, RunError
from ragen2.reports.data.report import report_of
from ragen2.reports.load import AUDIT, RUN_FILE, Run, load, load_audit, read_settings
from ragen2.reports.page import render, script_json
from ragen2.runs.files import PARTIAL
from ragen2.runs.lock import LOCK
from ragen2.runs.store import RecordTail

POLL_S = 0.5
"""Seconds between a page's questions: with the time to build, a step shows well within two."""
RETRY_S = 2.0
"""Seconds after which files that could not be read are tried again."""
WATCHED = (RUN_FILE, "steps.jsonl", "sessions.jsonl", "checkpoints", AUDIT)
"""What changes when there is something new: a step's rollouts and scores are there before its record."""
Data = dict[str, Any]
Blocks = Mapping[str, Callable[[], Any]]
"""Heavy parts by name, each made when it is asked for."""


class Followed:
    """Directories that are read again and again; of each only what was added."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._tails = {path: RecordTail(path / "steps.jsonl") for path in paths}
        for path in paths:
            check(path)

    def runs(self) -> list[Run]:
        """Each as it is now; one that is not there yet is a run without settings and records."""
        return [self._read(path, tail) for path, tail in self._tails.items()]

    def _read(self, path: Path, tail: RecordTail) -> Run:
        if (path / RUN_FILE).is_file():
            return Run(path, read_settings(path / RUN_FILE), tail.records())
        if (path / AUDIT).is_file():
            return load_audit(path)
        return Run(path, {}, ())


def is_there(path: Path) -> bool:
    """Whether there is a run or an audit to show; if not, one may still come."""
    return (path / RUN_FILE).is_file() or (path / AUDIT).is_file()


def check(path: Path) -> None:
    """Raise when ``path`` is something else already, so that no run can come to be there."""
    if not path.exists() or is_there(path):
        return
    if not path.is_dir() or not all(_is_being_made(one.name) for one in path.iterdir()):
        load(path)  # says what is wrong


@dataclass(frozen=True)
class Snapshot:
    """The data at one state of the files, ready to be sent."""

    since: str
    packed: bytes
    """The data as gzipped JSON."""
    blocks: Blocks
    _made: dict[str, bytes] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def block(self, name: str) -> bytes | None:
        """A block as gzipped JSON, made once; None when there is none of that name, or no longer."""
        if name not in self.blocks:
            return None
        with self._lock:
            if name not in self._made:
                try:
                    self._made[name] = pack(self.blocks[name]())
                except (RunError, OSError) as error:
                    logger.warning("%s", error)
                    return None
            return self._made[name]


class Snapshots:
    """The newest snapshot of some directories."""

    def __init__(self, paths: Sequence[Path], build: Callable[[], tuple[Data, Blocks]]) -> None:
        self._paths = tuple(paths)
        self._build = build
        self._lock = threading.Lock()
        self._state: object = None
        self._count = 0
        self._newest: Snapshot | None = None
        self._data: Data | None = None
        self._problem = ""
        self._failed_at = 0.0
        # Tokens of another server's life must not pass for this one's.
        self._life = os.urandom(6).hex()

    def newest(self) -> Snapshot:
        """The data of the files as they are; built only if they have changed since the last call."""
        with self._lock:
            state = file_state(self._paths)
            is_retry = self._problem and time.monotonic() - self._failed_at > RETRY_S
            if self._newest is None or state != self._state or is_retry:
                self._newest = self._next()
                # Of before the build: what changed during it is seen by the next call.
                self._state = state
            return self._newest

    def _next(self) -> Snapshot:
        """The next snapshot; where files cannot be read, the last good one and a note that says so.

        They are read again a little later: a run that is being rewound is between two states.
        """
        try:
            data, blocks = self._build()
        except (RunError, OSError) as error:
            if self._newest is None or self._data is None:
                raise
            self._failed_at = time.monotonic()
            if str(error) == self._problem:
                return self._newest
            self._problem = str(error)
            note = f"Not up to date: {error}"
            data = {**self._data, "notes": [*self._data["notes"], note]}
            return self._named(data, self._newest.blocks)
        self._problem = ""
        self._data = data
        return self._named(data, blocks)

    def _named(self, data: Data, blocks: Blocks) -> Snapshot:
        self._count += 1
        since = f"{self._life}-{self._count}"
        return Snapshot(since, pack({**data, "live": {"since": since, "every_s": POLL_S}}), blocks)


def file_state(paths: Sequence[Path]) -> tuple[object, ...]:
    """Something that differs whenever the watched files do."""
    return tuple(_state(path / name) for path in paths for name in WATCHED)


def pack(value: Any) -> bytes:
    """JSON for the page, gzipped: quick rather than small, since it seldom leaves the machine."""
    return gzip.compress(script_json(value).encode(), compresslevel=1, mtime=0)


def _is_being_made(name: str) -> bool:
    """Whether a run directory may hold this before its settings are there."""
    return name in {"rollouts", LOCK} or name.startswith(f"{PARTIAL}{RUN_FILE}")


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


LOCAL_NAMES = frozenset({"localhost", "ip6-localhost"})
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - what a user must write to be reached from anywhere
HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[\w.-]+))(?::[0-9]+)?", re.ASCII)
"""A Host header: a name or an address, perhaps a port, and nothing else."""
logger = logging.getLogger(__name__)
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",  # the address may hold the token
    "Cross-Origin-Resource-Policy": "same-origin",
}
PAGE = "text/html; charset=utf-8"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Access:
    """The rule of one server: a request must carry its token.

    Other machines cannot connect to a loopback address, other users of this one can. A web page from
    anywhere can, too: it points a name of its own at 127.0.0.1 and has the browser ask (DNS rebinding). The
    Host header then has that name, so on loopback only local ones are answered.
    """

    is_local: bool
    """Whether it listens on a loopback address."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def cookie(self) -> str:
        """What the cookie with the token is called; browsers send those of all ports along."""
        return f"ragen2-{hashlib.sha256(self.token.encode()).hexdigest()[:16]}"

    @property
    def set_cookie(self) -> str:
        """The header that comes with the page, so that it need not keep the token in its address."""
        return f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"

    def admits(self, hosts: Sequence[str], tokens: Sequence[str]) -> bool:
        """Whether a request with these Host headers and tokens may be answered."""
        if self.is_local and [is_loopback(host_name(one)) for one in hosts] != [True]:
            return False
        wanted = self.token.encode()
        return any(hmac.compare_digest(one.encode(errors="replace"), wanted) for one in tokens)


def is_loopback(host: str) -> bool:
    """A name or address that means this machine and cannot be reached from another one."""
    if host.lower() in LOCAL_NAMES:
        return True
    try:
        return _address(host).is_loopback
    except ValueError:
        return False


def host_name(header: str) -> str:
    """A Host header without its port, for a tunnel may listen on another one; empty when it is none."""
    found = HOST.fullmatch(header)
    return (found["v6"] or found["name"]) if found else ""


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address; one of version 4 in the clothes of version 6 without them."""
    found = ipaddress.ip_address(text)
    return getattr(found, "ipv4_mapped", None) or found


class WatchServer(ThreadingHTTPServer):
    """Serves one page to any number of readers, each in a thread of its own."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, page: str, snapshots: Snapshots) -> None:
        self.host = host
        self.page = gzip.compress(page.encode(), mtime=0)
        self.snapshots = snapshots
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Request)
        except (OSError, OverflowError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise RunError(
                f"cannot listen on {host} port {port}: {why}; choose another --host or --port"
            ) from error
        self.access = Access(is_loopback(str(self.server_address[0])))

    def server_bind(self) -> None:
        """Take the address, unless it is every one and nobody said so."""
        super().server_bind()
        if self.host not in EVERYWHERE and _address(str(self.server_address[0])).is_unspecified:
            raise ConfigError(
                f"--host {self.host!r} would listen on every address; give 127.0.0.1, "
                f"or {' or '.join(EVERYWHERE)} to be reached from other machines"
            )

    @property
    def url(self) -> str:
        """Where a browser finds the page."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_address[1]}/?token={self.access.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader who went away is no error; anything else is logged, and the server goes on."""
        del request
        if isinstance(sys.exception(), ConnectionError | TimeoutError):
            logger.debug("%s went away", client_address)
        else:
            logger.exception("a request could not be answered")


def open_watch(paths: Sequence[Path], host: str = "127.0.0.1", port: int = 0) -> WatchServer:
    """A server that listens; a path that cannot be shown is an error now."""
    followed = Followed(paths)

    def build() -> tuple[Data, Blocks]:
        report = report_of(followed.runs())
        return report.data, report.blocks

    page = render({"title": ", ".join(path.resolve().name for path in paths)}, {}, live=True)
    snapshots = Snapshots(paths, build)
    snapshots.newest()
    return WatchServer(host, port, page, snapshots)


class _Request(BaseHTTPRequestHandler):
    """One reader's connection."""

    server: WatchServer
    protocol_version = "HTTP/1.1"
    server_version = "ragen2"
    sys_version = ""
    disable_nagle_algorithm = True  # an answer is two writes; the second must not wait for an echo
    timeout = 60.0  # seconds without a request after which a thread is not kept for a reader

    def do_GET(self) -> None:
        """Answer the page, the data, or a block."""
        try:
            address = urlsplit(self.path)
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST)
            return
        query = {name: values[-1] for name, values in parse_qs(address.query).items()}
        tokens = [query.get("token", ""), *self._known_tokens()]
        if not self.server.access.admits(self.headers.get_all("Host", []), tokens):
            self._refuse(HTTPStatus.FORBIDDEN)
            return
        match address.path:
            case "/":
                self._send(self.server.page, PAGE, self.server.access.set_cookie)
            case "/data.json":
                self._data(query.get("since"))
            case "/block.json":
                self._block(query.get("name", ""))
            case _:
                self._refuse(HTTPStatus.NOT_FOUND)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are many and of no interest; the address may hold the token."""

    def _known_tokens(self) -> Iterator[str]:
        """Those of the headers: a program sends its own, a browser the cookie that the page brought."""
        kind, _, given = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            yield given.strip()
        for part in self.headers.get("Cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.server.access.cookie:
                yield value

    def _data(self, since: str | None) -> None:
        newest = self.server.snapshots.newest()
        if since == newest.since:
            self.send_response(HTTPStatus.NO_CONTENT)
            self._end_headers()
        else:
            self._send(newest.packed, JSON)

    def _block(self, name: str) -> None:
        block = self.server.snapshots.newest().block(name)
        if block is None:
            self._refuse(HTTPStatus.NOT_FOUND)
        else:
            self._send(block, JSON)

    def _send(self, packed: bytes, kind: str, cookie: str = "") -> None:
        takes_gzip = "gzip" in self.headers.get("Accept-Encoding", "")
        body = packed if takes_gzip else gzip.decompress(packed)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        if takes_gzip:
            self.send_header("Content-Encoding", "gzip")
        if cookie:
            self.send_header("Set-Cookie", cookie)
        self._end(body)

    def _refuse(self, status: HTTPStatus) -> None:
        body = f"{status.value} {status.phrase}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self._end(body)

    def _end(self, body: bytes) -> None:
        self.send_header("Content-Length", str(len(body)))
        self._end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
