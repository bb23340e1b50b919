"""Trainer state: exact on disk, and clear when it cannot be read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.diagnostics import Ema
from ragen2.errors import RunError
from ragen2.runs.checkpoints import STATE
from ragen2.trainer.state import OfferedTasks, StopState, TrainerState, read_state, write_state

numbers = st.floats(0, 1e12)


@given(st.integers(0, 10**9), numbers, numbers)
def test_every_bit_of_the_state_survives(tmp_path_factory, step, std, std_seq):
    folder = tmp_path_factory.mktemp("state")
    ema = {"first_turn": Ema(std, std_seq), "turn_2": Ema(std_seq, std)}
    state = TrainerState(step=step, ema=ema, regime="template_collapse")
    write_state(folder, state)
    assert read_state(folder) == state


def test_a_state_without_average_survives(tmp_path):
    write_state(tmp_path, TrainerState(step=3))
    assert read_state(tmp_path) == TrainerState(step=3)


@pytest.mark.parametrize(
    "found", [b"", b"{", b'{"step": "x"}', b'{"step": 1, "more": 2}', b"[]", b"\xff\xfe"]
)
def test_a_state_that_cannot_be_read_is_named_in_one_line(tmp_path, found):
    (tmp_path / STATE).write_bytes(found)
    with pytest.raises(RunError, match=r"trainer_state\.json cannot be read: \S+") as caught:
        read_state(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_state_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RunError, match=r"trainer_state\.json cannot be read: .*No such file"):
        read_state(tmp_path)


def test_the_state_of_a_run_before_stops_and_coverage_can_be_read(tmp_path):
    older = {
        "step": 7,
        "ema": {"first_turn": {"std": 1.0, "std_seq": 2.0}},
        "regime": "diverse_grounded",
    }
    (tmp_path / STATE).write_text(json.dumps(older))
    state = read_state(tmp_path)
    assert (state.step, state.regime) == (7, "diverse_grounded")
    assert (state.stops, state.stopped, state.recent) == (StopState(), "", ())


def test_what_stops_and_coverage_remember_survives(tmp_path):
    stops = StopState(baseline_sum=0.1 + 0.2, baseline_count=3, low_variance=2, empty=1)
    recent = (OfferedTasks(tasks=(2**47 + 1, 5), kept=(True, False)),)
    state = TrainerState(step=3, stops=stops, stopped="because", recent=recent)
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state
