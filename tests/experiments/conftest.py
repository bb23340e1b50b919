"""What the tests of experiments share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from made_runs import Curves, run_of

from ragen2.experiments.cells import CellRun, Cells


@pytest.fixture(scope="session")
def cell_of() -> Callable[..., CellRun]:
    """``cell_of(0, {"eval/success": [0.1, 0.3]}, task="Lake", filter="none")``."""

    def make(
        seed: int, curves: Curves, settings: Mapping[str, Any] | None = None, **labels: str
    ) -> CellRun:
        name = "-".join([*labels.values(), f"seed{seed}"])
        return CellRun(labels, seed, name, run_of(curves, settings=settings))

    return make


@pytest.fixture(scope="session")
def claims_of() -> Callable[..., dict[str, Any]]:
    """The estimates of an analysis by name."""

    def found(
        analyse: Callable[[Cells], Any],
        cells: Sequence[CellRun],
        others: Sequence[CellRun] = (),
        plan: Sequence[Mapping[str, str]] | None = None,
    ) -> dict[str, Any]:
        analysed = analyse(Cells(cells, list(others), plan))
        return {claim.name: claim.estimate for claim in analysed.claims}

    return found
