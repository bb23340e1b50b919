"""Scores from wording: at chance under the null, above it when reasoning names its prompt."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.audit.likelihoods import WordLikelihood, opening
from ragen2.audit.reservoir import TextTrace
from ragen2.audit.text_model import (
    FEWEST_TRACES,
    StepTexts,
    TextScores,
    dispersion,
    effective_traces,
    text_scores,
    word_probabilities,
)
from ragen2.diagnostics import measure
from ragen2.types import FloatArray

WORDS = [f"w{index}" for index in range(30)]


def traces_of(
    seed: int, *, prompts: int = 8, traces: int = 6, own_words: int = 0
) -> list[list[str]]:
    """Random words from one distribution; ``own_words`` of each reasoning are its prompt's own."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(len(WORDS)))
    return [
        [
            " ".join(
                [*rng.choice(WORDS, size=int(rng.integers(5, 20)), p=shares)]
                + [f"own{prompt}"] * own_words
            )
            for _ in range(traces)
        ]
        for prompt in range(prompts)
    ]


def scored(texts: list[list[str]], prompts: list[str] | None = None) -> TextScores:
    """Scores of one step; prompts that nobody quotes, when left out."""
    (found,) = text_scores([StepTexts(prompts or [f"#{n}" for n in range(len(texts))], texts)])
    assert isinstance(found, TextScores), found
    return found


def probabilities(counts_PV: FloatArray) -> FloatArray:
    return word_probabilities(counts_PV, dispersion(counts_PV))


def measured(
    texts: list[list[str]],
    prompts: list[str] | None = None,
    *,
    resamples: int = 100,
    seed: int = 0,
) -> dict[str, float]:
    matrix = scored(texts, prompts).matrix
    return measure(matrix.logp_NP, matrix.length_N, matrix.owner_N, resamples=resamples, seed=seed)


def test_reasoning_that_ignores_its_prompt_is_at_chance_and_its_p_values_are_uniform():
    found = [measured(traces_of(seed), seed=seed) for seed in range(150)]
    accuracy = np.array([one["retrieval_accuracy"] for one in found])
    assert abs(accuracy.mean() - 1 / 8) < 3 * accuracy.std() / np.sqrt(len(accuracy))
    p_values = np.sort([one["mi_p_value"] for one in found])
    gap = np.abs(p_values - (np.arange(len(p_values)) + 0.5) / len(p_values)).max()
    assert gap < 1.63 / np.sqrt(len(p_values))  # Kolmogorov-Smirnov at 1%
    assert np.mean([one["retrieval_p_value"] <= 0.05 for one in found]) <= 0.08


def test_reasoning_that_names_its_prompt_is_found():
    found = measured(traces_of(0, own_words=1, traces=8))
    assert found["retrieval_accuracy"] > 0.9
    assert max(found["mi_p_value"], found["retrieval_p_value"]) <= 0.01
    assert found["mi_estimate"] > 0.0


def test_the_order_of_words_counts_where_it_tells_more():
    """Every prompt uses the same words; what differs is the order."""
    rng = np.random.default_rng(0)
    orders = [list(rng.permutation(["a", "b", "c", "d", "e", "f"])) for _ in range(6)]
    texts = [[" ".join(order * 2) for _ in range(6)] for order in orders]
    assert measured(texts)["retrieval_accuracy"] == 1.0


def test_equal_reasonings_for_everything_are_exactly_at_chance():
    found = measured([["go to the goal"] * 4 for _ in range(5)])
    assert found["retrieval_accuracy"] == pytest.approx(1 / 5)
    assert found["mi_estimate"] == pytest.approx(0.0, abs=1e-12)


def test_every_model_is_fitted_to_equally_many_and_none_is_scored_by_its_own():
    texts = traces_of(1, prompts=3, traces=8)
    scores = scored([texts[0], texts[1][:6], texts[2]])
    # The median prompt has 8 traces: 4 are fitted to, and what is left is scored.
    assert np.bincount(scores.matrix.owner_N).tolist() == [4, 2, 4]
    changed = [*texts[2][:4], *(["quite other words"] * 4)]
    other = scored([texts[0], texts[1][:6], changed])
    assert np.array_equal(scores.matrix.logp_NP[:6], other.matrix.logp_NP[:6])


def test_prompts_with_too_few_reasonings_are_left_out():
    texts = traces_of(2, prompts=4, traces=6)
    scores = scored([texts[0], texts[1][: FEWEST_TRACES - 1], texts[2], texts[3]])
    assert scores.prompts == (0, 2, 3)
    lonely, silent = text_scores([StepTexts("ab", [texts[0], []]), StepTexts("ab", [["x"], ["y"]])])
    assert lonely == "needs reasoning traces of at least 2 prompts, found 1"
    assert silent == (
        "no reasoning trace uses a word that tells the prompts apart; without --model this needs at "
        "least 3 reasoning traces per prompt"
    )


