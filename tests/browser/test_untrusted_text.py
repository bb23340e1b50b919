"""Models and environments write what they like: all of it is shown as text, none of it does anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chromium import Open
from made_up import made_up_compare, made_up_run, page_data

from ragen2.reports.page import render

ATTACKS = (
    "</script><script>window.hacked = 1</script><!--<script>{}",
    "\"><svg onload=window.hacked=1><img src=x onerror='window.hacked = 1'>"
    "<a href='javascript:window.hacked=1'>{}</a>",
    "${{window.hacked = 1}}{{{{x}}}}{}\u2028\u2029\u202e\u0000\ud800 𝔘 \ufeff",
)


@pytest.fixture(scope="module", params=range(len(ATTACKS)))
def attacked(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A comparison of two runs in which every text is an attack, in a file whose name is one."""
    attack = ATTACKS[request.param]
    made = [made_up_run(f"r{i}", "run", text=attack) for i in range(2)]
    runs = [run for run, _ in made]
    folder = tmp_path_factory.mktemp("text")
    path = folder / "a'onload=1&lt;b.html"
    data = page_data(runs, title=attack.format("title"), compare=made_up_compare(runs))
    path.write_text(render(data, made[0][1] | made[1][1]), encoding="utf-8")
    return path, attack


def test_text_is_text(attacked: tuple[Path, str], open_page: Open) -> None:
    path, attack = attacked
    opened = open_page(path)
    page = opened.page
    opened.drawn()
    page.locator('[role="tab"]').nth(1).click()
    opened.blocks_loaded()
    opened.drawn()
    page.locator('.cell[data-cell="5,6"]').click()
    shown = page.locator("dialog.drawer .said").first.text_content()
    assert shown == attack.format("The box is near, so trace 5 goes up.")
    page.keyboard.press("Escape")
    for key in ("ArrowRight", "ArrowLeft"):
        page.locator("#chart-r0-retrieval .plot").press(key)
    page.locator("#replays .episodes button").nth(1).click()
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert page.locator("#verdict .summary").text_content() == attack.format(
        "Retrieval fell from 0.96 to chance while entropy rose."
    )
    assert page.evaluate("window.hacked") is None
    assert (
        page.locator(
            "main script, main img, main a[href^='javascript:'], main b:not(.tip b)"
        ).count()
        == 0
    )
