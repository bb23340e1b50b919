"""A whole run of verl with Ray: two FSDP2 processes and a plain Hugging Face rollout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from jobs import (
    check_filter,
    check_information,
    check_pushes,
    check_tokens,
    far_apart,
    groups_at,
    ragen2,
    records_of,
    train,
    train_here,
    weights_at,
)

from ragen2.backends.agent import open_policy
from ragen2.config import load_run
from ragen2.trainer.batch import play_batch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("verl") / "run"
    train(path, "model.engine=plain", workers=2)
    return path


def test_it_finishes_with_a_record_of_every_step(run):
    found = records_of(run)
    assert list(found) == [0, 1, 2, 3, 4, 5]
    assert {"eval/success", "collapse/probe/mi_estimate"} <= found[0].metrics.keys()
    assert {"eval/success", "collapse/probe/mi_estimate"} <= found[5].metrics.keys()
    assert "update/grad_norm" in found[1].metrics


def test_the_first_step_plays_what_our_own_loop_plays(run):
    config = load_run(run / "run.toml")
    own = play_batch(config, open_policy("ragen2-tiny", "cpu"), 1).groups
    for there, here in zip(groups_at(run, 1), own, strict=True):
        assert there.prompt == here.prompt
        for one, other in zip(there.trajectories, here.trajectories, strict=True):
            texts = [[turn.completion.text for turn in play.turns] for play in (one, other)]
            assert texts[0] == texts[1]
        assert np.array_equal(there.rewards_G, here.rewards_G)


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


def test_two_updates_are_those_of_our_own_loop(run, tmp_path):
    train_here(tmp_path / "own", "model.engine=plain", "steps=2")
    here, there = weights_at(tmp_path / "own", 2), weights_at(run, 2)
    assert far_apart(here, there) < 0.01 * far_apart("ragen2-tiny", here)


def test_report_opens_it_and_its_checkpoint_plays(run, tmp_path):
    ragen2("report", str(run), "--out", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").stat().st_size > 10_000
    told = ragen2("eval", str(run), "--tasks", "8")
    assert "success" in told
