"""Random streams are a function of their name, on every machine and in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ragen2.seeding import stream, stream_key

names = st.lists(st.integers() | st.text(max_size=5), max_size=4).map(tuple)


def test_the_same_name_gives_the_same_numbers():
    assert np.array_equal(stream(7, "slip", 3).random(8), stream(7, "slip", 3).random(8))


def test_a_stream_ignores_global_random_state():
    np.random.seed(1)
    first = stream("map", 1).random(4)
    np.random.seed(2)
    assert np.array_equal(first, stream("map", 1).random(4))


def test_drawing_from_one_stream_does_not_move_another():
    used = stream("a")
    used.random(100)
    assert np.array_equal(stream("b").random(4), stream("b").random(4))
    assert not np.array_equal(used.random(4), stream("a").random(4))


@given(names, names)
def test_different_names_have_different_keys(one, other):
    is_same = [(type(p), p) for p in one] == [(type(p), p) for p in other]
    assert (stream_key(*one) == stream_key(*other)) == is_same


def test_parts_do_not_run_into_each_other():
    assert len({stream_key(*name) for name in [("ab", "c"), ("a", "bc"), (1,), ("1",)]}) == 4


def test_order_of_parts_matters():
    assert stream_key("a", "b") != stream_key("b", "a")


def test_a_key_has_128_bits():
    keys = [stream_key(i) for i in range(64)]
    assert all(0 <= key < 2**128 for key in keys)
    assert max(keys) > 2**120


def test_neighbouring_streams_are_uncorrelated():
    draws = np.array([stream("luck", i).standard_normal(500) for i in range(20)])
    correlations = np.corrcoef(draws)[~np.eye(20, dtype=bool)]
    assert np.abs(correlations).max() < 0.2


def test_keys_and_numbers_are_the_recorded_ones():
    assert stream_key(7, "slip", 3) == 0x259CD80B64328BCF67375AB6BC4CA353
    assert stream(7, "slip", 3).random(2).tolist() == [0.2455619307467788, 0.4624504209462331]


def test_another_process_with_another_hash_salt_draws_the_same_numbers():
    code = "from ragen2.seeding import stream; print(stream('map', 5).integers(10**9))"
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    printed = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert int(printed) == stream("map", 5).integers(10**9)
