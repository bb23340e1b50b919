"""A run of the tests ends with what it left out."""

from __future__ import annotations

from pathlib import Path

import pytest

import left_out
from command_line import run_python

TESTS = """
import pytest

@pytest.mark.slow
def test_slow(): ...

@pytest.mark.slow
@pytest.mark.peers
def test_peer(): ...

def test_here(): ...

@pytest.mark.parametrize("number", range(2))
def test_browser(number):
    pytest.skip("no Chromium: install the system's package chromium")

def test_other():
    pytest.skip("there is a GPU here")
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_the_last_lines_say_what_was_left_out_and_what_brings_it(
    tmp_path: Path, workers: list[str]
) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n  slow: s\n  peers: p\naddopts = -q -m 'not slow and not peers'\n"
    )
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nimport left_out\n"
        "def pytest_configure(config):\n    config.pluginmanager.register(left_out.LeftOut())\n"
    )
    (tmp_path / "test_some.py").write_text(TESTS)
    done = run_python(tmp_path, "-m", "pytest", *workers)
    assert done.returncode == 0, done.stdout
    *_, browser, slow, count = done.stdout.splitlines()
    assert browser == "left out: 2 tests in a browser; apt-get install chromium brings them"
    assert slow == "left out: 1 slow test; make test-all brings it"
    assert count.startswith("1 passed, 3 skipped")


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        (
            "bubblewrap does not work here; install it to test the strong form",
            "test of the strong sandbox; apt-get install bubblewrap",
        ),
        ("needs TRL in .venv-trl (make peers)", "test with a peer; make peers"),
        (
            "needs Triton (make parity runs these under its interpreter)",
            "test with a peer; make peers",
        ),
        (
            "playwright is not installed: pip install 'ragen2[dev]'",
            "test in a browser; .venv/bin/python -m pip install playwright",
        ),
        (
            "wandb is not installed: pip install 'ragen2[wandb]'",
            "test with wandb; .venv/bin/python -m pip install wandb",
        ),
        (
            "could not import 'pyarrow': No module named 'pyarrow'",
            "test with pyarrow; .venv/bin/python -m pip install pyarrow",
        ),
        (
            "no real data at mbpp.jsonl; set RAGEN2_DATA to run this test",
            "test on real data; RAGEN2_DATA=folder make test",
        ),
    ],
)
def test_a_reason_has_its_command(reason: str, line: str) -> None:
    assert left_out.lines([reason], 0) == [f"left out: 1 {line} brings it"]


def test_a_test_that_cannot_apply_here_is_not_told() -> None:
    assert left_out.lines(["trl is installed here", "positions of this model are plain"], 0) == []