def test_a_word_that_differs_by_chance_keeps_its_pooled_frequency():
    even, own = [50.0, 50.0, 50.0], [10.0, 0.0, 0.0]
    words_PV = probabilities(np.array([even, own, [0.0] * 3]).T)
    assert words_PV.sum(1) == pytest.approx(1.0)
    assert words_PV[1, 0] == pytest.approx(words_PV[2, 0])
    assert words_PV[0, 1] > 10 * words_PV[1, 1]


def test_word_probabilities_are_those_of_the_formula():
    """Counts 9 and 1 of ten words: the pull of the formula is below the least, which is 2."""
    words_PV = probabilities(np.array([[9.0, 1.0, 0.0], [1.0, 9.0, 0.0]]))
    pooled = np.array([10.5, 10.5, 0.5]) / 21.5
    ratio = ((9 - 10 * pooled[0]) ** 2 + (1 - 10 * pooled[0]) ** 2) / (10 * pooled[0])
    assert (10 - ratio) / (ratio - 1) < 2.0
    known = np.array([9 + 2 * pooled[0], 1 + 2 * pooled[1]]) / 12
    unknown = 1000 * pooled[2] / 1010
    assert words_PV[0] == pytest.approx(np.array([*known, unknown]) / (known.sum() + unknown))


def test_the_pull_of_a_word_follows_the_spread_of_its_counts():
    """Counts 70 and 50 of 100: r = 2 x 10^2 / 60 - about 3.3, so s = (100 - r) / (r - 1), about 42."""
    counts_PV = np.array([[70.0, 30.0], [50.0, 50.0]])
    pooled = np.array([120.5, 80.5]) / 201
    ratio = ((70 - 100 * pooled[0]) ** 2 + (50 - 100 * pooled[0]) ** 2) / (100 * pooled[0])
    first = (100 - ratio) / (ratio - 1)
    other = ((30 - 100 * pooled[1]) ** 2 + (50 - 100 * pooled[1]) ** 2) / (100 * pooled[1])
    second = (100 - other) / (other - 1)
    assert 40 < first < 43
    raw = np.array(
        [(70 + first * pooled[0]) / (100 + first), (30 + second * pooled[1]) / (100 + second)]
    )
    assert probabilities(counts_PV)[0] == pytest.approx(raw / raw.sum())


def test_effective_traces_are_one_over_the_chance_that_two_are_equal():
    assert effective_traces([["a", "a", "a"], ["b", "b"]]) == 1.0
    # 3 equal pairs of 6: a half.
    assert effective_traces([["a", "a", "a", "b"]]) == pytest.approx(2.0)
    assert effective_traces([["a", "b", "c", "d"]]) == pytest.approx(6.0)
    assert effective_traces([["a"], ["b"]]) is None


DIRECTIONS = ("north", "east", "south", "west", "up", "down", "in", "out")


def stated_directions(seed: int, *, quoted: bool, steps: int = 20) -> list[StepTexts]:
    """8 prompts x 8 traces a step: shared filler, directions at random, and "go" with the prompt's own."""
    rng = np.random.default_rng(seed)
    shares = 1.0 / np.arange(1, 61)
    made = []
    for step in range(steps):
        traces = []
        for own in DIRECTIONS:
            traces.append([])
            for _ in range(8):
                text = [
                    f"w{n}" for n in rng.choice(60, rng.integers(20, 60), p=shares / shares.sum())
                ]
                for word in (*rng.choice(DIRECTIONS, 2), f"go {own}"):
                    text.insert(int(rng.integers(len(text))), str(word))
                traces[-1].append(" ".join(text))
        prompts = [
            f"board {step}: it lies {own if quoted else '?'} {n}"
            for n, own in enumerate(DIRECTIONS)
        ]
        made.append(StepTexts(prompts, traces))
    return made


@pytest.mark.parametrize("quoted", [False, True])
def test_a_direction_that_every_trace_states_is_seen_in_every_step(quoted):
    """The words are shared by all prompts, only their order tells; 20 steps of 64 traces, chance 1/8."""
    accuracy, critics = [], set()
    for found in text_scores(stated_directions(0, quoted=quoted)):
        assert isinstance(found, TextScores)
        matrix = found.matrix
        metrics = measure(matrix.logp_NP, matrix.length_N, matrix.owner_N, resamples=100)
        accuracy.append(metrics["retrieval_accuracy"])
        critics.add(found.critics)
        assert (matrix.logp_NP <= 0.0).all()
    assert min(accuracy) > 0.8
    assert len(critics) == 1, "one way of scoring for the whole log"
    assert "pairs" in critics.pop()


