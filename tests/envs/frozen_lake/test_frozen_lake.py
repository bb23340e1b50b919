"""FrozenLake: Gymnasium's dynamics, noise per member, an expert that reckons with slips."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen2.envs import check_env, make
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.envs.frozen_lake import ACTIONS, DISCOUNT, Chances, Lake, LakeEpisode, draw_lake
from ragen2.errors import ConfigError, EnvError
from ragen2.seeding import stream


def _lake(*rows):
    cells = {(r, c): symbol for r, row in enumerate(rows) for c, symbol in enumerate(row)}
    (start,) = (cell for cell, symbol in cells.items() if symbol == "P")
    (goal,) = (cell for cell, symbol in cells.items() if symbol == "G")
    return Lake(len(rows), frozenset(c for c, s in cells.items() if s == "O"), start, goal)


def _episode(lake, **changes):
    env = make("FrozenLake", size=lake.size, **changes)
    return LakeEpisode(env, lake, stream("test", 0))


def _follow(lake, plan):
    cell = lake.start
    for action in plan:
        cell = lake.move(cell, ACTIONS.index(action))
        assert cell not in lake.holes
    return cell


@pytest.mark.parametrize("slip", [0.0, 0.5, 1.0])
def test_the_contract_holds_for_other_slips(slip):
    assert check_env(make("FrozenLake", slip=slip), seeds=range(20))


def test_texts_stay_as_models_have_learnt_them():
    env = make("FrozenLake")
    episode = env.start(1, 0)
    assert env.instruction == (
        "Cross the frozen lake to the goal; a hole ends the walk. Cells are (row,column), (0,0) is "
        "top left. A move may slip sideways. Actions: Left, Down, Right, Up. "
        "Example: <think>goal is below me</think><answer>Down || Down</answer>"
    )
    assert episode.observation == "You (3,3) Goal (1,0) Holes none"
    assert (
        episode.explain(("Left", "Up"), stream("words", 0))
        == "my cell is (3,3), goal (1,0), 2 up and 3 left. plan: left up"
    )


def test_a_map_is_held_out_or_trained_on_never_both():
    env = make("FrozenLake")
    held_out = {env.start(seed, 0).observation for seed in range(300)}
    trained_on = {env.start(HELD_OUT_SEEDS + seed, 0).observation for seed in range(2000)}
    assert not held_out & trained_on


def test_the_grid_shows_every_cell():
    lake = _lake("P_O", "_O_", "__G")
    episode = _episode(lake, observation="grid", slip=0)
    assert episode.observation == "P_O\n_O_\n__G"
    for action in ("Down", "Right"):
        episode.step(action)
    assert episode.observation == "__O\n_X_\n__G"
    episode = _episode(lake, observation="grid", slip=0)
    for action in ("down", " DOWN ", "right", "Right"):
        step = episode.step(action)
    assert episode.observation == "__O\n_O_\n__√"
    assert (step.reward, step.done, step.solved) == (1.0, True, True)


@pytest.mark.parametrize("slip", [0.0, 0.2, 2 / 3, 1.0])
def test_moves_land_where_gymnasium_puts_them(slip):
    gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed")
    lake = _lake("P_O", "_O_", "__G")
    peer = gymnasium.make(
        "FrozenLake-v1", desc=["SFH", "FHF", "FFG"], is_slippery=True, success_rate=1 - slip
    )
    for action in range(4):
        expected: dict[int, float] = {}
        for chance, state, _, _ in peer.unwrapped.P[0][action]:
            expected[state] = expected.get(state, 0.0) + chance
        episode = _episode(lake, slip=slip)
        landed = np.zeros(9)
        for _ in range(3000):
            episode.player = lake.start
            episode.step(ACTIONS[action])
            landed[episode.player[0] * 3 + episode.player[1]] += 1
        for state in range(9):
            assert landed[state] / 3000 == pytest.approx(expected.get(state, 0.0), abs=0.05)


def test_full_slip_never_goes_the_intended_way():
    lake = _lake("____", "_P__", "____", "___G")
    episode = _episode(lake, slip=1.0)
    landed = set()
    for _ in range(200):
        episode.player = lake.start
        episode.step("Right")
        landed.add(episode.player)
    assert landed == {(0, 1), (2, 1)}


def test_members_of_a_group_slip_each_in_their_own_way():
    env = make("FrozenLake", slip=0.5, size=8)
    ends = set()
    for luck in range(20):
        episode = env.start(3, luck)
        for _ in range(5):
            episode.step("Down")
        ends.add(episode.player)
    assert len(ends) > 3


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(2, 9),
    hole_ratio=st.sampled_from([0.0, 0.1, 0.4]),
)
def test_without_slips_the_expert_walks_a_shortest_path(seed, size, hole_ratio):
    env = make("FrozenLake", slip=0, size=size, hole_ratio=hole_ratio)
    episode = env.start(seed, 0)
    plan = episode.expert()
    assert len(plan) == episode.lake.distances()[episode.lake.start]
    assert _follow(episode.lake, plan) == episode.lake.goal


def _worth(lake, slip, choose):
    """Discounted chance of a way to choose among the four actions' worths, by plain recursion."""

    @cache
    def worth(cell, moves):
        if cell == lake.goal or cell in lake.holes or not moves:
            return float(cell == lake.goal)
        turns = ((0, 1 - slip), (1, slip / 2), (3, slip / 2))
        worths = [
            sum(p * worth(lake.move(cell, (action + turn) % 4), moves - 1) for turn, p in turns)
            for action in range(4)
        ]
        return DISCOUNT * choose(worths, cell, moves)

    return worth(lake.start, 10)


