"""A whole run of verl with Ray and verl's own vLLM rollout, on processors."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import (
    check_filter,
    check_information,
    check_pushes,
    check_tokens,
    ragen2,
    records_of,
    train,
    weights_at,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("vllm") / "run"
    train(path, workers=1)
    return path


def test_it_finishes_with_a_record_of_every_step(run):
    assert list(records_of(run)) == [0, 1, 2, 3, 4, 5]


def test_the_filter_keeps_what_select_keeps(run):
    check_filter(run)


@pytest.mark.parametrize(("step", "before"), [(1, None), (3, 2), (5, 4)])
def test_information_is_that_of_our_own_scorer(run, step, before):
    check_information(run, step, weights_at(run, before) if before else "ragen2-tiny")


@pytest.mark.parametrize(("step", "before"), [(1, None), (3, 2), (5, 4)])
def test_rollouts_come_from_the_newest_weights(run, step, before):
    model = weights_at(run, before) if before else "ragen2-tiny"
    check_tokens(run, step, model, within=1e-4)


def test_staleness_would_show(run):
    check_pushes(run, 5, within=1e-4)


def test_report_opens_it_and_its_checkpoint_plays(run, tmp_path):
    ragen2("report", str(run), "--out", str(tmp_path / "page.html"))
    assert "success" in ragen2("eval", str(run), "--tasks", "8")