def test_the_first_step_does_not_settle_how_the_others_are_scored():
    """Its traces say nothing; what tells the prompts of all later steps apart is the order of words."""
    nothing = StepTexts([*"ab"], [[f"x{n} " * 9 for n in range(6)] for _ in range(2)])
    order = StepTexts(
        [*"ab"], [["a b " * (n + 1) for n in range(6)], ["b a " * (n + 1) for n in range(6)]]
    )
    for log in ([nothing, order, order], [order, order, nothing]):
        assert all(one.critics == ("pairs",) for one in text_scores(log))


def test_scored_traces_have_no_say_in_how_they_are_scored():
    log = stated_directions(1, quoted=True, steps=2)
    first, _ = text_scores(log)
    changed = StepTexts(
        log[1].prompts, [[*texts[:4], *["go north"] * 4] for texts in log[1].traces]
    )
    again, _ = text_scores([log[0], changed])
    assert np.array_equal(first.matrix.logp_NP, again.matrix.logp_NP)


def quoting(seed: int, *, share: float, replies: int, prompts: int = 16) -> StepTexts:
    """Prompts of 5 to 300 words and six numbers; traces of words and numbers, a share of which quote."""
    rng = np.random.default_rng(seed)
    vocabulary = [f"w{n}" for n in range(200)]
    odds = 1.0 / np.arange(1, 201)

    def filler(least: int, most: int) -> list[str]:
        return [
            str(w) for w in rng.choice(vocabulary, rng.integers(least, most), p=odds / odds.sum())
        ]

    made, traces = [], []
    for _ in range(prompts):
        numbers = rng.integers(1, 100, 6)
        made.append(" ".join(["Solve this.", *filler(5, 300), *map(str, numbers)]))
        sources = [
            numbers if rng.random() < share else rng.integers(1, 100, 6) for _ in range(replies)
        ]
        traces.append([" ".join([*filler(20, 60), *map(str, one[:3])]) for one in sources])
    return StepTexts(made, traces)


@pytest.mark.parametrize("replies", [1, 2])
def test_one_reply_per_prompt_is_enough_where_it_quotes_its_prompt(replies):
    found = [quoting(seed, share=1.0, replies=replies) for seed in range(20)]
    accuracy = [measured(one.traces, one.prompts)["retrieval_accuracy"] for one in found]
    assert np.mean(accuracy) > 0.6  # chance is 1/16
    scores = scored(found[0].traces, found[0].prompts)
    assert (scores.critics, scores.num_fitted) == (("prompt",), 0)
    assert len(scores.matrix.owner_N) == 16 * replies


@pytest.mark.parametrize("replies", [1, 2, 4])
def test_replies_that_quote_no_prompt_are_at_chance_however_long_prompts_are(replies):
    made = [quoting(seed, share=0.0, replies=replies) for seed in range(150)]
    found = [measured(one.traces, one.prompts, seed=seed) for seed, one in enumerate(made)]
    excess = np.array([one["retrieval_above_chance"] for one in found])
    assert abs(excess.mean()) < 3 * excess.std() / np.sqrt(len(excess))
    for name in ("mi_p_value", "retrieval_p_value"):
        assert np.mean([one[name] <= 0.05 for one in found]) <= 0.1


def test_what_all_prompts_say_is_no_evidence():
    """The system prompt is quoted by every trace, and each prompt's own word by none."""
    texts = [["reach the goal"], ["avoid the holes and reach the goal"], ["the goal"]]
    prompts = [f"avoid the holes and reach the goal {own}" for own in ("red", "green", "blue")]
    (found,) = text_scores([StepTexts(prompts, texts)])
    assert isinstance(found, str)


def test_a_cell_of_the_prompt_is_evidence_though_its_numbers_are_everywhere():
    prompts = [f"You ({n // 3},{n % 3}) Goal ({n % 3},{n // 3})" for n in (1, 2, 3, 5, 6, 7)]
    texts = [[f"I am at ({n // 3}, {n % 3}) so go"] for n in (1, 2, 3, 5, 6, 7)]
    assert measured(texts, prompts)["retrieval_accuracy"] >= 0.5


def test_the_prompt_of_a_later_turn_is_what_came_before_the_first_reply():
    chat = (("system", "s"), ("user", "left"), ("assistant", "my words"), ("user", "moved"))
    assert opening(chat) == opening(chat[:2]) == "s\nleft"


def test_without_a_model_few_replies_are_scored_one_sidedly():
    step = [
        [TextTrace(f"find the {own} box", "", f"go to {own}")] for own in ("red", "blue", "old")
    ]
    (found,) = WordLikelihood().score_steps([step])
    assert found.num_fitted == 0
    assert (found.matrix.logp_NP.argmax(1) == [0, 1, 2]).all()
