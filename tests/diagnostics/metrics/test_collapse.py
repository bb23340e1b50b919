"""The collapse diagnostic: when it is due, which scopes it measures, what it hands to ``measure``."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.diagnostics import Collapse, Ema, Evidence, Surface, measure
from ragen2.diagnostics.metrics.collapse import (
    FEWEST_TRACES,
    check_scope,
    judged_scope,
    main_scope,
    measured_scopes,
)
from ragen2.scoring import Trace, cross_score
from ragen2.types import Group, Message, Prompt, StopReason, Trajectory


class TableScorer:
    """Every token of a continuation is likelier where its first token names the context's last."""

    def __init__(self) -> None:
        self.temperatures: list[float] = []
        self.num_pairs = 0

    def score(self, pairs, temperature=1.0):
        self.temperatures.append(temperature)
        self.num_pairs += len(pairs)
        return [
            np.full(
                len(pair.continuation_ids_T),
                -0.5 if pair.continuation_ids_T[0] == pair.context_ids_T[-1] else -2.0,
            )
            for pair in pairs
        ]


def batch(turn_of, *, prompts: int = 4, members: int = 4, turns: int = 3) -> list[Group]:
    """Groups whose turn K is seen as [K, 10 * K + group]; a reasoning names its context's last token."""
    groups = []
    for seed in range(prompts):
        prompt = Prompt("E", seed, (Message("user", str(seed)),))
        steps = tuple(
            turn_of(prompt_ids=[k, 10 * k + seed], ids=[10 * k + seed, 1, 2], reasoning_span=(0, 2))
            for k in range(1, turns + 1)
        )
        each = [Trajectory(prompt, luck, steps, StopReason.DONE, False) for luck in range(members)]
        groups.append(Group(prompt, tuple(each)))
    return groups


def scopes_of(metrics) -> set[str]:
    return {name.split("/")[1] for name in metrics}


def test_it_measures_what_measure_measures_under_its_prefix(turn_of):
    groups, before = batch(turn_of), Ema(0.3, 0.5)
    collapse = Collapse(resamples=100, interval="population")
    evidence = Evidence(4, groups, TableScorer(), ema={"first_turn": before})
    found = collapse.measure(evidence)
    (scope,) = collapse._scopes(evidence)
    scores = cross_score(scope.traces, TableScorer())
    expected = measure(
        scores.logp_NP,
        scores.length_N,
        scores.owner_N,
        interval="population",
        resamples=100,
        ema=before,
        seed=4,
    )
    expected["near_duplicates"] = 0.0
    assert found == {f"collapse/first_turn/{name}": value for name, value in expected.items()}


def test_scores_are_taken_at_the_temperature_of_the_batch(turn_of):
    scorer = TableScorer()
    Collapse(resamples=100).measure(Evidence(1, batch(turn_of), scorer, temperature=0.7))
    assert scorer.temperatures == [0.7]


def test_each_scope_has_its_own_prefix_and_its_own_traces(turn_of):
    everything = Collapse(scopes=("first_turn", "turns", "trajectory"), resamples=100)
    evidence = Evidence(1, batch(turn_of), TableScorer())
    found = everything.measure(evidence)
    assert scopes_of(found) == {"first_turn", "turn_2", "turn_3", "trajectory"}
    assert everything.measure(evidence).absent == {}
    for scope, traces, prompts in (
        ("first_turn", 16, 4),
        ("turn_2", 16, 4),
        ("turn_3", 16, 4),
        ("trajectory", 48, 12),
    ):
        assert found[f"collapse/{scope}/num_traces"] == traces
        assert found[f"collapse/{scope}/num_prompts"] == prompts
        assert found[f"collapse/{scope}/retrieval_accuracy"] == 1.0


def test_only_the_scopes_asked_for_are_scored(turn_of):
    found = Collapse(scopes=("trajectory",), resamples=100).measure(
        Evidence(1, batch(turn_of), TableScorer())
    )
    assert scopes_of(found) == {"trajectory"}


def test_limits_hold_in_every_scope(turn_of):
    few = Collapse(
        scopes=("first_turn", "turns", "trajectory"), max_traces=9, max_prompts=3, resamples=100
    )
    found = few.measure(Evidence(1, batch(turn_of), TableScorer()))
    for scope in ("first_turn", "turn_2", "turn_3", "trajectory"):
        assert found[f"collapse/{scope}/num_traces"] <= 9
        assert found[f"collapse/{scope}/num_prompts"] <= 3
    assert found["collapse/first_turn/num_traces"] == 9


