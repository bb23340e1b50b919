"""The last lines of a test run: what was left out, and the one command that brings it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

SLOW = "slow tests"
PIP = ".venv/bin/python -m pip install {0}"
CURES = (
    (r"playwright", "tests in a browser", PIP.format("playwright")),
    (r"Chromium", "tests in a browser", "apt-get install chromium"),
    (r"bubblewrap", "tests of the strong sandbox", "apt-get install bubblewrap"),
    (r"container runtime", "tests of the sandbox in containers", "apt-get install runc"),
    (r"make peers|Triton|TRITON", "tests with a peer", "make peers"),
    (r"real data", "tests on real data", "RAGEN2_DATA=folder make test"),
    (r"(\w+) is not installed", "tests with {0}", PIP),
    (r"(?:could not import '|needs the package )(\w+)", "tests with {0}", PIP),
)
"""Why a test was skipped, what such tests are, and what brings them. Reasons that fit nowhere are those
of tests that cannot apply here."""


def lines(reasons: Iterable[str], num_slow: int) -> list[str]:
    """One line for each kind of test that was left out, the largest first."""
    found = Counter(cured for reason in reasons if (cured := _cure(reason)))
    if num_slow:
        found[SLOW, "make test-all"] = num_slow
    return [
        f"left out: {count} {kind if count > 1 else kind.replace('tests', 'test', 1)}; {command} "
        "brings " + ("them" if count > 1 else "it")
        for (kind, command), count in found.most_common()
    ]


def _cure(reason: str) -> tuple[str, str] | None:
    for pattern, kind, command in CURES:
        if match := re.search(pattern, reason):
            return kind.format(*match.groups()), command.format(*match.groups())
    return None


class LeftOut:
    """The plug-in: it counts the slow tests that were deselected, here or by the workers."""

    def __init__(self) -> None:
        self.num_slow = 0

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Those that ``-m`` or ``-k`` left out."""
        marked = [item for item in items if item.get_closest_marker("slow")]
        self.num_slow += sum(
            not item.get_closest_marker("learning") and not item.get_closest_marker("peers")
            for item in marked
        )

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker tells its number; each worker sees all tests."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["num_slow"] = self.num_slow

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker has ended."""
        told = getattr(node, "workeroutput", {})
        self.num_slow = max(self.num_slow, told.get("num_slow", 0))

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The lines, after all else but the number of tests that passed."""
        skipped = terminalreporter.stats.get("skipped", [])
        reasons = [report.longrepr[2].removeprefix("Skipped: ") for report in skipped]
        for line in lines(reasons, self.num_slow):
            terminalreporter.write_line(line)
