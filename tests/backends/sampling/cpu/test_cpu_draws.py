"""The next token: closed forms of the draw, the cuts and the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ragen2.backends.sampling.cpu.engine import next_tokens
from ragen2.policy import SamplingParams

CHANCES = [0.5, 0.2, 0.3]
PLAIN = SamplingParams()


def drawn(
    chances: list[float], uniform: float, params: SamplingParams = PLAIN
) -> tuple[int, float]:
    """The token and log-prob for logits whose softmax at temperature 1 is ``chances``."""
    logits = torch.tensor([chances]).log() + 3.0
    token, logp = next_tokens(logits, torch.tensor([uniform]), params)
    return int(token), float(logp)


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.69, 1), (0.71, 2), (0.999, 2)]
)
def test_a_number_falls_into_the_stretch_of_its_token(uniform: float, token: int) -> None:
    found, logp = drawn(CHANCES, uniform)
    assert found == token
    assert logp == pytest.approx(math.log(CHANCES[token]), abs=1e-6)


def test_a_number_that_rounds_up_to_one_takes_a_token_that_may_be_chosen() -> None:
    assert drawn([0.5, 0.5, 0.0], 1.0)[0] == 1


def test_the_temperature_divides_the_logits() -> None:
    sharp = SamplingParams(temperature=0.5)
    squares = np.square(CHANCES) / np.square(CHANCES).sum()
    assert drawn(CHANCES, 0.6, sharp) == (0, pytest.approx(math.log(squares[0]), abs=1e-6))
    assert drawn(CHANCES, 0.7, sharp)[0] == 1


def test_temperature_nought_takes_the_likeliest_with_its_plain_logprob() -> None:
    for uniform in (0.0, 0.99):
        token, logp = drawn([0.2, 0.3, 0.5], uniform, SamplingParams(temperature=0.0))
        assert token == 2
        assert logp == pytest.approx(math.log(0.5), abs=1e-6)


@pytest.mark.parametrize("params", [SamplingParams(top_k=2), SamplingParams(top_p=0.6)])
def test_a_cut_shares_out_what_is_left_and_leaves_the_logprobs(params: SamplingParams) -> None:
    # Left are 0.5 and 0.3: the first takes 5/8 of all draws.
    assert drawn(CHANCES, 0.62, params) == (0, pytest.approx(math.log(0.5), abs=1e-6))
    assert drawn(CHANCES, 0.63, params) == (2, pytest.approx(math.log(0.3), abs=1e-6))


def test_top_p_keeps_the_token_that_crosses_the_mass_and_no_more() -> None:
    assert drawn(CHANCES, 0.99, SamplingParams(top_p=0.49))[0] == 0
    assert drawn(CHANCES, 0.99, SamplingParams(top_p=0.51))[0] == 2


def test_rows_are_drawn_independently() -> None:
    logits = torch.tensor([CHANCES, CHANCES[::-1]]).log()
    token, logp = next_tokens(logits, torch.tensor([0.6, 0.6]), PLAIN)
    assert token.tolist() == [1, 2]
    np.testing.assert_allclose(logp.exp(), [0.2, 0.5], rtol=1e-5)


def test_logits_that_are_not_numbers_give_a_token_and_no_number() -> None:
    token, logp = next_tokens(torch.full((1, 3), math.nan), torch.tensor([0.5]), PLAIN)
    assert 0 <= int(token) < 3
    assert math.isnan(float(logp))
