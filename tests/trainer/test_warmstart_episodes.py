"""Scripted episodes: the two knobs do what they say, and tasks stay off the held-out side."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ragen2.envs import Bandit, FrozenLake
from ragen2.envs.bandit import PAIRS
from ragen2.envs.frozen_lake import ACTIONS, Lake
from ragen2.rollout.prompts import PromptWriter
from ragen2.rollout.reply import ReplyFormat, parse_reply
from ragen2.rollout.wording import BRIEF
from ragen2.trainer.warmstart import Dialogue, Script, script_episode
from ragen2.types import Completion, Finish, Reply

FORM = ReplyFormat(max_actions=2)
STILL = FrozenLake(slip=0.0, max_turns=10, max_actions=10)
EPISODES = 60
CELL = re.compile(r"\((\d+),(\d+)\)")


def episodes(
    script: Script, env=STILL, form: ReplyFormat = FORM, count: int = EPISODES
) -> list[Dialogue]:
    writer = PromptWriter(env, form, BRIEF)
    return [script_episode(writer, script, seed=0, index=i) for i in range(count)]


def parsed(reply: str, form: ReplyFormat = FORM) -> Reply:
    return parse_reply(Completion(np.zeros(0, int), np.zeros(0), reply, Finish.STOP), form)


def board(observation: str) -> tuple[tuple[int, int], Lake]:
    """The player and the lake, read back from what the agent is shown."""
    player, goal, *holes = ((int(r), int(c)) for r, c in CELL.findall(observation))
    return player, Lake(STILL.size, frozenset(holes), player, goal)


def moves(dialogue: Dialogue):
    """(observation, actions) of every turn."""
    for user, reply in zip(dialogue.users, dialogue.replies, strict=True):
        yield user.content, parsed(reply).actions


def share_of_shortening_turns(script: Script) -> float:
    outcomes = []
    for dialogue in episodes(script):
        for observation, actions in moves(dialogue):
            player, lake = board(observation)
            distances, cell = lake.distances(), player
            for action in actions:
                cell = lake.move(cell, ACTIONS.index(action))
            outcomes.append(distances.get(cell) == distances[player] - len(actions))
    return float(np.mean(outcomes))


def share_of_grounded_turns(script: Script) -> float:
    outcomes = []
    for dialogue in episodes(script):
        for user, reply in zip(dialogue.users, dialogue.replies, strict=True):
            player, lake = board(user.content)
            own = [f"({cell[0]},{cell[1]})" for cell in (player, lake.goal)]
            outcomes.append(all(cell in parsed(reply).reasoning for cell in own))
    return float(np.mean(outcomes))


def test_full_quality_shortens_the_way_every_turn():
    assert share_of_shortening_turns(Script(quality=1.0, groundedness=1.0)) == 1.0


def test_quality_is_the_share_of_expert_turns():
    none, half, full = (share_of_shortening_turns(Script(q, 1.0)) for q in (0.0, 0.5, 1.0))
    assert none < 0.45
    assert half == pytest.approx((none + full) / 2, abs=0.12)


def test_full_quality_takes_the_better_arm():
    for dialogue in episodes(Script(1.0, 1.0), Bandit(), ReplyFormat(max_actions=1)):
        (choice,) = parsed(dialogue.replies[0]).actions
        assert choice in {risky for _, risky in PAIRS}


def test_full_groundedness_names_its_own_state_every_turn():
    assert share_of_grounded_turns(Script(quality=0.5, groundedness=1.0)) == 1.0


def test_without_groundedness_reasoning_is_about_another_state():
    assert share_of_grounded_turns(Script(quality=0.5, groundedness=0.0)) < 0.1


def test_groundedness_is_the_share_of_grounded_turns():
    assert share_of_grounded_turns(Script(0.5, 0.5)) == pytest.approx(0.5, abs=0.1)


def test_groundedness_does_not_change_how_well_it_plays():
    grounded, not_grounded = (share_of_shortening_turns(Script(1.0, g)) for g in (1.0, 0.0))
    assert grounded == not_grounded == 1.0


def test_every_groundedness_plays_the_same_games():
    played = [
        [list(moves(dialogue)) for dialogue in episodes(Script(0.5, g))] for g in (0.0, 0.5, 1.0)
    ]
    assert played[0] == played[1] == played[2]


def test_true_reasonings_are_the_same_at_every_groundedness():
    full = [reply for d in episodes(Script(0.5, 1.0)) for reply in d.replies]
    most = [reply for d in episodes(Script(0.5, 0.9)) for reply in d.replies]
    same = [one == other for one, other in zip(full, most, strict=True)]
    assert np.mean(same) == pytest.approx(0.9, abs=0.06)


def test_length_does_not_give_away_what_is_grounded():
    """First turns: where the other task stands too."""
    env = FrozenLake(slip=0.0, max_turns=1)
    own, other = (
        [parsed(d.replies[0]).reasoning for d in episodes(Script(0.3, g), env, count=800)]
        for g in (1.0, 0.0)
    )
    for measure in (len, num_moves_named):
        lengths, others = (np.array([measure(text) for text in texts]) for texts in (own, other))
        error = np.hypot(lengths.std(), others.std()) / np.sqrt(len(own))
        assert abs(lengths.mean() - others.mean()) < 3 * error
        assert lengths.std() == pytest.approx(others.std(), rel=0.15)


def num_moves_named(reasoning: str) -> int:
    """Moves at the end of a reasoning, after the last full stop."""
    names = [action.lower() for action in ACTIONS]
    return sum(word in names for word in reasoning.rpartition(".")[2].split())


@pytest.mark.parametrize("groundedness", [0.0, 1.0])
def test_wording_varies(groundedness):
    replies = [d.replies[0] for d in episodes(Script(1.0, groundedness))]
    assert len(set(replies)) > EPISODES / 2


@pytest.mark.parametrize("form", [FORM, ReplyFormat(thinking=False), ReplyFormat(max_actions=1)])
def test_every_reply_is_valid(form):
    for dialogue in episodes(Script(0.5, 0.5), form=form):
        assert all(parsed(reply, form).valid for reply in dialogue.replies)


def test_episodes_respect_the_limits_of_the_environment():
    env = FrozenLake(slip=0.0, max_turns=3, max_actions=4)
    for dialogue in episodes(Script(0.0, 1.0), env):
        assert 1 <= len(dialogue.users) == len(dialogue.replies) <= 3
        assert sum(len(actions) for _, actions in moves(dialogue)) <= 4


def test_the_same_script_gives_the_same_episode_and_another_index_another():
    script = Script(0.5, 0.5)
    writer = PromptWriter(STILL, FORM, BRIEF)
    first, again, other = (script_episode(writer, script, 0, index) for index in (1, 1, 2))
    assert first == again
    assert first != other
    assert first != script_episode(writer, script, 1, 1)


def test_scripted_tasks_are_never_evaluated_on():
    held_out = {STILL.start(seed, 0).observation for seed in range(2000)}
    scripted = {d.users[0].content.split("\nActions")[0] for d in episodes(Script(1.0, 1.0))}
    assert not held_out & scripted
