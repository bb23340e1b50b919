"""Replays: the episodes of the rollout files, a fair choice of them, turn by turn."""

from __future__ import annotations

import json

import pytest
from report_runs import make_run

from ragen2.errors import RunError
from ragen2.reports.data import episodes
from ragen2.reports.data.episodes import (
    CUT,
    MOST_CHARACTERS,
    choose,
    count_rows,
    episode_of,
    read_rows,
    replays_of,
)
from ragen2.reports.load import load
from ragen2.runs.store import RunDirectory


@pytest.fixture
def row(turn_of):
    """A line of a rollout file."""

    def make(seed: int = 7, luck: int = 0, reward: float = 0.0, turns: int = 1, **more):
        turn = {
            "text": "why</think><answer>Up</answer>",
            "reasoning": "why",
            "actions": ["Up", "Down"],
            "executed": ["Up"],
            "valid": True,
            "problem": "",
            "observation": "You (1,0) Goal (1,1) Holes none",
            "reward": reward,
            "penalty": 0.0,
        }
        return {
            "env": "FrozenLake",
            "seed": seed,
            "luck": luck,
            "messages": [
                {"role": "system", "content": "rules"},
                {"role": "user", "content": "You (0,0) Goal (1,1) Holes none\nActions left 3"},
            ],
            "turns": [turn | {"reward": reward} for _ in range(turns)],
            "reward": reward,
            "solved": reward > 0,
            "stop": "max_turns",
            "error": "",
        } | more

    return make


def test_an_episode_is_told_turn_by_turn(row):
    found = episode_of(row(luck=3, reward=1.0, turns=2), True, {"env": {"size": 2}})
    assert found["label"] == "seed 7, play 3"
    assert found["system"] == "rules"
    assert (found["stop"], found["kept"], found["solved"]) == ("max turns", True, True)
    first, second = found["turns"]
    assert first["seen"]["text"].startswith("You (0,0)")
    assert first["seen"]["board"]["rows"] == [["P", "_"], ["_", "G"]]
    assert second["seen"]["board"]["rows"] == [["_", "_"], ["P", "G"]]
    assert found["end"]["board"]["rows"] == [["_", "_"], ["P", "G"]]
    assert (first["actions"], first["fates"]) == (["Up", "Down"], ["taken", "not taken"])
    assert first["raw"] == "", "the reply holds nothing but its parts"


def test_it_is_told_what_became_of_each_action(row):
    one = row()
    one["turns"][0] |= {
        "actions": ["Fly", "Up", "Down", "Left"],
        "executed": ["Up", "Down"],
        "effective": [True, False],
        "unknown": ["Fly"],
        "valid": False,
    }
    (turn,) = episode_of(one, None, {})["turns"]
    assert turn["fates"] == ["unknown", "taken", "without effect", "not taken"]
    assert turn["problem"] == "unknown action 'Fly'"


def test_a_malformed_reply_is_shown_as_it_was_sampled(row):
    one = row()
    one["turns"][0] |= {"valid": False, "problem": "no answer", "text": "<b>odd", "actions": []}
    (turn,) = episode_of(one, None, {})["turns"]
    assert (turn["raw"], turn["problem"], turn["valid"]) == ("<b>odd", "no answer", False)


def test_an_episode_without_turns_and_one_of_another_environment_are_shown(row):
    empty = episode_of(row(turns=0), None, {})
    assert (empty["turns"], empty["end"]) == ([], None)
    text = episode_of(row(env="WebShop"), None, {})
    assert text["turns"][0]["seen"]["board"] is None


def test_images_of_a_turn_are_shown_if_they_are_data(row):
    one = row()
    one["turns"][0]["images"] = ["data:image/png;base64,AA", "https://example.org/x.png", 3]
    (turn,) = episode_of(one, None, {})["turns"]
    assert turn["seen"]["images"] == ["data:image/png;base64,AA"]


def test_every_prompt_has_its_turn_best_paid_first_then_worst(row, monkeypatch):
    rows = [row(seed=s, luck=n, reward=r) for s in (1, 2) for n, r in enumerate((0.5, 1.0, 0.0))]
    monkeypatch.setattr(episodes, "MOST_EPISODES", 2)
    assert choose(rows) == [1, 4]
    monkeypatch.setattr(episodes, "MOST_EPISODES", 4)
    assert choose(rows) == [1, 2, 4, 5]
    monkeypatch.setattr(episodes, "MOST_EPISODES", 24)
    assert choose(rows) == list(range(6))


def test_long_texts_make_fewer_episodes_but_never_none(row, monkeypatch):
    rows = [row(seed=s) for s in range(4)]
    monkeypatch.setattr(episodes, "STEP_CHARACTERS", 300)
    assert 1 < len(choose(rows)) < 4
    monkeypatch.setattr(episodes, "STEP_CHARACTERS", 1)
    assert choose(rows) == [0]
    assert choose([]) == []


def test_texts_are_cut(row):
    one = row()
    one["turns"][0]["reasoning"] = "x" * (MOST_CHARACTERS + 1)
    (turn,) = episode_of(one, None, {})["turns"]
    assert turn["reasoning"] == "x" * MOST_CHARACTERS + CUT


def test_the_files_of_a_run_become_blocks(tmp_path, group_of):
    path = make_run(tmp_path / "run", steps=2)
    for step in (1, 2, 3):
        RunDirectory(path).save_rollouts(step, [group_of([0.0, 1.0], seed=7)])
    entries, blocks, notes = replays_of(load(path), "r0")
    assert [(one["step"], one["count"], one["of"]) for one in entries] == [(1, 2, 2), (2, 2, 2)]
    assert notes == []
    (first, _) = blocks[entries[0]["block"]]()["episodes"]
    assert (first["seed"], first["luck"], first["kept"]) == (7, 0, True)


def test_what_is_left_out_is_told(tmp_path, group_of, monkeypatch):
    path = make_run(tmp_path / "run", steps=5)
    for step in range(1, 6):
        RunDirectory(path).save_rollouts(step, [group_of([0.0] * 4, seed=7)])
    monkeypatch.setattr(episodes, "MOST_STEPS", 2)
    entries, _, (note,) = replays_of(load(path), "r0")
    assert [one["step"] for one in entries] == [1, 5]
    assert note.startswith("Replays of 2 of 5 steps are in this page")


def test_a_file_that_changed_is_read_again(tmp_path, row):
    file = tmp_path / "step_000001.jsonl"
    file.write_text(json.dumps(row()) + "\n")
    assert count_rows(file) == len(read_rows(file)) == 1
    file.write_text((json.dumps(row()) + "\n") * 2)
    assert count_rows(file) == len(read_rows(file)) == 2


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"messages": [], "turns": [{}]}'])
def test_a_line_that_is_no_trajectory_is_named(tmp_path, line):
    file = tmp_path / "step_000001.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(RunError, match=r"step_000001\.jsonl line 1 is not a trajectory .*; remove"):
        read_rows(file)
