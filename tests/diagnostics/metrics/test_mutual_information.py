"""MI proxies, retrieval and entropies: worked examples, identities and bounds."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ragen2.diagnostics import Ema, dependence, length_control, measure, next_ema
from ragen2.diagnostics.statistics.jackknife import trace_statistics
from ragen2.types import ScoreMatrix

# Worked example: per-token log-probs of four traces under two prompts.
TOKEN_NP = np.array([[-0.5, -1.5], [-0.7, -0.9], [-1.2, -0.6], [-1.0, -1.0]])
LENGTH_N = np.array([10, 20, 10, 40])
OWNER_N = np.array([0, 0, 1, 1])
SUM_NP = TOKEN_NP * LENGTH_N[:, None]


@st.composite
def matrices(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, columns = draw(st.integers(1, 8)), draw(st.integers(2, 6))
    logp = draw(hnp.arrays(float, (rows, columns), elements=st.floats(-200.0, 0.0)))
    length = draw(hnp.arrays(np.int64, rows, elements=st.integers(1, 50)))
    owner = draw(hnp.arrays(np.int64, rows, elements=st.integers(0, columns - 1)))
    return logp, length, owner


def point(logp_NP, length_N, owner_N, **settings) -> dict[str, float]:
    return measure(logp_NP, length_N, owner_N, resamples=0, **settings)


# --- worked example --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mi_estimate", 0.1826),
        ("conditional_entropy", 0.7000),
        ("reasoning_entropy", 0.8826),
        ("mi_seq_estimate", 0.5147),
        ("conditional_entropy_seq", 16.25),
        ("matched_logprob", -0.7000),
        ("marginal_logprob", -0.8826),
        ("matched_logprob_seq", -16.25),
        ("marginal_logprob_seq", -16.7647),
        ("marginal_std", 0.0745),
        ("marginal_std_seq", 13.86),
        ("mi_bound", 0.6931),
        ("retrieval_chance", 0.5),
        ("num_traces", 4.0),
        ("num_prompts", 2.0),
    ],
)
def test_the_worked_example_to_its_digits(name, value):
    assert point(SUM_NP, LENGTH_N, OWNER_N)[name] == pytest.approx(
        value, abs=5e-3 if value > 10 else 5e-5
    )


def test_the_worked_example_trace_by_trace():
    found = trace_statistics(ScoreMatrix(SUM_NP, LENGTH_N, OWNER_N))
    assert found["matched"] == pytest.approx([-0.5, -0.7, -0.6, -1.0])
    assert found["marginal"] == pytest.approx([-0.8799, -0.7950, -0.8557, -1.0], abs=5e-5)
    assert found["matched_seq"] == pytest.approx([-5.0, -14.0, -6.0, -40.0])
    assert found["marginal_seq"] == pytest.approx([-5.6931, -14.6750, -6.6907, -40.0], abs=5e-5)


def test_z_scores_of_the_worked_example():
    found = point(SUM_NP, LENGTH_N, OWNER_N)
    assert found["mi_zscore"] == pytest.approx(2.42, abs=5e-3)
    assert found["mi_zscore_seq"] == pytest.approx(0.037, abs=5e-4)


def test_a_tie_in_the_worked_example_counts_half():
    found = point(SUM_NP, LENGTH_N, OWNER_N)
    assert found["retrieval_accuracy"] == 3.5 / 4
    assert found["retrieval_above_chance"] == 3.5 / 4 - 0.5


def test_perfect_separation_gives_all_the_information_there_is():
    logp = np.where(np.eye(4, dtype=bool), -1.0, -500.0)
    found = point(logp, np.ones(4, int), np.arange(4))
    assert found["mi_estimate"] == pytest.approx(math.log(4))
    assert found["retrieval_accuracy"] == 1.0


def test_a_gap_of_one_nat_a_token_saturates_the_sequence_estimate_only():
    token = np.where(np.eye(4, dtype=bool), -1.0, -2.0)
    found = point(50 * token, np.full(4, 50), np.arange(4))
    assert found["mi_estimate"] == pytest.approx(0.643, abs=5e-4)
    assert found["mi_seq_estimate"] == pytest.approx(1.386, abs=5e-4)


# --- identities and bounds -------------------------------------------------------------------------


@pytest.mark.parametrize("prompts", [2, 3, 8, 16])
def test_all_tied_scores_give_exactly_chance(prompts):
    owner = np.array([0, 0, 0, 1])
    found = point(np.full((4, prompts), -7.3), np.array([3, 5, 7, 9]), owner)
    assert found["retrieval_accuracy"] == found["retrieval_chance"] == 1 / prompts
    assert found["retrieval_above_chance"] == 0.0
    assert found["mi_estimate"] == pytest.approx(0.0, abs=1e-12)
    for k in (2, 4, 8):
        assert found[f"retrieval_accuracy@{k}"] == min(1.0, k / prompts)


@given(matrices())
def test_reasoning_entropy_is_conditional_entropy_plus_information(given_matrix):
    found = point(*given_matrix)
    for mi, suffix in (("mi_estimate", ""), ("mi_seq_estimate", "_seq")):
        assert found[f"reasoning_entropy{suffix}"] == pytest.approx(
            found[f"conditional_entropy{suffix}"] + found[mi], abs=1e-9
        )


@given(matrices())
def test_information_is_at_most_log_p(given_matrix):
    found = point(*given_matrix)
    assert max(found["mi_estimate"], found["mi_seq_estimate"]) <= found["mi_bound"] + 1e-9


@given(matrices())
def test_retrieval_is_a_share_and_grows_with_k(given_matrix):
    found = point(*given_matrix)
    ladder = [found[f"retrieval_accuracy{at}"] for at in ("", "@2", "@4", "@8")]
    assert ladder[0] >= 0.0
    assert ladder == sorted(ladder)
    assert ladder[-1] <= 1.0


@given(matrices(), st.randoms(use_true_random=False))
def test_the_order_of_prompts_and_of_traces_does_not_matter(given_matrix, random):
    logp, length, owner = given_matrix
    columns = np.array(random.sample(range(logp.shape[1]), logp.shape[1]))
    rows = np.array(random.sample(range(len(owner)), len(owner)))
    place = np.argsort(columns)
    shuffled = point(logp[rows][:, columns], length[rows], place[owner[rows]])
    assert shuffled == pytest.approx(point(logp, length, owner), abs=1e-6)


@given(matrices(), st.floats(-1e4, 0.0))
def test_a_constant_added_to_every_score_moves_entropies_and_nothing_else(given_matrix, shift):
    logp, _, owner = given_matrix
    ones = np.ones(len(owner), int)
    before, after = point(logp, ones, owner), point(logp + shift, ones, owner)
    for name in before:
        moved = -shift if "entropy" in name else shift if "logprob" in name else 0.0
        assert after[name] == pytest.approx(before[name] + moved, abs=1e-6, rel=1e-6), name


@given(matrices())
def test_a_duplicate_of_every_trace_changes_nothing(given_matrix):
    logp, length, owner = given_matrix
    twice = point(np.tile(logp, (2, 1)), np.tile(length, 2), np.tile(owner, 2))
    once = point(logp, length, owner)
    assert twice.pop("num_traces") == 2 * once.pop("num_traces")
    # Twice the traces would have shown a smaller grounded share.
    same = {name for name in once if not name.startswith("grounded_")}
    assert {name: twice[name] for name in same} == pytest.approx(
        {name: once[name] for name in same}, abs=1e-6
    )


@given(matrices())
def test_z_scores_divide_by_the_spread_of_the_marginal(given_matrix):
    logp, length, owner = given_matrix
    found = point(logp, length, owner)
    marginal = trace_statistics(ScoreMatrix(logp, length, owner))["marginal"]
    expected = found["mi_estimate"] / (marginal.std() + 1e-3)
    assert found["mi_zscore"] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_traces_of_equal_marginal_have_no_spread_however_long_they_are():
    logp = np.tile([-30_000.0, -30_003.0], (7, 1))
    found = point(logp, np.full(7, 9000), np.zeros(7, int))
    assert found["mi_zscore_seq"] == pytest.approx(found["mi_seq_estimate"] / 1e-3, rel=1e-6)


def test_every_number_is_a_finite_float():
    found = measure(SUM_NP, LENGTH_N, OWNER_N, resamples=100)
    assert all(type(value) is float and math.isfinite(value) for value in found.values())


def test_lists_are_taken_as_well_as_arrays():
    found = measure(SUM_NP.tolist(), LENGTH_N.tolist(), OWNER_N.tolist(), resamples=0)
    assert found == point(SUM_NP, LENGTH_N, OWNER_N)


def test_the_names_people_chart_are_there():
    found = measure(SUM_NP, LENGTH_N, OWNER_N, resamples=100)
    estimates = [
        "mi_estimate",
        "mi_seq_estimate",
        "mi_zscore",
        "mi_zscore_seq",
        "mi_zscore_ema",
        "mi_zscore_ema_seq",
        "conditional_entropy",
        "conditional_entropy_seq",
        "reasoning_entropy",
        "reasoning_entropy_seq",
        "retrieval_accuracy",
        "retrieval_accuracy@2",
        "retrieval_accuracy@4",
        "retrieval_accuracy@8",
    ]
    others = ["retrieval_chance", "retrieval_above_chance", "mi_p_value", "retrieval_p_value"]
    others += ["mi_bound", "num_traces", "num_prompts"]
    others += [
        f"{name}{suffix}"
        for name in ("matched_logprob", "marginal_logprob", "marginal_std", "marginal_std_ema")
        for suffix in ("", "_seq")
    ]
    others += ["grounded_share", "grounded_share_detectable", "grounded_prompts"]
    with_bounds = [*estimates, "retrieval_above_chance", "grounded_share"]
    bounds = [f"{name}_{end}" for name in with_bounds for end in ("low", "high")]
    assert sorted(found) == sorted(estimates + bounds + others)


def test_a_wrong_matrix_is_refused():
    with pytest.raises(ValueError, match="infinite scores"):
        measure(np.full((2, 2), -np.inf), [1, 1], [0, 1])
    with pytest.raises(ValueError, match="trace 0 is not scored under its own prompt"):
        measure(np.full((2, 2), np.nan), [1, 1], [0, 1])
    with pytest.raises(ValueError, match="trace 1 is scored under its own prompt alone"):
        measure([[-1.0, -2.0], [np.nan, -1.0]], [1, 1], [0, 1])


def test_one_prompt_alone_tells_nothing():
    found = measure([[-3.0], [-4.0]], [2, 2], [0, 0], resamples=100)
    assert found["mi_estimate"] == found["mi_seq_estimate"] == found["mi_bound"] == 0.0
    assert found["retrieval_accuracy"] == found["retrieval_chance"] == 1.0


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            {"interval": "Batch"},
            "interval must be 'batch' or 'population', got 'Batch'",
        ),
        ({"prior": "flat"}, "prior must be 'uniform' or 'empirical', got 'flat'"),
        (
            {"owner_N": [0, 0, 0.7, 1]},
            "owner_N must hold whole numbers, got 0.7 for trace 2; give the column of its own prompt",
        ),
        (
            {"owner_N": [0, 0, math.nan, 1]},
            "owner_N must hold whole numbers, got nan for trace 2; give the column of its own prompt",
        ),
        (
            {"owner_N": ["a", "a", "b", "b"]},
            "owner_N must hold whole numbers, got 'a' for trace 0; give the column of its own prompt",
        ),
        (
            {"length_N": [10, 20.5, 10, 40]},
            "length_N must hold whole numbers, got 20.5 for trace 1; give its number of tokens",
        ),
        (
            {"logp_NP": -SUM_NP},
            "logp_NP must hold log-probs, at most 0, got 5 for trace 0 under prompt 0; "
            "turn the sign of losses, take the log of probabilities",
        ),
        (
            {"ema": Ema(math.nan, 1.0)},
            "ema.std must be finite and not negative, got nan; pass ema=None to start a new average",
        ),
        (
            {"ema": Ema(1.0, math.inf)},
            "ema.std_seq must be finite and not negative, got inf; "
            "pass ema=None to start a new average",
        ),
        (
            {"ema": Ema(-1.0, 1.0)},
            "ema.std must be finite and not negative, got -1; pass ema=None to start a new average",
        ),
        ({"resamples": -5}, "resamples must be a whole number from 0 on, got -5; 0 leaves"),
        ({"resamples": 10.5}, "resamples must be a whole number from 0 on, got 10.5; 0 leaves"),
    ],
)
def test_a_wrong_argument_is_one_line_with_its_value_and_the_cure(wrong, told):
    given = {"logp_NP": SUM_NP, "length_N": LENGTH_N, "owner_N": OWNER_N} | wrong
    with pytest.raises(ValueError, match=re.escape(told)) as error:
        measure(**given)
    assert "\n" not in str(error.value)


def test_whole_numbers_may_be_floats_and_rounding_may_lift_a_log_prob_above_0():
    found = point(SUM_NP, LENGTH_N.astype(float), OWNER_N.astype(float))
    assert found == point(SUM_NP, LENGTH_N, OWNER_N)
    certain = point([[1e-6, -9.0], [-9.0, 1e-6]], [3, 3], [0, 1])
    assert certain["retrieval_accuracy"] == 1.0


@pytest.mark.parametrize("control", [length_control, dependence])
def test_what_takes_the_same_arrays_refuses_the_same(control):
    with pytest.raises(ValueError, match=r"owner_N must hold whole numbers, got 0\.7 for trace 2"):
        control(SUM_NP, LENGTH_N, [0, 0, 0.7, 1])


# --- the prior of the prompts ----------------------------------------------------------------------


def ragged(shares: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each prompt's traces say which it is, so that I(X;Z) is the entropy of the shares."""
    owner = np.repeat(np.arange(len(shares)), shares)
    logp = np.where(owner[:, None] == np.arange(len(shares)), 0.0, -500.0)
    return logp, np.ones(len(owner), int), owner


