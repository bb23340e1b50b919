"""The system's Chromium, driven by playwright; nothing is downloaded."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
DRAWN = """charts => charts.map(one => {
    const marks = () => [...one.plot.querySelectorAll('svg path, svg rect, svg circle, svg polyline')]
        .filter(mark => { const box = mark.getBBox(); return box.width + box.height > 0; }).length;
    one.draw();
    const all = marks();
    one.drawn.setOption({ series: [], graphic: [] }, { replaceMerge: ['series', 'graphic'] });
    const frame = marks();
    one.setOption();
    return [one.spec.id, all - frame];
})"""
"""Marks that are there because of the data: those of the chart less those of its empty frame."""


def chromium_path() -> str | None:
    """Where Chromium is, or None."""
    return next((found for found in map(shutil.which, NAMES) if found), None)


def playwright_reason() -> str:
    """Why there can be no browser test; empty when there can."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: pip install 'ragen2[dev]'"
    return "" if chromium_path() else "no Chromium: install the system's package chromium"


@dataclass
class Opened:
    """A page in the browser, and everything in it that should not be."""

    page: Any
    context: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def close(self) -> None:
        self.context.close()

    def evaluate(self, script: str) -> Any:
        return self.page.evaluate(script)

    def drawn(self) -> dict[str, int]:
        """How many marks of data each chart has, after all were drawn."""
        return dict(self.page.evaluate(f"({DRAWN})(ragen2Report.charts)"))

    def shows(self, place: str, text: str) -> None:
        """Wait until an element says this. The page forbids eval, so it cannot be polled by script."""
        self.page.locator(place, has_text=text).wait_for()

    def blocks_loaded(self) -> None:
        """Wait until nothing on the page still says that it is loading."""
        from playwright.sync_api import expect

        expect(self.page.locator("p.quiet", has_text="Loading.")).to_have_count(0, timeout=15_000)


Open = Callable[..., Opened]
"""Opens a page from disk; takes ``dark``, ``width`` and ``height``."""


@contextmanager
def started_browser() -> Iterator[Any]:
    """A browser, ended with the block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=ARGUMENTS)
        yield browser
        browser.close()


def open_file(
    browser: Any, path: Path, *, dark: bool = False, width: int = 1280, height: int = 900
) -> Opened:
    """Open a page from disk, as a reader would, and note every error and every request but itself."""
    return open_address(browser, path.as_uri(), dark=dark, width=width, height=height)


def open_address(
    browser: Any, address: str, *, dark: bool = False, width: int = 1280, height: int = 900
) -> Opened:
    scheme = "dark" if dark else "light"
    size = {"width": width, "height": height}
    context = browser.new_context(viewport=size, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(15_000)
    opened = Opened(page, context)
    page.on("pageerror", lambda error: opened.errors.append(str(error)))
    page.on("console", lambda said: _note(opened, said))
    page.on("dialog", lambda dialog: opened.errors.append(f"a dialog: {dialog.message}"))
    page.on("request", lambda asked: asked.url != address and opened.requests.append(asked.url))
    page.goto(address)
    page.wait_for_selector("html[data-ready=true]", state="attached")
    return opened


def _note(opened: Opened, said: Any) -> None:
    if said.type in ("error", "warning"):
        opened.errors.append(said.text)
