"""The server of ``ragen2 watch``: one page, its data, and nothing else of this machine.

No file is ever looked up by what a request says: three paths are known, the rest is 404.
"""

from __future__ import annotations

import gzip
import hmac
import ipaddress
import logging
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ragen2.errors import RunError
from ragen2.reports.data.report import report_of
from ragen2.reports.page import render
from ragen2.reports.watch.snapshots import Blocks, Data, Followed, Snapshots

LOCAL_NAMES = frozenset({"localhost", "ip6-localhost"})
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
    """The rule of one server.

    On a loopback address no other machine can connect, but a web page from anywhere can point a name of
    its own at 127.0.0.1 and have the browser ask (DNS rebinding). The Host header then has that name, so
    only local ones are answered. On any other address a request must carry the token.
    """

    host: str
    token: str = ""

    @classmethod
    def on(cls, host: str) -> Access:
        """The rule for a server bound to ``host``; each call draws a new token where one is needed."""
        return cls(host, "" if is_loopback(host) else secrets.token_urlsafe(24))

    def admits(self, host_header: str | None, token: str) -> bool:
        """Whether a request may be answered."""
        if self.token:
            return hmac.compare_digest(token.encode(), self.token.encode())
        return host_header is not None and is_loopback(host_name(host_header))


def is_loopback(host: str) -> bool:
    """A name or address that means this machine and cannot be reached from another one."""
    if host.lower() in LOCAL_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(header: str) -> str:
    """A Host header without its port: a tunnel may listen on another one."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if ":" in header else header


class WatchServer(ThreadingHTTPServer):
    """Serves one page to any number of readers, each in a thread of its own."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, page: str, snapshots: Snapshots) -> None:
        self.access = Access.on(host)
        self.page = gzip.compress(page.encode(), mtime=0)
        self.snapshots = snapshots
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Request)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise RunError(
                f"cannot listen on {host} port {port}: {why}; choose another --host or --port"
            ) from error

    @property
    def url(self) -> str:
        """Where a browser finds the page."""
        host = f"[{self.access.host}]" if ":" in self.access.host else self.access.host
        query = f"?token={self.access.token}" if self.access.token else ""
        return f"http://{host}:{self.server_address[1]}/{query}"

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
        address = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(address.query).items()}
        if not self.server.access.admits(self.headers.get("Host"), query.get("token", "")):
            self._refuse(HTTPStatus.FORBIDDEN)
            return
        match address.path:
            case "/":
                self._send(self.server.page, PAGE)
            case "/data.json":
                self._data(query.get("since"))
            case "/block.json":
                self._block(query.get("name", ""))
            case _:
                self._refuse(HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are many and of no interest; the address may hold the token."""

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

    def _send(self, packed: bytes, kind: str) -> None:
        takes_gzip = "gzip" in self.headers.get("Accept-Encoding", "")
        body = packed if takes_gzip else gzip.decompress(packed)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        if takes_gzip:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self._end_headers()
        self.wfile.write(body)

    def _refuse(self, status: HTTPStatus) -> None:
        body = f"{status.value} {status.phrase}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self._end_headers()
        self.wfile.write(body)

    def _end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