def test_the_empirical_prior_gives_the_information_of_ragged_groups():
    entropy = -(0.99 * math.log(0.99) + 0.01 * math.log(0.01))
    found = measure(*ragged([99, 1]), prior="empirical", resamples=100)
    for name in ("mi_estimate", "mi_seq_estimate", "mi_bound"):
        assert found[name] == pytest.approx(entropy) == pytest.approx(0.056, abs=5e-4)
    assert found["mi_seq_estimate_low"] < entropy <= found["mi_seq_estimate_high"] + 1e-12
    assert point(*ragged([99, 1]))["mi_seq_estimate"] == pytest.approx(math.log(2))


def test_the_empirical_prior_weighs_prompts_by_their_traces_in_both_forms():
    logp, length, owner = SUM_NP[[0, 2, 3]], LENGTH_N[[0, 2, 3]], OWNER_N[[0, 2, 3]]
    found = point(logp, length, owner, prior="empirical")
    for suffix, scores in (("", TOKEN_NP[[0, 2, 3]]), ("_seq", logp)):
        marginal = np.log(np.exp(scores) @ [1 / 3, 2 / 3])
        assert found[f"marginal_logprob{suffix}"] == pytest.approx(marginal.mean())


def test_unscored_prompts_leave_their_share_to_the_scored_others():
    nan = math.nan
    logp = np.log([[0.5, 0.1, nan], [0.2, 0.3, 0.4], [0.1, 0.3, 0.4], [nan, 0.2, 0.6]])
    found = trace_statistics(
        ScoreMatrix(logp, np.ones(4, int), np.array([0, 1, 1, 2])), np.array([1.0, 2.0, 1.0])
    )
    expected = [
        0.25 * 0.5 + 0.75 * 0.1,
        0.5 * 0.3 + 0.5 * (0.2 + 0.4) / 2,
        0.5 * 0.3 + 0.5 * (0.1 + 0.4) / 2,
        0.25 * 0.6 + 0.75 * 0.2,
    ]
    assert np.exp(found["marginal"]) == pytest.approx(expected)