@pytest.mark.parametrize("slip", [0.02, 0.2, 0.5, 0.8, 1.0])
def test_the_expert_is_worth_the_optimum(slip):
    for seed in range(8):
        lake = draw_lake(4, 0.25, 2, seed)
        chances = Chances(lake, slip)
        optimum = _worth(lake, slip, lambda worths, *_: max(worths))
        reached = _worth(lake, slip, lambda worths, *at, best=chances.best: worths[best(*at)])
        assert reached == pytest.approx(optimum, rel=1e-9)
        assert chances.value(lake.start, 10) == pytest.approx(optimum, rel=1e-9)


def test_the_expert_goes_round_a_hole_that_a_slip_would_reach():
    lake = _lake("____", "P__G", "_O__", "____")
    plan = _episode(lake, slip=0.1).expert()
    assert plan == ("Up", "Right", "Right", "Right", "Down")
    assert _episode(lake, slip=0.0).expert() == ("Right", "Right", "Right")


def test_with_few_moves_left_the_expert_dares_the_short_way():
    lake = _lake("____", "P__G", "_O__", "____")
    assert _episode(lake, slip=0.1, max_actions=3).expert() == ("Right", "Right", "Right")


def test_under_full_slip_the_expert_moves_across():
    lake = _lake("___", "P_G", "___")
    episode = _episode(lake, slip=1.0)
    assert episode.expert()[0] in ("Up", "Down")


def test_beyond_its_budget_the_expert_still_has_a_plan():
    episode = _episode(_lake("P__", "___", "__G"), slip=0, max_actions=1)
    for _ in range(4):
        step = episode.step(episode.expert()[0])
    assert step.solved
    assert episode.expert() == ()


def test_hole_ratio_is_the_share_of_holes():
    shares = [len(draw_lake(16, 0.2, 1, seed).holes) / 256 for seed in range(40)]
    assert np.mean(shares) == pytest.approx(0.2, abs=0.02)


def test_an_impossible_map_says_what_to_change():
    with pytest.raises(EnvError, match=r"a path of 50 moves in 10000 draws; lower hole_ratio"):
        make("FrozenLake", size=2, min_distance=50).start(0, 0)
    with pytest.raises(ConfigError, match=r"FrozenLake.slip must be less than or equal to 1"):
        make("FrozenLake", slip=1.1)


def test_the_picture_follows_the_walk():
    episode = _episode(_lake("P_", "OG"), slip=0)
    before = episode.image(16)
    assert before.shape == (32, 32, 3)
    episode.step("Right")
    after = episode.image(16)
    assert not np.array_equal(before[:16], after[:16])
    assert np.array_equal(before[16:], after[16:])
