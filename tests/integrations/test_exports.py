"""Adapters for packages that are not there say so, and the page about them is true."""

from __future__ import annotations

import re
import runpy
from importlib import import_module
from importlib.metadata import distributions
from pathlib import Path

import pytest

from ragen2.errors import DependencyError
from ragen2.integrations.versions import TESTED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/integrations/exports.md").read_text()


@pytest.mark.parametrize("name", ["verifiers", "openenv"])
def test_a_package_that_is_not_there_is_told_with_its_cure(name: str) -> None:
    if any(one.name == name for one in distributions()):
        pytest.skip(f"{name} is installed here")
    told = rf"^{name} is not installed; pip install 'ragen2\[{name}\]' brings it$"
    with pytest.raises(DependencyError, match=told):
        import_module(f"ragen2.integrations.{name}")


@pytest.mark.parametrize("name", ["gymnasium", "prompt_rows"])
def test_the_examples_of_the_page_run(name: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (example,) = [block for block in blocks if name in block]
    file = tmp_path / "example.py"
    file.write_text(example)
    runpy.run_path(str(file))


def test_the_versions_of_the_page_are_those_of_the_tests() -> None:
    rows = dict(
        re.findall(r"^\| [^|]+ \| [^|]*?(\w+)(?:\.md\))?`? \| ([\d.]+)", PAGE, re.MULTILINE)
    )
    pins = {
        name: (ROOT / f"tests/parity/{name}.txt").read_text().partition(f"{name}==")[2].split()[0]
        for name in ("verifiers", "openenv", "trl")
    }
    for name, pin in pins.items():
        assert pin.startswith(f"{rows[name]}."), name
    assert {name: rows[name] for name in TESTED} == TESTED


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)\s#]+)", PAGE):
        assert (ROOT / "docs/integrations" / target).resolve().exists(), target
