"""The images of a run as a page takes them: data URIs, within a budget."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ragen2.errors import RunError
from ragen2.runs.images import ImageStore

MOST_CHARACTERS = 2_000_000
"""Of all images of one block; boards take a few hundred each."""
PNG = "data:image/png;base64,"


class Pictures:
    """Finds images of a run directory for one block of a page."""

    def __init__(self, run: Path) -> None:
        self._store = ImageStore(run)
        self._room = MOST_CHARACTERS
        self._known: dict[str, str] = {}

    def uri(self, name: str) -> str:
        """The image as a URI; empty when it is missing from the run directory, or does not fit."""
        if name.startswith("data:image/"):
            return name
        if name not in self._known:
            try:
                found = PNG + base64.b64encode(self._store.file(name)).decode("ascii")
            except RunError:  # the page says so where the image would be
                found = ""
            self._known[name] = found
        found = self._known[name]
        if len(found) > self._room:
            return ""
        self._room -= len(found)
        return found


def seen_of(name: str, picture: Callable[[str], str]) -> dict[str, Any]:
    """What a view holds about an image; nothing where none was shown."""
    if not name:
        return {}
    uri = picture(name)
    return {"images": [uri]} if uri else {"images": [], "image_missing": True}