def test_a_trace_that_no_other_prompt_with_traces_scored_has_no_empirical_mixture():
    logp = [[-1.0, math.nan, -2.0], [-2.0, -1.0, -3.0]]
    with pytest.raises(ValueError, match="trace 0 is scored under no other prompt that has traces"):
        measure(logp, [1, 1], [0, 1], prior="empirical")


def test_prompts_without_traces_are_not_in_the_empirical_mixture():
    found = point([[-1.0, -2.0], [-1.5, -2.5]], [1, 1], [0, 0], prior="empirical")
    assert found["mi_estimate"] == found["mi_bound"] == 0.0


@given(matrices())
def test_equal_groups_make_the_priors_one(given_matrix):
    logp, length, _ = given_matrix
    columns = logp.shape[1]
    rows = np.tile(np.arange(len(logp)), columns)
    arrays = logp[rows], length[rows], np.repeat(np.arange(columns), len(logp))
    assert point(*arrays, prior="empirical") == pytest.approx(point(*arrays), abs=1e-9)


@pytest.mark.parametrize("interval", ["batch", "population"])
@pytest.mark.parametrize("unscored", [0.0, 0.3])
def test_the_empirical_prior_has_finite_intervals_of_ragged_and_partly_scored_groups(
    interval, unscored
):
    rng = np.random.default_rng(1)
    logp, length, owner = random_batch(rng, 2.0, prompts=12, each=8)
    kept = np.concatenate([np.flatnonzero(owner == one)[: 1 + one % 8] for one in range(12)])
    logp, length, owner = logp[kept], length[kept], owner[kept]
    hidden = rng.random(logp.shape) < unscored
    hidden[np.arange(len(owner)), owner] = False
    logp = np.where(hidden, np.nan, logp)
    found = measure(logp, length, owner, resamples=200, interval=interval, prior="empirical")
    assert all(math.isfinite(value) for value in found.values())
    for name in ("mi_estimate", "mi_seq_estimate"):
        assert found[f"{name}_low"] < found[name] < found[f"{name}_high"] <= math.log(12)


