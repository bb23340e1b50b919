"""The images of a run as a page takes them: data URIs, within a budget."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ragen2.errors import RunError
from ragen2.reports.data.episodes import Row, choose, read_rows, shown_steps
from ragen2.reports.load import Run
from ragen2.runs.images import ImageStore

MOST_CHARACTERS = 2_000_000
"""Of all images of one block; boards take a few hundred each."""
PNG = "data:image/png;base64,"
NAME = re.compile("[0-9a-f]{32}")
"""An image by its pixels, as ``Image.digest`` has it."""


class Pictures:
    """Finds images of a run directory for one block of a page."""

    def __init__(self, run: Path) -> None:
        self._store = ImageStore(run)
        self._room = MOST_CHARACTERS
        self._known: dict[str, str] = {}

    def uri(self, name: str) -> str:
        """The image as a URI; empty when it is missing from the run directory, or does not fit."""
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


def missing_images(run: Run) -> str:
    """One line about the images of the page's episodes that the run directory lacks; empty for none.

    A damaged archive is an error.
    """
    named: set[str] = set()
    for path in shown_steps(run).values():
        rows = read_rows(path)
        named.update(name for place in choose(rows) for name in _named(rows[place]))
    store = ImageStore(run.path)
    lost = sorted(name for name in named if not store.has(name))
    if not lost:
        return ""
    return (
        f"{len(lost)} of {len(named)} images of {run.path} are missing from {store.folder}, "
        f"{lost[0]}.png for one; put back the archives of their steps"
    )


def seen_of(images: Sequence[object], picture: Callable[[str], str]) -> dict[str, Any]:
    """What a view holds of the images of a prompt; nothing where none was shown.

    It is the last one that a turn is about. Pictures that stand in the file itself, as other programs
    write them, are all shown.
    """
    texts = [one for one in images if isinstance(one, str)]
    if data := [one for one in texts if one.startswith("data:image/")]:
        return {"images": data}
    names = [one for one in texts if NAME.fullmatch(one)]
    if not names:
        return {}
    uri = picture(names[-1])
    return {"images": [uri]} if uri else {"images": [], "image_missing": True}


def _named(row: Row) -> list[str]:
    """Names of the images that a page shows of an episode."""
    turns = row["turns"]
    shown = [turn.get("images", ())[-1:] for turn in turns]
    shown += [[turn.get("shown_image")] for turn in turns[-1:]]
    return [one for part in shown for one in part if isinstance(one, str) and NAME.fullmatch(one)]
