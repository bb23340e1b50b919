"""Which model a scoring server serves: named behind a ``#`` in its URL, or the only one there is."""

from __future__ import annotations

import json
import os
import urllib.request

from ragen2.errors import ModelError

API_KEY = "OPENAI_API_KEY"
TIMEOUT = 30.0


def server_and_model(text: str) -> tuple[str, str]:
    """``http://host:8000/v1#name`` -> its URL and the model's name; the server is asked for a missing one."""
    url, _, model = text.partition("#")
    return url, model or _only_model(url)


def _only_model(url: str) -> str:
    root = url.rstrip("/").removesuffix("/v1")
    request = urllib.request.Request(f"{root}/v1/models")  # noqa: S310 - the user's own http(s) URL
    if key := os.environ.get(API_KEY):
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310 - as above
            names = [str(one["id"]) for one in json.load(answer)["data"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"--model {url}: the server does not say what it serves ({error}); "
            f"name the model as {url}#NAME"
        ) from error
    if len(names) != 1:
        raise ModelError(
            f"--model {url} serves {len(names)} models ({', '.join(names[:5])}); "
            f"name one as {url}#NAME"
        )
    return names[0]
