"""A served page: it asks for newer data, draws it, and comes back after the server was away."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from chromium import Opened, open_address
from made_up import made_up_run, page_data

from ragen2.reports.page import render


class Site(ThreadingHTTPServer):
    """Serves one run that the test changes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.run, self.blocks = made_up_run()
        self.version, self.is_broken = 1, False
        self.asked: list[str] = []

    def data(self) -> dict[str, Any]:
        return page_data([self.run], live={"since": str(self.version), "every_s": 0.1})


class Handler(BaseHTTPRequestHandler):
    server: Site

    def log_message(self, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        site, address = self.server, urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        site.asked.append(self.path)
        if address.path == "/":
            self.answer(200, render(site.data(), {}, live=True), "text/html; charset=utf-8")
        elif site.is_broken:
            self.answer(503, "")
        elif address.path == "/block.json":
            self.answer(200, json.dumps(site.blocks[query["name"]]))
        elif query.get("since") == str(site.version):
            self.answer(204, "")
        else:
            self.answer(200, json.dumps(site.data()))

    def answer(self, status: int, text: str, kind: str = "application/json") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def site() -> Iterator[Site]:
    served = Site()
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield served
    served.shutdown()
    served.server_close()


@pytest.fixture
def opened(browser: Any, site: Site) -> Iterator[Opened]:
    one = open_address(browser, f"http://127.0.0.1:{site.server_port}/?token=t%26k")
    yield one
    one.close()


def test_a_new_step_is_drawn_and_the_token_leaves_the_address(opened: Opened, site: Site) -> None:
    opened.blocks_loaded()
    site.run["verdict"]["word"] = "Step 61 is here"
    site.version = 2
    opened.shows("#verdict h2", "Step 61 is here")
    opened.shows("#live", "● live")
    assert [path for path in site.asked if "token" in path] == ["/?token=t%26k"]
    assert opened.page.url == f"http://127.0.0.1:{site.server_port}/"
    assert opened.errors == []


def test_heavy_parts_are_asked_for_by_name(opened: Opened, site: Site) -> None:
    opened.blocks_loaded()
    asked = {parse_qs(urlsplit(path).query)["name"][0] for path in site.asked if "block" in path}
    assert asked == {"r0-scores-60", "r0-replays-60"}
    assert opened.page.locator(".cell").count() == 32 * 8


def test_it_comes_back_after_the_server_was_away(opened: Opened, site: Site) -> None:
    site.is_broken = True
    opened.shows("#live", "connection lost")
    site.run["verdict"]["word"] = "Back"
    site.version, site.is_broken = 3, False
    opened.shows("#verdict h2", "Back")
    opened.shows("#live", "● live")


def test_a_part_is_asked_for_again_once_there_is_new_data(opened: Opened, site: Site) -> None:
    opened.blocks_loaded()
    chosen = opened.page.locator("select[data-key=matrix-step]")
    newest = chosen.input_value()
    other = next(
        value
        for value in chosen.locator("option").evaluate_all("all => all.map((one) => one.value)")
        if value != newest
    )

    def back_and_forth() -> int:
        for value in (other, newest):
            chosen.select_option(value)
            opened.blocks_loaded()
        return sum("r0-scores-60" in path for path in site.asked)

    assert back_and_forth() == 1
    site.run["verdict"]["word"] = "Step 61 is here"
    site.version = 2
    opened.shows("#verdict h2", "Step 61 is here")
    assert back_and_forth() == 2
