"""The page: one self-contained HTML text of shell, styles, scripts and data, and writing it to a file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources
from itertools import starmap
from pathlib import Path
from typing import Any

from ragen2.errors import RunError
from ragen2.reports.data import Report, build_report
from ragen2.runs.files import write_atomically

DATA_ID = "report-data"
"""Id of the script element that holds the page's data."""
CHART_LIBRARY = "vendor/echarts.common.min.js"
SCRIPTS = (
    *("dom", "numbers", "theme", "blocks", "state", "chart", "axes", "curves", "explorer", "plane"),
    *(
        "verdict",
        "matrix",
        "drawer",
        "words",
        "flow",
        "reward",
        "probe",
        "board",
        "replay",
        "about",
    ),
    *("compare", "view", "live", "main"),
)
"""Files of ``web/app/`` in the order in which they are joined; together they are one function."""
UNSAFE_IN_SCRIPT = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
"""What could end the element, and lone surrogates, which a log may hold and UTF-8 cannot."""
PLACE = re.compile(r"\{\{(\w+)\}\}")


def render(data: Mapping[str, Any], blocks: Mapping[str, Any], *, live: bool = False) -> str:
    """The whole page as text. A live page holds no data: it asks the server that sent it."""
    library, program = _file(CHART_LIBRARY), _program()
    held = "" if live else _data_element(data) + "".join(starmap(_block_element, blocks.items()))
    parts = {
        "title": escape(str(data["title"]).encode("utf-8", "replace").decode()),
        "csp": _content_security_policy((library, program), live=live),
        "mode": "live" if live else "file",
        "style": _file("page.css"),
        "library": library,
        "program": program,
        "data": held,
    }
    return PLACE.sub(lambda found: parts[found[1]], _file("page.html"))


def script_json(value: Any) -> str:
    """JSON that may stand in a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return UNSAFE_IN_SCRIPT.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def write_report(paths: Sequence[Path], out: Path) -> Path:
    """Write the page for these run directories and audit folders to ``out``."""
    return write_page(build_report(paths), out)


def write_page(report: Report, out: Path) -> Path:
    """Write the page of a report that is already built."""
    page = render(report.data, report.all_blocks())
    try:
        write_atomically(out, page)
    except OSError as error:
        raise RunError(f"report {out} cannot be written: {error.strerror}") from error
    return out


def _data_element(data: Mapping[str, Any]) -> str:
    return f'<script type="application/json" id="{DATA_ID}">{script_json(data)}</script>\n'


def _block_element(name: str, value: Any) -> str:
    """A heavy part, packed: the browser only unpacks what the reader opens."""
    raw = script_json(value).encode()
    packed = base64.b64encode(gzip.compress(raw, compresslevel=6, mtime=0)).decode("ascii")
    return f'<script type="application/gzip" class="block" data-name="{escape(name)}">{packed}</script>\n'


def _content_security_policy(scripts: tuple[str, ...], *, live: bool) -> str:
    """Only our own scripts run, whatever the data holds; the only connection is to a live page's server."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in scripts
    )
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


@cache
def _program() -> str:
    """All scripts as one function, so that no name of theirs is global."""
    body = "\n".join(_file(f"app/{name}.js") for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}\n}})();'


@cache
def _file(name: str) -> str:
    return resources.files(__package__).joinpath("web", name).read_text(encoding="utf-8")