# --- pairs that were not scored --------------------------------------------------------------------


def test_the_own_prompt_weighs_one_in_p_and_the_scored_others_share_the_rest():
    nan = math.nan
    logp = np.log([[0.5, 0.1, nan, nan], [0.2, 0.3, 0.4, nan]])
    found = trace_statistics(ScoreMatrix(logp, np.ones(2, int), np.array([0, 1])))
    expected = [0.5 / 4 + 3 / 4 * 0.1, 0.3 / 4 + 3 / 4 * (0.2 + 0.4) / 2]
    assert np.exp(found["marginal"]) == pytest.approx(expected)


def test_a_mixture_over_drawn_columns_is_right_on_average():
    rng = np.random.default_rng(0)
    logp = rng.normal(-3.0, 1.0, (1, 6))
    whole = np.exp(logp).mean()
    drawn = []
    for others in itertools.combinations(range(1, 6), 2):
        part = np.full((1, 6), np.nan)
        part[0, [0, *others]] = logp[0, [0, *others]]
        matrix = ScoreMatrix(part, np.ones(1, int), np.zeros(1, int))
        drawn.append(np.exp(trace_statistics(matrix)["marginal"][0]))
    assert np.mean(drawn) == pytest.approx(whole)


def test_retrieval_ranks_among_scored_columns_and_chance_follows_them():
    nan = math.nan
    logp = [[-2.0, -1.0, nan, nan], [nan, -1.0, -2.0, nan], [-1.0, -1.0, -1.0, -1.0]]
    found = point(logp, [1, 1, 1], [0, 1, 2])
    assert found["retrieval_accuracy"] == pytest.approx((0 + 1 + 1 / 4) / 3)
    assert found["retrieval_accuracy@2"] == pytest.approx((1 + 1 + 2 / 4) / 3)
    assert found["retrieval_chance"] == pytest.approx((1 / 2 + 1 / 2 + 1 / 4) / 3)


