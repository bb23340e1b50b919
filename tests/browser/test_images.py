"""Images in the browser: what the agent was shown, beside what it was told, in drawer and replays."""

from __future__ import annotations

from pathlib import Path

import pytest
from chromium import Open, Opened
from seeing_runs import GONE_BLIND, seeing_run

from ragen2.reports.page import write_report

SIZE = "img => [img.naturalWidth, img.naturalHeight, img.getBoundingClientRect().width]"
WIDER = "document.querySelector('dialog.drawer').scrollWidth > innerWidth"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seeing_run(tmp_path_factory.mktemp("seen") / "run")


@pytest.fixture(scope="module")
def told_as_well(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seeing_run(tmp_path_factory.mktemp("seen") / "run", "image+text", steps=1)


def opened_at(open_page: Open, run: Path, **options: int) -> Opened:
    opened = open_page(write_report([run], run.parent / "report.html"), **options)
    opened.blocks_loaded()
    return opened


def test_the_drawer_shows_both_prompts_images(run: Path, open_page: Open) -> None:
    opened = opened_at(open_page, run)
    opened.page.locator('.cell[data-cell="0,1"]').click()
    images = opened.page.locator("dialog.drawer .pair img")
    assert images.count() == 2
    sources = [images.nth(i).get_attribute("src") for i in range(2)]
    assert sources[0] != sources[1]
    for i in range(2):
        width, height, shown = images.nth(i).evaluate(SIZE)
        assert (width, height) == (112, 112)  # four cells of 28 pixels
        assert shown > 200
    assert images.nth(0).get_attribute("alt") == "Its own prompt, image 1"


def test_image_and_board_stand_side_by_side(told_as_well: Path, open_page: Open) -> None:
    opened = opened_at(open_page, told_as_well)
    opened.page.locator('.cell[data-cell="0,1"]').click()
    first = opened.page.locator("dialog.drawer .pictures").first
    assert first.locator("figcaption").all_inner_texts() == ["Image", "Told in words"]
    image, board = first.locator("img").bounding_box(), first.locator("svg.board").bounding_box()
    assert image["y"] == pytest.approx(board["y"], abs=3)
    assert image["width"] == pytest.approx(board["width"], abs=3)
    assert board["x"] >= image["x"] + image["width"]


def test_a_phone_shows_the_drawer_without_scrolling_sideways(
    told_as_well: Path, open_page: Open
) -> None:
    opened = opened_at(open_page, told_as_well, width=390, height=844)
    opened.page.locator('.cell[data-cell="0,1"]').click()
    opened.page.locator("dialog.drawer .pictures").first.wait_for()
    assert not opened.evaluate(WIDER)


def test_a_replay_shows_a_new_image_each_turn(run: Path, open_page: Open) -> None:
    opened = opened_at(open_page, run)
    player = opened.page.locator(".player")
    turns = int(player.locator(".stepper strong").inner_text().rpartition(" ")[2])
    seen = []
    for _ in range(turns + 1):
        assert player.locator(".pictures img").count() == 1
        seen.append(player.locator(".pictures img").get_attribute("src"))
        player.focus()
        opened.page.keyboard.press("ArrowRight")
    assert player.locator(".stepper strong").inner_text() == "The end"
    assert len(set(seen)) > 1


def test_a_missing_image_is_told_in_its_place(run: Path, open_page: Open, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "images")
    opened = opened_at(open_page, tmp_path / "run")
    assert "The image is missing" in opened.page.locator(".player").inner_text()
    opened.page.locator('.cell[data-cell="0,1"]').click()
    assert opened.page.locator("dialog.drawer .pair", has_text="The image is missing").count() == 1


def test_an_agent_that_stops_looking_is_found_out(run: Path, open_page: Open) -> None:
    opened = opened_at(open_page, run)
    drawn = opened.drawn()
    assert drawn["chart-r0-grounding"] > 0
    assert drawn["chart-r0-image_information"] > 0
    events = opened.page.locator("#verdict").inner_text()
    assert f"template collapse since step {GONE_BLIND}" in events
    assert "Reasoning no longer depends on the image" in events
    assert f"since step {GONE_BLIND}" in events
