"""Where tests find real public records; they skip, saying so, where there are none."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def real_data() -> Callable[[str], Path]:
    """Path of a file of real records, by its name below the data folder."""
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("RAGEN2_DATA", default))

    def find(name: str) -> Path:
        path = folder / name
        if not path.exists():
            pytest.skip(f"no real data at {path}; set RAGEN2_DATA to run this test")
        return path

    return find
