"""Who may see a watched run: this machine's own browser, or whoever holds the token."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from dataclasses import dataclass

LOCAL_NAMES = frozenset({"localhost", "ip6-localhost"})


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
