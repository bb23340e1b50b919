"""The benchmark of ragged groups: its truth is exact, and what the docs quote is what it counted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ragen2.diagnostics import measure
from ragged_groups import LEVELS, SIZES, information, ragged
from tabular_source import TabularSource

ROOT = Path(__file__).parents[2]


def test_equal_shares_give_the_information_of_the_source():
    source = TabularSource.make(prompts=8, groundedness=0.6, length=4)
    assert information(source, np.full(8, 1 / 8)) == pytest.approx(source.mutual_information)


def test_the_empirical_prior_is_unbiased_for_the_information_of_ragged_groups():
    source = TabularSource.make(prompts=8, groundedness=0.6, length=4)
    rng = np.random.default_rng(0)
    batches = [ragged(source, np.arange(8), 4 * SIZES, rng) for _ in range(100)]
    found = [
        measure(one.logp_NP, one.length_N, one.owner_N, prior="empirical", resamples=0)
        for one in batches
    ]
    truth = information(source, SIZES / SIZES.sum())
    values = [one["mi_seq_estimate"] for one in found]
    assert abs(np.mean(values) - truth) < 4 * np.std(values) / np.sqrt(len(values))


def test_the_page_quotes_what_was_counted():
    page = (ROOT / "docs/diagnostics/mutual-information.md").read_text()
    counted = json.loads((ROOT / "results/ragged_groups.json").read_text())
    for level in LEVELS:
        row = counted[str(level)]
        eight, more = (row["retrieval_by_prompts"][size] for size in ("8", "32"))
        held = [f"{100 * row['retrieval_of_8_covers'][size]:.1f}%" for size in ("8", "32")]
        assert f"| {level} | {eight:.2f} | {more:.2f} | {held[0]} | {held[1]} |" in page
        covers = [
            ", ".join(f"{100 * value:.1f}" for value in row[kind].values())
            for kind in ("batch", "population")
        ]
        start = f"| {level} | {row['information']:.3f} | {row['mean_estimate']:.3f} | "
        assert f"{start}{covers[0]} | {covers[1]} |" in page