@given(matrices(), st.randoms(use_true_random=False))
def test_an_unscored_column_of_no_trace_changes_counts_only(given_matrix, random):
    """A prompt that nothing was scored under still counts in P, and nowhere else."""
    logp, length, owner = given_matrix
    wider = np.column_stack([logp, np.full(len(logp), np.nan)])
    found, before = point(wider, length, owner), point(logp, length, owner)
    for name in ("conditional_entropy", "retrieval_accuracy", "retrieval_chance"):
        assert found[name] == pytest.approx(before[name])
    assert found["num_prompts"] == before["num_prompts"] + 1


@pytest.mark.parametrize("interval", ["batch", "population"])
def test_a_half_scored_matrix_has_finite_numbers_near_those_of_the_whole(interval):
    rng = np.random.default_rng(0)
    logp, length, owner = random_batch(rng, 3.0, prompts=16, each=4)
    part = logp.copy()
    part[rng.random(part.shape) < 0.5] = np.nan
    rows = np.arange(len(owner))
    part[rows, owner] = logp[rows, owner]
    whole = measure(logp, length, owner, resamples=200, interval=interval)
    found = measure(part, length, owner, resamples=200, interval=interval)
    assert all(math.isfinite(value) for value in found.values())
    assert found["mi_seq_estimate"] == pytest.approx(whole["mi_seq_estimate"], abs=0.2)
    assert found["mi_p_value"] == whole["mi_p_value"] == 1 / 201


