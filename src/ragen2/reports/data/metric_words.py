"""Unit and meaning of each metric, from metrics.json, which ``make docs`` makes of docs/metrics.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources

FILE = "metrics.json"
ROW = re.compile(r"^\| `(\w+/[\w/@]+)`(?: ±)? \| ([^|]*) \| [^|]* \| (.*) \|$", re.MULTILINE)
SCOPES = "(?:first_turn|turn_[0-9]+|trajectory|probe)"
PLACES = {"SCOPE": SCOPES, "first_turn": SCOPES, "BUCKET": "(?:bucket_[0-9]+|all)"}
"""What the docs write for a part of a name that varies."""
ENV = re.compile(r"^reward/\w+/(\w+)$")
"""The metrics of one environment among several are named like those of all."""


def read_page(page: str) -> list[list[str]]:
    """[name, unit, meaning] of every metric in the text of docs/metrics.md."""
    return [
        [name, "" if unit == "none" else unit, _plain(about)]
        for name, unit, about in ROW.findall(page)
    ]


def describe(name: str) -> tuple[str, str]:
    """Unit and meaning of a metric; both empty for one that the docs do not know, as of a plug-in."""
    for pattern, unit, about in _known():
        if pattern.fullmatch(name):
            return unit, about
    found = ENV.match(name)
    return describe(f"reward/{found[1]}") if found else ("", "")


def _plain(text: str) -> str:
    """Markdown of a table cell as plain text."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return text.replace("`", "").replace("\\|", "|")


@cache
def _known() -> tuple[tuple[re.Pattern[str], str, str], ...]:
    text = (resources.files(__package__) / FILE).read_text(encoding="utf-8")
    return tuple(_compiled(json.loads(text)))


def _compiled(rows: list[list[str]]) -> Iterator[tuple[re.Pattern[str], str, str]]:
    for name, unit, about in rows:
        parts = [PLACES.get(part, re.escape(part)) for part in name.split("/")]
        yield re.compile("/".join(parts)), unit, about
