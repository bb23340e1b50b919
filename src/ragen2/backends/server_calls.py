"""One HTTP endpoint that takes and returns JSON: retries, and failures in one line."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from typing import Any

from ragen2.errors import ConfigError, ModelError

BUSY = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
"""Answers that another try may change."""
REFUSED = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}
"""Answers to a request whose form the server does not take."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to post; ``backoff`` seconds before the first retry, twice as many before each later."""

    url: str
    key: str
    timeout: float
    retries: int
    backoff: float

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"{self.url} is no address of a server; it starts with http:// or https://"
            )

    def post(self, body: dict[str, Any], *, refused: type[Exception]) -> dict[str, Any]:
        """The answer to ``body``. A request whose form is not taken raises ``refused``."""
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(self.backoff * 2 ** (attempt - 1))
            try:
                return self._once(body)
            except urllib.error.HTTPError as error:
                told = _server_words(error)
                if error.code in REFUSED:
                    raise refused(told) from error
                if error.code not in BUSY:
                    raise ModelError(f"{self.url} answered {error.code}: {told}") from error
                trouble = f"answered {error.code}: {told}"
            except (OSError, HTTPException) as error:
                trouble = f"cannot be reached: {getattr(error, 'reason', None) or error!r}"
        raise ModelError(
            f"{self.url} {trouble} ({self.retries + 1} tries); check the address and the server"
        )

    def _once(self, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked above
            self.url, json.dumps(body).encode(), headers, method="POST"
        )
        with urllib.request.urlopen(request, timeout=self.timeout) as answer:  # noqa: S310 - as above
            text = answer.read()
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ModelError(f"{self.url} answered no JSON: {text[:80]!r}") from error
        if not isinstance(found, dict):
            raise ModelError(f"{self.url} answered {type(found).__name__}, not a JSON object")
        return found


def _server_words(error: urllib.error.HTTPError) -> str:
    """What the server says is wrong, in one line, wherever it puts it."""
    text = error.read().decode(errors="replace")
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    if isinstance(found, dict):
        inner = found.get("error", found)
        found = inner.get("message", inner) if isinstance(inner, dict) else inner
    return " ".join(str(found).split())[:200] or error.reason