# --- the pieces ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "k", "credit"),
    [
        ([3.0, 2.0, 1.0], 1, 1.0),
        ([1.0, 2.0, 3.0], 1, 0.0),
        ([1.0, 2.0, 3.0], 2, 0.0),
        ([1.0, 2.0, 3.0], 4, 1.0),
        ([2.0, 2.0, 1.0], 1, 0.5),
        ([2.0, 2.0, 2.0], 2, 2 / 3),
        ([2.0, 2.0, 3.0], 2, 0.5),
        ([2.0, 2.0, 3.0], 8, 1.0),
        ([1.0, 1.0 + 1e-12, 0.0], 1, 0.5),
    ],
)
def test_credit_is_the_chance_to_be_among_the_k_best(scores, k, credit):
    matrix = ScoreMatrix(np.array([scores]), np.ones(1, int), np.zeros(1, int))
    assert trace_statistics(matrix)[f"recall@{k}"] == pytest.approx([credit])


@given(hnp.arrays(float, (3, 4), elements=st.floats(-50.0, 50.0)))
def test_the_marginal_is_the_log_of_the_mean_of_exponentials(values):
    matrix = ScoreMatrix(values, np.ones(3, int), np.array([0, 1, 2]))
    expected = np.log(np.exp(values).mean(1))
    assert trace_statistics(matrix)["marginal"] == pytest.approx(expected, abs=1e-9)


def test_marginals_neither_overflow_nor_vanish():
    values = np.array([[1e5, 1e5], [-1e5, -1e5 - 1e4]])
    matrix = ScoreMatrix(values, np.ones(2, int), np.array([0, 1]))
    assert trace_statistics(matrix)["marginal"] == pytest.approx([1e5, -1e5 - math.log(2)])


# --- the moving average ----------------------------------------------------------------------------


def matrix_with_spread(std: float) -> ScoreMatrix:
    """Two traces of one token whose marginals lie at -1 plus and minus ``std``."""
    logp = np.array([[-1 + std, -1 + std], [-1 - std, -1 - std]])
    return ScoreMatrix(logp, np.ones(2, int), np.array([0, 1]))


def test_the_average_of_the_worked_example():
    ema, seen = None, []
    for std in (0.0745, 0.2, 0.1):
        ema = next_ema(ema, matrix_with_spread(std))
        seen.append(ema.std)
    assert seen == pytest.approx([0.0745, 0.0870, 0.0883], abs=1e-4)


def test_the_average_keeps_tokens_and_sequences_apart():
    matrix = ScoreMatrix(SUM_NP, LENGTH_N, OWNER_N)
    ema = next_ema(None, matrix)
    assert ema.std == pytest.approx(0.0745, abs=5e-5)
    assert ema.std_seq == pytest.approx(13.86, abs=5e-3)


def test_the_ema_z_score_divides_by_the_average_with_this_batch_folded_in():
    found = point(SUM_NP, LENGTH_N, OWNER_N, ema=Ema(std=0.2, std_seq=2.0))
    std = 0.9 * 0.2 + 0.1 * found["marginal_std"]
    std_seq = 0.9 * 2.0 + 0.1 * found["marginal_std_seq"]
    assert found["marginal_std_ema"] == pytest.approx(std)
    assert found["marginal_std_ema_seq"] == pytest.approx(std_seq)
    assert found["mi_zscore_ema"] == pytest.approx(found["mi_estimate"] / (std + 1e-3))
    assert found["mi_zscore_ema_seq"] == pytest.approx(found["mi_seq_estimate"] / (std_seq + 1e-3))


def test_the_average_that_is_reported_is_the_next_state():
    ema = Ema(std=0.2, std_seq=2.0)
    found = point(SUM_NP, LENGTH_N, OWNER_N, ema=ema)
    after = next_ema(ema, ScoreMatrix(SUM_NP, LENGTH_N, OWNER_N))
    assert (found["marginal_std_ema"], found["marginal_std_ema_seq"]) == (after.std, after.std_seq)


