"""The page of real runs: healthy, filtered or not, collapsed, compared; and of another framework's log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import real_runs
from chromium import Open

from ragen2.reports.page import write_report

Report = Callable[..., Path]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def report(folder: Path) -> Report:
    def write(*paths: Path) -> Path:
        return write_report(paths, folder / f"{'-'.join(path.name for path in paths)}.html")

    return write


@pytest.fixture(scope="module")
def filtered(folder: Path) -> Path:
    return real_runs.trained(folder / "filtered", "steps=2")


@pytest.fixture(scope="module")
def unfiltered(folder: Path) -> Path:
    return real_runs.trained(folder / "unfiltered", "steps=2", "filter.kind=keep_all")


@pytest.fixture(scope="module")
def collapsed(folder: Path) -> Path:
    model = real_runs.ungrounded_model(folder / "model")
    return real_runs.trained(
        folder / "collapsed", "steps=1", f"model.path={model}", "prompt.style=brief"
    )


@pytest.fixture(scope="module")
def sokoban(folder: Path) -> Path:
    return real_runs.trained(folder / "sokoban", "steps=1", *real_runs.SOKOBAN)


@pytest.fixture(scope="module")
def audit(folder: Path) -> Path:
    return real_runs.audited(folder / "log")


def test_a_healthy_filtered_run(filtered: Path, report: Report, open_page: Open) -> None:
    opened = open_page(report(filtered))
    opened.blocks_loaded()
    drawn = opened.drawn()
    assert len(drawn) > 10
    assert min(drawn.values()) > 0, drawn
    assert opened.page.locator("#verdict h2").inner_text() == "Reasoning is about its prompt"
    assert "Held-out success went from" in opened.page.locator("#verdict .summary").inner_text()
    assert "top_p" in opened.page.locator("#verdict .facts").first.inner_text()
    assert opened.page.locator(".matrix .outcome:not(.miss)").count() > 18  # of 36


def test_a_matrix_cell_of_a_real_run_shows_what_was_scored(
    filtered: Path, report: Report, open_page: Open
) -> None:
    opened = open_page(report(filtered))
    opened.blocks_loaded()
    opened.page.locator('.cell[data-cell="0,1"]').click()
    drawer = opened.page.locator("dialog.drawer")
    first, second = drawer.locator(".pair pre").all_inner_texts()[:2]
    assert "Goal" in first
    assert "Goal" in second
    assert first != second
    assert len(drawer.locator(".said").first.inner_text()) > 10
    assert drawer.locator("table tbody tr").count() == 6


def test_a_collapsed_run_is_called_so(collapsed: Path, report: Report, open_page: Open) -> None:
    opened = open_page(report(collapsed))
    opened.blocks_loaded()
    assert opened.page.locator("#verdict h2").inner_text() == "Reasoning was never about its prompt"
    assert opened.page.locator(".matrix .outcome.miss").count() > 18
    assert min(opened.drawn().values()) > 0
    assert opened.page.locator("#words tbody tr").count() > 0


def test_a_real_sokoban_episode_is_replayed(sokoban: Path, report: Report, open_page: Open) -> None:
    opened = open_page(report(sokoban))
    opened.blocks_loaded()
    player = opened.page.locator(".player")
    board = player.locator("svg.board")
    for turn in range(3):
        assert player.locator(".stepper strong").inner_text() == f"Turn {turn + 1} of 3"
        assert "Board of 6 rows and 6 columns" in board.get_attribute("aria-label")
        assert "target: row" in board.get_attribute("aria-label")
        player.focus()
        opened.page.keyboard.press("ArrowRight")
    assert player.locator(".stepper strong").inner_text() == "The end"


def test_a_comparison_of_filtered_and_unfiltered(
    filtered: Path, unfiltered: Path, collapsed: Path, report: Report, open_page: Open
) -> None:
    opened = open_page(report(filtered, unfiltered, collapsed))
    page = opened.page
    drawn = opened.drawn()
    assert "chart-compare-plane" in drawn
    assert min(drawn.values()) > 0, drawn
    assert page.locator("#overview table").first.locator("tbody tr").count() == 3
    assert "What the filter changed" in page.locator("#overview").inner_text()
    page.get_by_role("tab", name="collapsed", exact=True).click()
    assert "never about its prompt" in page.locator("#verdict h2").inner_text()


def test_an_audit_of_another_frameworks_log(audit: Path, report: Report, open_page: Open) -> None:
    opened = open_page(report(audit))
    opened.blocks_loaded()
    assert "since step 4" in opened.page.locator("#verdict").inner_text()
    assert min(opened.drawn().values()) > 0
    assert "read" in opened.page.locator("#log table").first.inner_text()
    opened.page.locator('.cell[data-cell="0,1"]').click()
    assert "Board" in opened.page.locator("dialog.drawer .pair pre").first.inner_text()
