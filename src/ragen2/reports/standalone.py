"""Figures as one SVG file that needs no page around it: for a README, a slide, a paper."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib import resources

from ragen2.reports.figures import HEIGHT, LEFT, RIGHT, WIDTH, Figure

HEAD = 30
"""Pixels above each chart for its title and legend."""
GAP = 12
STYLED = r"^\.(?:tick|label|grid|level|line|band|dot|start)\b.*$"
"""Lines of page.css that colour what is inside a chart."""


def standalone(figures: Sequence[Figure]) -> str:
    """Figures side by side; the light colours of the report are written into the file."""
    colours, rules = _styles()
    width = len(figures) * (WIDTH + GAP) + GAP
    height = HEAD + HEIGHT + 2 * GAP
    label = escape(", ".join(figure.title for figure in figures))
    cards = "".join(
        f'<g transform="translate({GAP + index * (WIDTH + GAP)},{GAP + HEAD})">{_card(figure)}</g>'
        for index, figure in enumerate(figures)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
        f"<style>{rules} .title {{ font: 600 14px system-ui, sans-serif; fill: {colours['ink']}; }}</style>"
        f'<rect width="{width}" height="{height}" rx="8" fill="{colours["paper"]}"/>{cards}</svg>\n'
    )


def _card(figure: Figure) -> str:
    title = f'<text class="title" x="{LEFT}" y="-10">{escape(figure.title)}</text>'
    legend, right = "", float(WIDTH - RIGHT)
    for mark, name in reversed(figure.keys):
        legend += (
            f'<text class="tick" x="{right:.0f}" y="-10" text-anchor="end">{escape(name)}</text>'
        )
        right -= 6.6 * len(name) + 7
        legend += _mark(mark, right)
        right -= 16 if mark == "dash" else 10
    empty = f'<text class="tick" x="{LEFT}" y="{HEIGHT // 2}">not measured in this run</text>'
    return title + legend + (figure.body or empty)


def _mark(mark: str, right: float) -> str:
    """What stands before a name in the legend, ending at ``right``."""
    if mark == "dash":
        return f'<line class="level" x1="{right - 10:.0f}" x2="{right + 4:.0f}" y1="-14" y2="-14"/>'
    style = "start" if mark == "ring" else f"dot {mark}"
    return f'<circle class="{style}" cx="{right:.0f}" cy="-14" r="4"/>'


def _styles() -> tuple[dict[str, str], str]:
    """The page's light palette, and its chart rules with the palette put in."""
    sheet = (resources.files("ragen2") / "reports" / "page.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--(\w+): (#\w+)", sheet.partition("@media")[0]))
    rules = " ".join(re.findall(STYLED, sheet, re.MULTILINE))
    return colours, re.sub(r"var\(--(\w+)\)", lambda found: colours[found[1]], rules)