def test_without_an_average_the_ema_z_score_is_the_z_score():
    found = point(SUM_NP, LENGTH_N, OWNER_N)
    assert found["mi_zscore_ema"] == pytest.approx(found["mi_zscore"])
    assert found["mi_zscore_ema_seq"] == pytest.approx(found["mi_zscore_seq"])


# --- intervals and p-values ------------------------------------------------------------------------


def random_batch(rng: np.random.Generator, gap: float, *, prompts: int = 4, each: int = 8):
    owner = np.repeat(np.arange(prompts), each)
    logp = rng.normal(-20.0, 2.0, (len(owner), prompts)) - gap
    logp[np.arange(len(owner)), owner] += gap
    return logp, np.full(len(owner), 10), owner


def test_without_resamples_there_are_no_intervals_and_no_p_values():
    assert not [
        name
        for name in point(SUM_NP, LENGTH_N, OWNER_N)
        if ("_low" in name or "_p_" in name) and not name.startswith("grounded_share")
    ]


def test_the_same_seed_gives_the_same_intervals_and_another_seed_others():
    batch = random_batch(np.random.default_rng(0), 1.0)
    first = measure(*batch, resamples=100, seed=1)
    assert first == measure(*batch, resamples=100, seed=1)
    assert first != measure(*batch, resamples=100, seed=2)


def test_one_trace_a_prompt_has_no_batch_interval():
    logp = np.random.default_rng(0).normal(-5, 1, (4, 4))
    found = measure(logp, np.ones(4, int), np.arange(4), resamples=100)
    ends = [name for name in found if name.endswith(("_low", "_high"))]
    assert ends == ["grounded_share_low", "grounded_share_high"]
    assert "mi_p_value" in found


def test_one_trace_a_prompt_has_a_population_interval():
    logp = np.random.default_rng(0).normal(-5, 1, (4, 4))
    found = measure(logp, np.ones(4, int), np.arange(4), resamples=100, interval="population")
    assert found["mi_estimate_low"] < found["mi_estimate"] < found["mi_estimate_high"]


def test_two_prompts_have_no_population_interval():
    found = measure(SUM_NP, LENGTH_N, OWNER_N, resamples=100, interval="population")
    ends = [name for name in found if name.endswith(("_low", "_high"))]
    assert ends == ["grounded_share_low", "grounded_share_high"]


def test_prompts_that_differ_widen_the_population_interval():
    owner = np.repeat(np.arange(8), 16)
    logp = np.full((128, 8), -10.0)
    logp[owner < 4, owner[owner < 4]] = -1.0
    logp += np.random.default_rng(0).normal(0.0, 0.1, logp.shape)
    found = {
        kind: measure(logp, np.ones(128, int), owner, resamples=400, interval=kind)
        for kind in ("batch", "population")
    }
    for name in ("conditional_entropy", "mi_estimate", "retrieval_accuracy"):
        width = {kind: m[f"{name}_high"] - m[f"{name}_low"] for kind, m in found.items()}
        assert width["population"] > 2 * width["batch"], name


@pytest.mark.parametrize("interval", ["batch", "population"])
def test_perfect_retrieval_still_has_an_interval_below_one(interval):
    logp, length, owner = random_batch(np.random.default_rng(0), 90.0, prompts=8)
    found = measure(logp, length, owner, resamples=200, interval=interval)
    assert found["retrieval_accuracy"] == found["retrieval_accuracy_high"] == 1.0
    # Wilson: 64 of 64 traces with Student at 56 degrees, 8 of 8 prompts with Student at 7.
    low = {"batch": 64 / (64 + 2.0032**2), "population": 8 / (8 + 2.3646**2)}[interval]
    assert found["retrieval_accuracy_low"] == pytest.approx(low, abs=1e-4)


def test_an_mi_at_its_bound_still_has_an_interval_below_it():
    logp, length, owner = random_batch(np.random.default_rng(0), 900.0, prompts=8)
    found = measure(logp, length, owner, resamples=200)
    assert found["mi_seq_estimate"] == pytest.approx(found["mi_bound"])
    assert found["mi_seq_estimate_low"] < found["mi_bound"] - 0.05
    assert found["mi_seq_estimate_high"] == pytest.approx(found["mi_bound"])


