"""The collapse diagnostic: when it is due, and what it hands to ``measure``."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.diagnostics import Collapse, Ema, Evidence, measure
from ragen2.types import ScoreMatrix

SCORES = ScoreMatrix(
    np.random.default_rng(0).normal(-10.0, 1.0, (12, 3)),
    np.full(12, 5),
    np.repeat(np.arange(3), 4),
)


def test_it_measures_what_measure_measures_under_its_prefix():
    ema = Ema(0.3, 0.5)
    found = Collapse(resamples=100, interval="population").measure(Evidence(4, [], SCORES, ema))
    expected = measure(
        SCORES.logp_NP,
        SCORES.length_N,
        SCORES.owner_N,
        interval="population",
        resamples=100,
        ema=ema,
        seed=4,
    )
    assert found == {f"collapse/first_turn/{name}": value for name, value in expected.items()}


def test_without_scores_it_refuses_to_make_numbers_up():
    with pytest.raises(ValueError, match="called without cross-scores"):
        Collapse().measure(Evidence(1, []))


@pytest.mark.parametrize(("every", "due"), [(1, [1, 2, 3, 4, 5, 6]), (3, [1, 3, 6]), (5, [1, 5])])
def test_the_first_step_and_multiples_are_due(every, due):
    diagnostic = Collapse(every=every)
    assert [step for step in range(1, 7) if diagnostic.is_due(step)] == due
