"""Make the pictures of docs/images/report from real runs: ``make screenshots``.

The runs are trained first where the folder lacks them; that takes some minutes on a CPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests")]

from chromium import Opened, open_file, started_browser  # noqa: E402
from real_runs import audited, trained, ungrounded_model  # noqa: E402
from seeing_runs import seeing_run  # noqa: E402

from ragen2.reports.page import write_report  # noqa: E402

PICTURES = ROOT / "docs" / "images" / "report"
SIZE = (
    "steps=12",
    "rollout.prompts=8",
    "rollout.group_size=8",
    "env.max_turns=5",
    "evaluation.every=3",
    "evaluation.tasks=64",
    "probe.every=4",
)
MOST_BYTES = 300_000


@dataclass(frozen=True)
class Picture:
    """One state of a page."""

    name: str
    page: str
    dark: bool = False
    width: int = 1280
    height: int = 860
    act: Callable[[Any], None] = lambda page: None


def to(place: str, above: int = 70) -> Callable[[Any], None]:
    """Scroll so that a section stands at the top."""
    top = f"document.querySelector('{place}').getBoundingClientRect().top + scrollY - {above}"
    return lambda page: page.evaluate(f"scrollTo({{ top: {top}, behavior: 'instant' }})")


def open_missed_cell(page: Any) -> None:
    to("#retrieval")(page)
    row = page.locator(".matrix [role=row]", has=page.locator(".miss")).first
    row.locator(".cell.best").click()


def play_two_turns(page: Any) -> None:
    to("#replays")(page)
    page.get_by_label("show").select_option("solved")
    page.get_by_role("button", name="Next turn").click()


def show_run(name: str, then: Callable[[Any], None] = lambda page: None) -> Callable[[Any], None]:
    def act(page: Any) -> None:
        page.get_by_role("tab", name=name).click()
        then(page)

    return act


STATES = (
    Picture("healthy", "healthy"),
    Picture("healthy-curves", "healthy", act=to("#chart-r0-success")),
    Picture("healthy-matrix", "healthy", act=to("#retrieval")),
    Picture("healthy-replay-dark", "healthy", dark=True, act=play_two_turns),
    Picture("healthy-phone", "healthy", width=390, height=844),
    Picture("filtered-reward", "healthy", act=to("#reward")),
    Picture("filtered-probe-dark", "healthy", dark=True, act=to("#probe")),
    Picture("collapsed", "collapsed"),
    Picture("collapsed-dark", "collapsed", dark=True),
    Picture("collapsed-matrix", "collapsed", act=to("#retrieval")),
    Picture("collapsed-cell", "collapsed", act=open_missed_cell),
    Picture("collapsed-words", "collapsed", act=to("#words")),
    Picture("comparison", "comparison"),
    Picture("comparison-dark", "comparison", dark=True, act=to("#paths")),
    Picture("comparison-phone", "comparison", width=390, height=844, act=to("#overlay", 10)),
    Picture("seeing-cell", "seeing", act=open_missed_cell),
    Picture("seeing-replay-dark", "seeing", dark=True, act=to("#replays")),
    Picture("seeing-curves", "seeing", act=to("#chart-r0-grounding", 110)),
    Picture("audit", "audit"),
    Picture("audit-phone-dark", "audit", dark=True, width=390, height=844),
)


def page_of(name: str, folder: Path) -> Path:
    """A page to look at, made of runs in ``folder``."""
    makers: dict[str, tuple[Callable[[Path], Path], ...]] = {
        "healthy": (filtered,),
        "collapsed": (collapsed,),
        "comparison": (filtered, unfiltered, collapsed),
        "audit": (audit,),
        "seeing": (seeing,),
    }
    return write_report([make(folder) for make in makers[name]], folder / f"{name}.html")


def filtered(folder: Path) -> Path:
    return made(folder / "grounded-filtered", *SIZE)


def unfiltered(folder: Path) -> Path:
    return made(folder / "grounded-unfiltered", *SIZE, "filter.kind=keep_all")


def collapsed(folder: Path) -> Path:
    model = folder / "ungrounded"
    if not model.exists():
        ungrounded_model(model)
    return made(folder / "ungrounded-start", *SIZE, f"model.path={model}")


def audit(folder: Path) -> Path:
    log = folder / "verl-log"
    return log / "audit" if log.exists() else audited(log, collapse_at=12, steps=20)


def seeing(folder: Path) -> Path:
    """Scripted: the agent stops looking at the picture half-way."""
    path = folder / "goes-blind"
    return path if path.exists() else seeing_run(path, "image+text")


def made(path: Path, *overrides: str) -> Path:
    return path if path.exists() else trained(path, *overrides)


def take(browser: Any, picture: Picture, page: Path) -> Path:
    """Bring a page into the state and write its picture, no larger than a page of docs can bear."""
    size = {"width": picture.width, "height": picture.height}
    opened: Opened = open_file(browser, page, dark=picture.dark, **size)
    opened.blocks_loaded()
    opened.drawn()
    picture.act(opened.page)
    opened.blocks_loaded()
    opened.drawn()
    opened.page.wait_for_timeout(300)
    path = PICTURES / f"{picture.name}.png"
    opened.page.screenshot(path=path)
    opened.close()
    if opened.errors or path.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{path}: {path.stat().st_size} bytes, errors {opened.errors}")
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/pictures"), help="where the runs are"
    )
    parser.add_argument("--only", default="", help="pictures whose name begins so")
    asked = parser.parse_args(arguments)
    asked.runs = asked.runs.resolve()  # a browser takes whole addresses
    asked.runs.mkdir(parents=True, exist_ok=True)
    PICTURES.mkdir(parents=True, exist_ok=True)
    wanted = [picture for picture in STATES if picture.name.startswith(asked.only)]
    found = {name: page_of(name, asked.runs) for name in {one.page for one in wanted}}
    with started_browser() as browser:
        for picture in wanted:
            sys.stdout.write(f"{take(browser, picture, found[picture.page])}\n")


if __name__ == "__main__":
    main()
