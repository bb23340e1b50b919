"""Readers with a keyboard, with a screen reader, with other colours, with a phone, with paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chromium import Open, Opened
from made_up import made_up_compare, made_up_run, page_data

from ragen2.reports.page import render

CONTROLS = "a[href], button, select, input, summary, [tabindex='0']"
REACHABLE = f"""() => [...document.querySelectorAll("{CONTROLS}")].filter(one =>
    !one.closest('dialog') && one.checkVisibility() && !one.disabled && one.tabIndex >= 0)"""


def violations(opened: Opened) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(opened.page).response["violations"]
    return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]


@pytest.fixture(scope="module")
def compare_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = [made_up_run("r0", "first"), made_up_run("r1", "second")]
    runs = [run for run, _ in made]
    path = tmp_path_factory.mktemp("compare") / "report.html"
    data = page_data(runs, compare=made_up_compare(runs))
    path.write_text(render(data, made[0][1] | made[1][1]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("dark", "width"), [(False, 1280), (True, 1280), (True, 390)], ids=["light", "dark", "phone"]
)
def test_axe_finds_nothing_in_a_run(
    open_page: Open, made_up_page: Path, dark: bool, width: int
) -> None:
    opened = open_page(made_up_page, dark=dark, width=width)
    opened.page.get_by_label("Metric to add").select_option("update/loss")
    opened.blocks_loaded()
    opened.drawn()
    opened.evaluate(
        "document.querySelectorAll('details:not(.numbers), #chart-r0-success details')"
        ".forEach(one => { one.open = true; })"
    )
    opened.page.locator("#chart-r0-success tbody tr").first.wait_for()
    assert violations(opened) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_in_a_comparison_nor_in_a_drawer(
    open_page: Open, compare_page: Path, dark: bool
) -> None:
    opened = open_page(compare_page, dark=dark)
    opened.drawn()
    assert violations(opened) == []
    opened.page.get_by_role("tab", name="second").click()
    opened.blocks_loaded()
    opened.page.locator(".cell").first.click()
    assert violations(opened) == []


def test_tab_reaches_every_control(open_page: Open, made_up_page: Path) -> None:
    opened = open_page(made_up_page)
    opened.blocks_loaded()
    wanted = opened.evaluate(f"({REACHABLE})().length")
    reached = opened.evaluate("window.reached = new Set(), 0")
    for _ in range(wanted + 5):
        opened.page.keyboard.press("Tab")
        reached = opened.evaluate("reached.add(document.activeElement).size")
    missed = opened.evaluate(
        f"({REACHABLE})().filter(one => !reached.has(one)).map(one => one.outerHTML.slice(0, 120))"
    )
    assert missed == []
    assert reached > 40


def test_focus_can_be_seen(open_page: Open, made_up_page: Path) -> None:
    opened = open_page(made_up_page)
    opened.page.keyboard.press("Tab")
    opened.page.keyboard.press("Tab")
    style: Any = opened.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert style == "solid"


def test_arrow_keys_read_a_chart_out(open_page: Open, made_up_page: Path) -> None:
    opened = open_page(made_up_page)
    opened.page.locator("#chart-r0-retrieval .plot").focus()
    opened.page.keyboard.press("End")
    opened.page.keyboard.press("ArrowLeft")
    assert opened.page.locator("#announce").inner_text().startswith("step 59: ")
    assert opened.page.locator("#chart-r0-retrieval .tip b").inner_text() == "step 59"


def test_dark_mode_follows_the_system_and_the_toggle(open_page: Open, made_up_page: Path) -> None:
    opened = open_page(made_up_page, dark=True)
    dark = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    opened.page.get_by_role("button", name="Light colours").click()
    light = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = [sum(int(v) for v in one[4:-1].split(",")) for one in (dark, light)]
    assert brightness[0] < 120
    assert brightness[1] > 600
    opened.drawn()
    line = "ragen2Report.charts[0].drawn.getOption().xAxis[0].axisLabel.color"
    before = opened.evaluate(line)
    opened.page.get_by_role("button", name="Dark colours").click()
    assert opened.evaluate(line) != before


def test_a_phone_needs_no_sideways_scrolling(open_page: Open, made_up_page: Path) -> None:
    opened = open_page(made_up_page, width=390, height=844)
    opened.blocks_loaded()
    opened.drawn()
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390


def test_lines_differ_by_more_than_colour(open_page: Open, made_up_page: Path) -> None:
    opened = open_page(made_up_page)
    opened.drawn()
    symbols = opened.evaluate(
        "ragen2Report.charts.find(c => c.spec.id === 'chart-r0-why-prompts-are-flat')"
        ".drawn.getOption().series.map(one => one.symbol)"
    )
    assert len(set(symbols)) == len(symbols) == 3


def test_print_shows_every_chart_on_white(open_page: Open, made_up_page: Path) -> None:
    opened = open_page(made_up_page, dark=True)
    opened.page.emulate_media(media="print")
    opened.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.evaluate("ragen2Report.charts.every(one => one.drawn)")
    assert opened.evaluate("document.documentElement.dataset.theme") == "light"
    assert opened.page.locator("#sections").is_hidden()