def test_the_interval_above_chance_is_that_of_retrieval_less_chance():
    found = measure(*random_batch(np.random.default_rng(3), 1.0), resamples=100)
    for end in ("low", "high"):
        shifted = found[f"retrieval_accuracy_{end}"] - found["retrieval_chance"]
        assert found[f"retrieval_above_chance_{end}"] == shifted


def test_the_order_of_traces_does_not_move_intervals_beyond_their_noise():
    logp, length, owner = random_batch(np.random.default_rng(3), 1.0)
    turned = measure(logp[::-1], length[::-1], owner[::-1], resamples=2000)
    found = measure(logp, length, owner, resamples=2000)
    for end in ("low", "high"):
        name = f"mi_estimate_{end}"
        width = found["mi_estimate_high"] - found["mi_estimate_low"]
        assert turned[name] == pytest.approx(found[name], abs=0.1 * width)


def test_intervals_hold_the_estimate_of_a_noisy_batch():
    found = measure(*random_batch(np.random.default_rng(3), 1.0), resamples=400)
    for name in ("mi_estimate", "mi_seq_estimate", "conditional_entropy", "retrieval_accuracy"):
        assert found[f"{name}_low"] < found[name] < found[f"{name}_high"]


def test_traces_that_follow_their_prompt_have_the_least_p_value():
    found = measure(*random_batch(np.random.default_rng(0), 30.0), resamples=199)
    assert found["mi_p_value"] == found["retrieval_p_value"] == 1 / 200


def test_all_tied_scores_have_p_value_one():
    found = measure(np.full((8, 4), -3.0), np.ones(8, int), np.arange(8) % 4, resamples=100)
    assert found["mi_p_value"] == found["retrieval_p_value"] == 1.0


def test_a_prompt_that_likes_every_trace_is_not_taken_for_dependence():
    logp, length, owner = random_batch(np.random.default_rng(0), 0.0)
    logp[:, 1:] -= 50.0
    found = measure(logp, length, owner, resamples=199)
    assert found["retrieval_accuracy"] == found["retrieval_chance"]
    assert found["retrieval_p_value"] == 1.0


def test_a_retrieval_p_value_shares_the_credit_of_tied_prompts():
    owner = np.array([0, 0, 1, 1, 2])
    logp = np.array([[0, 1, 1], [0, 0, 0], [0, 0, 0], [1, 1, 1], [0, 0, 1.0]]) - 5.0

    def accuracy(owners) -> float:
        matrix = ScoreMatrix(logp, np.ones(5, int), np.array(owners))
        return float(trace_statistics(matrix)["recall@1"].mean())

    observed = accuracy(owner)
    null = [accuracy(o) for o in itertools.permutations(owner)]
    exact = np.mean(np.array(null) >= observed - 1e-12)
    found = measure(logp, np.ones(5, int), owner, resamples=2000)
    assert found["retrieval_p_value"] == pytest.approx(exact, abs=0.04)


def independent_p_values(name: str, repetitions: int, each: int = 4) -> np.ndarray:
    """P-values of batches whose owners were dealt out at random."""
    rng = np.random.default_rng(5)
    batches = [random_batch(rng, 0.0, each=each) for _ in range(repetitions)]
    found = [measure(*batch, resamples=199, seed=i) for i, batch in enumerate(batches)]
    return np.array([metrics[name] for metrics in found])


def test_p_values_of_mi_are_uniform_if_traces_ignore_their_prompts():
    """Kolmogorov and Smirnov: the largest gap to the uniform distribution, at the 1% level."""
    found = np.sort(independent_p_values("mi_p_value", 400))
    expected = np.arange(1, 401) / 400
    gap = max(np.abs(found - expected).max(), np.abs(found - expected + 1 / 400).max())
    # P-values come in steps of 1/200, which may add that much to the gap.
    assert gap <= 1.63 / math.sqrt(400) + 1 / 200


def test_p_values_of_retrieval_are_never_too_small_though_it_comes_in_steps():
    found = independent_p_values("retrieval_p_value", 400)
    for alpha in (0.01, 0.05, 0.1, 0.25, 0.5):
        # Two standard deviations of a share of 400.
        slack = 2 * math.sqrt(alpha * (1 - alpha) / 400)
        assert (found <= alpha).mean() <= alpha + slack, alpha
