"""A headless Chromium, and pages that tell what went wrong in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Open, Opened, open_file, playwright_reason, started_browser
from made_up import made_up_run, page_data

from ragen2.reports.page import render


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here that asks for the browser is a browser test, and is left out where there is none."""
    reason = playwright_reason()
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with started_browser() as running:
        yield running


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Open a file; at the end no page may have logged an error or asked the network for anything."""
    opened: list[Opened] = []

    def opener(path: Path, **options: Any) -> Opened:
        opened.append(open_file(browser, path, **options))
        return opened[-1]

    yield opener
    for one in opened:
        one.close()
        assert one.errors == []
        assert one.requests == []


@pytest.fixture(scope="session")
def made_up_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every panel in it."""
    run, blocks = made_up_run()
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(page_data([run]), blocks), encoding="utf-8")
    return path