def test_a_token_budget_bounds_what_is_scored(turn_of):
    evidence = Evidence(1, batch(turn_of), whole := TableScorer())
    Collapse(resamples=100).measure(evidence)
    # 4 prompts of 2 tokens, 16 reasonings of 2: under the own and one other prompt they read 8 + 64.
    part = TableScorer()
    Collapse(resamples=100, max_tokens=72).measure(Evidence(1, evidence.groups, part))
    assert part.num_pairs < whole.num_pairs
    fewer = Collapse(resamples=100, max_tokens=60)
    found = fewer.measure(Evidence(1, evidence.groups, TableScorer()))
    assert found["collapse/first_turn/num_traces"] == 13  # 8 + 4 * 13 = 60


def test_a_budget_too_small_for_anything_is_a_reason_and_not_an_error(turn_of):
    evidence = Evidence(1, batch(turn_of), TableScorer())
    tiny = Collapse(max_tokens=3)
    assert tiny.measure(evidence) == {}
    assert tiny.measure(evidence).absent == {
        "collapse/first_turn": "0 reasoning traces to score, 2 are needed",
    }


def test_a_turn_that_few_reach_is_missing_with_its_reason(turn_of):
    groups = batch(turn_of, turns=1) + batch(turn_of, prompts=1, members=3, turns=2)
    wide = Collapse(scopes=("turns", "trajectory"), resamples=100)
    evidence = Evidence(1, groups, TableScorer())
    assert scopes_of(wide.measure(evidence)) == {"trajectory"}
    assert wide.measure(evidence).absent == {
        "collapse/turn_2": f"3 reasoning traces to score, {FEWEST_TRACES} are needed"
    }


def test_a_batch_of_single_turns_says_that_there_are_no_later_ones(turn_of):
    wide = Collapse(scopes=("turns",))
    evidence = Evidence(1, batch(turn_of, turns=1), TableScorer())
    assert wide.measure(evidence) == {}
    assert wide.measure(evidence).absent == {"collapse/turns": "no trajectory has a second turn"}


def test_one_prompt_cannot_be_compared(turn_of):
    evidence = Evidence(1, batch(turn_of, prompts=1), TableScorer())
    assert Collapse().measure(evidence) == {}
    assert Collapse().measure(evidence).absent == {
        "collapse/first_turn": "1 distinct prompt among 4 reasoning traces, 2 are needed"
    }


def test_near_duplicates_are_counted_as_columns():
    lone, twin = np.arange(100, 130), np.arange(30)
    near = twin.copy()
    near[7] = 99
    traces = [Trace(prompt, np.array([1, 2])) for prompt in (twin, near, lone) for _ in range(2)]
    scope = check_scope("probe", traces)
    found = Collapse(resamples=100).measure_scope(scope, Evidence(1, [], TableScorer()))
    assert found["collapse/probe/near_duplicates"] == 2.0


def test_without_a_scorer_it_refuses_to_make_numbers_up():
    with pytest.raises(ValueError, match="called without a scorer"):
        Collapse().measure(Evidence(1, []))


@pytest.mark.parametrize(("every", "due"), [(1, [1, 2, 3, 4, 5, 6]), (3, [1, 3, 6]), (5, [1, 5])])
def test_the_first_step_and_multiples_are_due(every, due):
    diagnostic = Collapse(every=every)
    assert [step for step in range(1, 7) if diagnostic.is_due(step)] == due


def test_which_traces_are_drawn_depends_on_seed_and_step_alone(turn_of):
    groups = batch(turn_of, members=8)
    few = Collapse(scopes=("trajectory",), max_traces=6)

    def drawn(step: int, seed: int) -> list[list[int]]:
        (scope,) = few._scopes(Evidence(step, groups, None, seed=seed))
        return [trace.prompt_ids_T.tolist() for trace in scope.traces]

    assert drawn(1, 0) == drawn(1, 0)
    assert drawn(1, 0) != drawn(2, 0)
    assert drawn(1, 0) != drawn(1, 1)


# --- names of scopes -------------------------------------------------------------------------------


def names(*scopes: str) -> list[str]:
    return [f"collapse/{scope}/retrieval_accuracy" for scope in scopes]


def test_measured_scopes_are_in_reading_order():
    found = measured_scopes(names("probe", "turn_10", "trajectory", "turn_2", "first_turn"))
    assert found == ["first_turn", "turn_2", "turn_10", "trajectory", "probe"]
    assert measured_scopes(["collapse/first_turn/mi_bound", "rollout/success"]) == []


def test_the_main_scope_is_the_first_turn_if_there_is_one():
    assert main_scope(names("probe", "trajectory", "first_turn")) == "first_turn"
    assert main_scope(names("probe", "trajectory", "turn_2")) == "trajectory"
    assert main_scope(names("probe")) == "probe"
    assert main_scope([]) == "first_turn"


def test_a_run_is_judged_by_one_scope():
    wide = Collapse(scopes=("turns", "trajectory"))
    assert judged_scope([Surface(), Collapse(), wide]) == "first_turn"
    assert judged_scope([Surface(), wide]) == "trajectory"
    assert judged_scope([Surface()]) == "first_turn"
