"""Sokoban: rooms that can be solved, rewards as published, optimal plans, honest legends."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
from collections import deque
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen2.envs import check_env, make
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.envs.sokoban.env import Sokoban, SokobanEpisode
from ragen2.envs.sokoban.levels import load_levels, parse_room
from ragen2.envs.sokoban.solver import SearchLimit, solve
from ragen2.errors import ConfigError, EnvError
from ragen2.seeding import stream

CORRIDOR = ("#######", "#@ $. #", "#######")
TWO_BOXES = ("######", "#@$$.#", "#   .#", "######")
BOXOBAN = "sokoban/boxoban_levels.jsonl.gz"


def _episode(grid, **changes):
    return SokobanEpisode(Sokoban(**changes), parse_room(grid))


def _shortest(room):
    """Number of moves of a best plan by plain search over single moves; None: no plan."""
    start = room.player, room.boxes
    depth, queue = {start: 0}, deque([start])
    while queue:
        player, boxes = state = queue.popleft()
        if boxes == room.targets:
            return depth[state]
        for step in room.steps:
            ahead, after = player + step, boxes
            if ahead in boxes:
                after = boxes - {ahead} | {ahead + step}
            if ahead in room.walls or after & room.walls or len(after) < len(boxes):
                continue
            if (ahead, after) not in depth:
                depth[ahead, after] = depth[state] + 1
                queue.append((ahead, after))
    return None


def _fingerprint():
    texts = [make("Sokoban").start(seed, 0).observation for seed in range(50)]
    texts += [make("Sokoban", size=9, boxes=3).start(seed, 0).observation for seed in range(10)]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def show_fingerprint():
    sys.stdout.write(_fingerprint())


@pytest.mark.parametrize(
    "changes",
    [
        {"size": 8, "boxes": 2, "observation": "grid"},
        {"width": 9, "height": 5, "observation": "coord", "coord_walls": False},
        {"size": 10, "boxes": 4, "max_actions": 40},
    ],
)
def test_the_contract_holds_for_other_rooms(changes):
    assert check_env(make("Sokoban", **changes), seeds=range(20))


def test_rooms_are_the_same_everywhere():
    code = (
        "import sys; sys.path.append(sys.argv[1]); import test_sokoban as t; t.show_fingerprint()"
    )
    others = [
        subprocess.run(
            [sys.executable, "-c", code, os.path.dirname(__file__)],
            env={**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for salt in ("1", "77")
    ]
    assert {*others, _fingerprint()} == {"c781e7e6159be89b"}


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    width=st.integers(5, 10),
    height=st.integers(5, 10),
    boxes=st.integers(1, 4),
    max_actions=st.integers(10, 60),
)
def test_every_drawn_room_can_be_solved(seed, width, height, boxes, max_actions):
    boxes = min(boxes, (width - 2) * (height - 2) // 4 + 1)
    env = make("Sokoban", width=width, height=height, boxes=boxes, max_actions=max_actions)
    episode = env.start(seed, 0)
    room = episode.room
    assert len(room.boxes) == len(room.targets) == boxes
    assert not room.boxes & room.targets
    assert room.player in room.floor - room.boxes
    plan = solve(room)
    assert plan is not None
    assert len(plan) <= max_actions
    steps = [episode.step(action) for action in plan]
    assert steps[-1].solved
    assert not any(step.solved for step in steps[:-1])


def test_default_rooms_fit_into_the_default_number_of_actions():
    env = make("Sokoban")
    plans = [env.start(seed, 0).expert() for seed in range(400)]
    assert all(1 <= len(plan) <= env.max_actions for plan in plans)
    assert 3.5 < np.mean([len(plan) for plan in plans]) < 6


def test_rooms_differ_from_seed_to_seed():
    env = make("Sokoban")
    assert len({env.start(seed, 0).observation for seed in range(200)}) > 180


def test_training_and_evaluation_share_no_drawn_room():
    env = make("Sokoban", size=5)
    held_out = {env.start(seed, 0).room for seed in range(200)}
    assert held_out.isdisjoint(env.start(HELD_OUT_SEEDS + seed, 0).room for seed in range(1000))


def test_plan_limits_are_kept():
    env = make("Sokoban", size=8, boxes=2, min_plan=6, max_plan=12)
    lengths = [len(solve(env.start(seed, 0).room)) for seed in range(30)]
    assert min(lengths) >= 6
    assert max(lengths) <= 12


@pytest.mark.parametrize(("size", "boxes"), [(6, 1), (6, 2), (7, 2), (6, 3)])
def test_plans_are_as_short_as_plain_search_finds(size, boxes):
    env = make("Sokoban", size=size, boxes=boxes, max_actions=25)
    hopeless = 0
    for seed in range(12):
        episode = env.start(seed, 0)
        rng = stream("test", seed)
        for action in (episode.random_action(rng) for _ in range(8)):
            room = parse_room(_level_of(episode))
            plan, best = solve(room), _shortest(room)
            assert (plan is None) == (best is None)
            hopeless += plan is None
            if plan is not None:
                assert len(plan) == best
            if episode.step(action).done:
                break
    assert hopeless < 12 * 8


def _level_of(episode):
    text = SokobanEpisode(Sokoban(observation="grid", symbols="#_.*$@+"), episode.room)
    text.player, text.boxes = episode.player, set(episode.boxes)
    return text.observation.split("\n")


def test_a_box_in_a_corner_leaves_no_plan():
    assert solve(parse_room(("#####", "#$ .#", "#@  #", "#####"))) is None


def test_a_frozen_pair_is_seen_as_hopeless_at_once():
    room = parse_room(("#######", "# $$  #", "#@  ..#", "#######"))
    assert solve(room, max_expanded=1) is None


def test_many_boxes_are_planned_for_too():
    rows = ("#" * 12, "#@" + " " * 9 + "#", "#" + " " * 10 + "#", "#" + "$" * 10 + "#")
    plan = solve(parse_room((*rows, "#" + "." * 10 + "#", "#" * 12)))
    assert len(plan) == 2 + 9 * 3, "two down, then nine times up, across, down"


def test_a_search_that_gives_up_says_so():
    with pytest.raises(SearchLimit, match="no plan found in 1 nodes; raise max_expanded"):
        solve(parse_room(("########", "#@   $.#", "#   $. #", "########")), max_expanded=1)


def test_a_solved_room_of_one_box_returns_eleven_less_a_tenth_a_move():
    for seed in range(30):
        episode = make("Sokoban").start(seed, 0)
        plan = episode.expert()
        total = sum(episode.step(action).reward for action in plan)
        assert total == pytest.approx(11 - 0.1 * len(plan))


def test_a_box_pays_when_it_comes_and_costs_when_it_goes():
    episode = _episode(("########", "#@ $.  #", "#     .#", "#   $  #", "########"))
    rewards = [episode.step("Right").reward for _ in range(3)]
    assert rewards == pytest.approx([-0.1, 0.9, -1.1])


def test_blocked_moves_cost_and_change_nothing():
    episode = _episode(TWO_BOXES)
    before = episode.observation
    for action in ("Up", "Left", "Right"):
        step = episode.step(action)
        assert (step.reward, step.valid, step.effective, step.done) == (-0.1, True, False, False)
    assert episode.observation == before


@pytest.mark.parametrize("action", ["", "jump", "up down", "||", "\x00", "Right" * 1000])
def test_unknown_actions_cost_nothing_here(action):
    step = _episode(CORRIDOR).step(action)
    assert (step.reward, step.valid, step.effective) == (0.0, False, False)


def test_case_and_spaces_are_forgiven():
    episode = _episode(CORRIDOR)
    assert [episode.step(a).solved for a in (" right", "RIGHT\n")] == [False, True]


def test_a_solved_room_stays_solved():
    episode = _episode(CORRIDOR)
    for _ in range(2):
        episode.step("Right")
    step = episode.step("Left")
    assert (step.reward, step.done, step.solved, step.effective) == (0.0, True, True, False)
    assert episode.expert() == ()


def test_the_three_observations():
    grid = ("######", "#+ # #", "# $$.#", "#  * #", "######")
    shown = "######\n#S_#_#\n#_XXO#\n#__√_#\n######"
    cells = "You (1, 1) Boxes (2, 2) (2, 3) (3, 3) Targets (1, 1) (2, 4) (3, 3)"
    assert _episode(grid, observation="grid").observation == shown
    assert _episode(grid).observation == f"{cells}\n{shown}"
    assert _episode(grid, observation="coord").observation == f"Room 5 x 6 {cells} Walls (1, 3)"
    assert _episode(grid, observation="coord", coord_walls=False).observation == (
        f"Room 5 x 6 {cells}"
    )


@pytest.mark.parametrize("symbols", ["#_O√XPS", "W.GCBA@"])
def test_the_legend_explains_every_symbol_in_use(symbols):
    env = make("Sokoban", symbols=symbols, observation="grid")
    meanings = ("wall", "floor", "target", "box on target", "box", "you", "you on a target")
    for symbol, meaning in zip(symbols, meanings, strict=True):
        assert f"{symbol} {meaning}" in env.instruction
    for seed in range(20):
        assert set(env.start(seed, 0).observation) <= {*symbols, "\n"}


def test_without_a_grid_there_is_no_legend():
    assert "Legend" not in make("Sokoban", observation="coord").instruction
    assert (
        "Walls are not shown" in make("Sokoban", observation="coord", coord_walls=False).instruction
    )


def test_the_expert_plans_anew_after_a_detour():
    episode = _episode(("#######", "#@ $. #", "#     #", "#######"))
    assert episode.expert() == ("Right", "Right")
    episode.step("Down")
    assert episode.expert() == ("Up", "Right", "Right")
    for action in episode.expert():
        step = episode.step(action)
    assert step.solved


def test_a_ruined_room_has_no_plan_but_words():
    ruined = _episode(("#####", "#$ .#", "#@  #", "#####"))
    assert ruined.expert() == ()
    assert "no push helps now" in ruined.explain(("Right",), stream("words", 0))


def test_reasoning_names_cells_of_the_prompt_and_the_moves():
    env = make("Sokoban")
    for seed in range(30):
        episode = env.start(seed, 0)
        plan = episode.expert()[:2]
        words = episode.explain(plan, stream("words", seed))
        you, box = episode.observation.split(" Boxes ")[0].removeprefix("You "), "box ("
        assert you in words
        assert box in words
        assert words.endswith(" ".join(action.lower() for action in plan))
        assert "<" not in words


def test_reasoning_is_worded_in_many_ways():
    episode = make("Sokoban").start(0, 0)
    plan = episode.expert()
    assert len({episode.explain(plan, stream("words", i)) for i in range(40)}) > 20


def test_the_reward_range_follows_the_settings():
    assert Sokoban.reward_range == pytest.approx((-1.0, 10.9))
    assert Sokoban(boxes=3, max_actions=50).reward_range == pytest.approx((-5.0, 12.7))


def test_the_best_default_return_is_reached():
    env = make("Sokoban")
    best = max(
        sum(episode.step(action).reward for action in episode.expert())
        for episode in (env.start(seed, 0) for seed in range(60))
    )
    assert best == pytest.approx(env.reward_range[1])


def test_the_picture_shows_the_room():
    episode = _episode(CORRIDOR)
    picture = episode.image(10)
    assert picture.shape == (30, 70, 3)
    episode.step("Right")
    changed = np.argwhere((episode.image(10) != picture).any(axis=2))
    assert set(changed[:, 1] // 10) == {1, 2}


def test_each_kind_of_cell_looks_different():
    picture = _episode(("#######", "#@ $.*#", "#######")).image(28)
    cells = [picture[28:56, 28 * column : 28 * column + 28].tobytes() for column in range(6)]
    assert len(set(cells)) == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 4}, "Sokoban: no box can be pushed in a 4x4 room; make it 5x5 or more"),
        ({"boxes": 9}, "Sokoban: 9 boxes are too many for a 6x6 room; use at most 5 or a larger"),
        ({"min_plan": 11}, "Sokoban: min_plan is above max_actions 10; lower it or raise max_act"),
        ({"min_plan": 5, "max_plan": 4}, "Sokoban: min_plan is above max_plan 4; lower it"),
        ({"size": 12, "boxes": 11}, "Sokoban: boxes is above max_actions 10; lower it"),
        ({"symbols": "##"}, "Sokoban.symbols: give seven different visible characters, got '##'"),
        ({"symbols": "# O√XPS"}, "Sokoban.symbols: give seven different visible characters"),
        ({"box": 2}, "unknown setting Sokoban.box; did you mean 'boxes'?"),
    ],
)
def test_bad_settings_say_what_to_change(changes, message):
    with pytest.raises(ConfigError) as caught:
        make("Sokoban", **changes)
    assert str(caught.value).startswith(message)


def test_a_plan_limit_that_cannot_be_kept_is_an_error():
    message = (
        "no 6x6 Sokoban room with 5 boxes that takes 1 to 5 moves was drawn; raise size or max_plan"
    )
    with pytest.raises(EnvError, match=message):
        make("Sokoban", boxes=5, max_plan=5).start(0, 0)


def _write_levels(folder):
    levels = [make("Sokoban", observation="grid", symbols="#-.*$@+").start(s, 0) for s in range(25)]
    grids = [level.observation.replace("-", " ").split("\n") for level in levels]
    text = "".join(f"; {i}\n" + "\n".join(grid) + "\n\n" for i, grid in enumerate(grids))
    (folder / "000.txt").write_text(text)
    records = "".join(json.dumps({"id": i, "grid": grid}) + "\n" for i, grid in enumerate(grids))
    (folder / "levels.jsonl").write_text(records)
    with gzip.open(folder / "levels.jsonl.gz", "wt") as file:
        file.write(records)
    return [tuple(grid) for grid in dict.fromkeys(map(tuple, grids))]


def test_text_and_json_files_hold_the_same_levels(tmp_path):
    grids = _write_levels(tmp_path)
    for name in ("000.txt", "levels.jsonl", "levels.jsonl.gz"):
        assert list(load_levels(str(tmp_path / name))) == grids
    assert list(load_levels(str(tmp_path))) == grids, "a folder drops duplicates"


def test_levels_are_played_as_they_are_drawn(tmp_path):
    grids = _write_levels(tmp_path)
    env = make("Sokoban", levels=str(tmp_path / "000.txt"), observation="grid", symbols="#_.*$@+")
    assert env.start(0, 0).observation == "\n".join(grids[0]).replace(" ", "_")
    assert check_env(env, seeds=range(10))


def test_training_and_evaluation_share_no_level(tmp_path):
    grids = _write_levels(tmp_path)
    env = make("Sokoban", levels=str(tmp_path / "000.txt"))
    held_out = {env.start(seed, 0).room for seed in range(60)}
    training = {env.start(HELD_OUT_SEEDS + seed, 0).room for seed in range(60)}
    assert not held_out & training
    assert len(held_out) + len(training) == len(grids)


def test_ragged_levels_get_their_border():
    room = parse_room((" ###", "@$. "))
    assert (room.width, room.height) == (6, 4)
    assert solve(room) == ("Right",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("####\n#@$Q#\n", "level 1: 'Q' is no level symbol"),
        ("#####\n#$ .#\n", "level 1: 0 players; a level has exactly 1"),
        ("#####\n#@$ #\n", "level 1: 1 boxes and 0 targets; a level has as many"),
        ("#####\n#@$.#\n", "holds 1 different levels; give at least 2"),
    ],
)
def test_bad_level_files_say_what_is_wrong(tmp_path, text, message):
    file = tmp_path / "bad.txt"
    file.write_text(text)
    with pytest.raises(EnvError) as caught:
        make("Sokoban", levels=str(file)).start(0, 0)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"{}\n", b"[1]\n", b"nonsense\n", b"\xff\xfe\n", b'{"grid": 5}']
)
def test_bad_records_are_errors_of_one_line(tmp_path, content):
    file = tmp_path / "bad.jsonl"
    file.write_bytes(content)
    with pytest.raises(EnvError, match=r"bad\.jsonl (has a line that is no JSON record|cannot be)"):
        load_levels(str(file))


def test_missing_and_broken_files_are_errors(tmp_path):
    with pytest.raises(EnvError, match="does not exist; give a level file or a folder of them"):
        load_levels(str(tmp_path / "none.txt"))
    broken = tmp_path / "broken.jsonl.gz"
    broken.write_bytes(gzip.compress(b'{"grid": []}\n' * 99)[:15])
    with pytest.raises(EnvError, match="cannot be read as levels"):
        load_levels(str(broken))


def test_a_thousand_boxoban_levels_load_and_render(real_data):
    path = str(real_data(BOXOBAN))
    env = make("Sokoban", levels=path, observation="grid", symbols="#_.*$@+")
    shown = set()
    for seed in range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + 1000):
        episode = env.start(seed, 0)
        shown.add(tuple(episode.observation.replace("_", " ").split("\n")))
        assert episode.image(4).shape == (40, 40, 3)
    assert len(shown) == 1000
    assert shown <= set(load_levels(path))


def test_unfiltered_boxoban_levels_are_solved(real_data):
    with gzip.open(real_data(BOXOBAN), "rt") as lines:
        records = (json.loads(line) for line in lines)
        unfiltered = (record for record in records if record["difficulty"] == "unfiltered")
        grids = [record["grid"] for record in islice(unfiltered, 100)]
    solved = 0
    for grid in grids:
        episode = _episode(grid)
        try:
            plan = solve(episode.room, max_expanded=5000)
        except SearchLimit:
            continue
        assert plan is not None
        assert [episode.step(action).solved for action in plan][-1]
        solved += 1
    assert solved >= 50


# --- binary reward ---------------------------------------------------------------------------------


def test_a_binary_reward_pays_one_for_the_solution_and_nothing_else():
    for seed in range(10):
        episode = make("Sokoban", reward="binary").start(seed, 0)
        rewards = [episode.step(action).reward for action in episode.expert()]
        assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
    assert make("Sokoban", reward="binary").reward_range == (0.0, 1.0)


def test_a_binary_reward_changes_nothing_but_the_pay():
    for seed in range(10):
        dense = make("Sokoban").start(seed, 0)
        binary = make("Sokoban", reward="binary").start(seed, 0)
        for action in ("Left", "Up", *dense.expert()):
            one, other = dense.step(action), binary.step(action)
            assert (one.done, one.solved, one.effective) == (
                other.done,
                other.solved,
                other.effective,
            )
            assert dense.observation == binary.observation
