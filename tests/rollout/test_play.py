"""Playing episodes: token-exact prompts, every way an episode can end, and the accounting."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.backends.scripted import ScriptedPolicy
from ragen2.envs import Bandit, Env, Episode, FrozenLake, Step
from ragen2.errors import GradingError
from ragen2.rollout import Rollout, Task, play
from ragen2.rollout.prompts import PromptSettings
from ragen2.types import Finish, StopReason, Trajectory

STILL = FrozenLake(slip=0.0)
WALK = "</think><answer>{}</answer>"


def one(
    env: Env, reply: Callable[[str, np.random.Generator], str] | str, *, seed: int = 3, **settings
) -> Trajectory:
    """One episode under a scripted policy."""
    writer = reply if callable(reply) else lambda prompt, rng: reply
    policy = ScriptedPolicy(writer)
    plain = PromptSettings(style="reference", examples=0)
    groups = play(env, policy, [[Task(seed, 0)]], Rollout(**settings), key=("test",), prompt=plain)
    return groups[0].trajectories[0]


def expert_reply(env: Env, seed: int) -> Callable[[str, np.random.Generator], str]:
    """Follows the plan of a fresh episode, one action a turn."""
    plan = list(env.start(seed, 0).expert())
    return lambda prompt, rng: "go" + WALK.format(plan.pop(0))


def against_the_border(env: Env) -> dict[str, object]:
    """A task, and a reply that moves against its border twice, which changes nothing."""
    seed, move = next(
        (seed, move)
        for seed in range(100)
        for move in ("Left", "Down", "Right", "Up")
        if not env.start(seed, 0).step(move).effective
    )
    return {"seed": seed, "reply": "a" + WALK.format(f"{move} || {move}")}


def random_reply(prompt: str, rng: np.random.Generator) -> str:
    """Anything an agent may write: good, cut, malformed, unknown, too much."""
    moves = rng.choice(["Up", "Down", "Left", "Right", "Fly", ""], size=int(rng.integers(0, 5)))
    texts = (
        f"r{rng.integers(99)}</think><answer>{' || '.join(moves)}</answer>",
        "no end " * int(rng.integers(1, 40)),
        f"mid</think> junk <answer>{moves[0] if len(moves) else ''}</answer>",
        "caf√é</think><answer>Up</answer>",
    )
    return texts[int(rng.choice(4, p=[0.7, 0.1, 0.1, 0.1]))]


class Fragile(Env):
    """Raises at the action that is called like the place where it should."""

    kind: Literal["Fragile"] = "Fragile"
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    @property
    def instruction(self) -> str:
        return "do"

    def start(self, seed: int, luck: int) -> Episode:
        return FragileEpisode()


class FragileEpisode(Episode):
    """Pays 0.5 for anything it survives."""

    def __init__(self) -> None:
        self.last = ""

    @property
    def observation(self) -> str:
        if self.last == "see":
            raise RuntimeError("cannot see")
        return "fine"

    def step(self, action: str) -> Step:
        self.last = action
        if action == "act":
            raise ZeroDivisionError("cannot act")
        if action == "run":
            raise GradingError("no wall")
        return Step(reward=0.5, done=action == "see", solved=action == "see")

    def expert(self) -> tuple[str, ...]:
        return ("wait",)

    def random_action(self, rng: np.random.Generator) -> str:
        return "wait"

    def explain(self, actions: tuple[str, ...], rng: np.random.Generator) -> str:
        return "why"


Env.registry.pop("Fragile")  # known to this file only


def test_an_expert_solves_the_lake():
    env = FrozenLake(slip=0.0, max_turns=10)
    trajectory = one(env, expert_reply(env, 3))
    assert trajectory.solved
    assert trajectory.stop is StopReason.DONE
    assert trajectory.reward == 1.0
    assert len(trajectory.turns) == len(env.start(3, 0).expert())


def test_a_trajectory_names_its_task():
    trajectory = play(
        STILL,
        ScriptedPolicy(lambda prompt, rng: "x"),
        [[Task(5, 2)]],
        Rollout(),
        key=("test",),
    )[0].trajectories[0]
    assert (trajectory.prompt.env, trajectory.prompt.seed, trajectory.luck) == ("FrozenLake", 5, 2)


def test_members_of_a_group_share_the_prompt_and_the_order_of_tasks_is_kept():
    tasks = [[Task(seed, luck) for luck in (4, 2)] for seed in (9, 3)]
    groups = play(STILL, ScriptedPolicy(random_reply), tasks, Rollout(), key=("test",))
    assert [group.prompt.seed for group in groups] == [9, 3]
    assert [[t.luck for t in group.trajectories] for group in groups] == [[4, 2], [4, 2]]


def test_the_prompt_value_is_the_text_the_model_saw_first():
    seen: list[str] = []
    trajectory = one(Bandit(), lambda prompt, rng: seen.append(prompt) or "x")
    for message in trajectory.prompt.messages:
        assert f"{message.role}: {message.content}" in seen[0]


# --- token-exactness -------------------------------------------------------------------------------


@given(seed=st.integers(0, 10**6))
def test_every_next_prompt_starts_with_the_previous_prompt_and_the_sampled_ids(seed):
    trajectory = one(STILL, random_reply, seed=seed, history="full", max_tokens=40)
    for before, after in zip(trajectory.turns, trajectory.turns[1:], strict=False):
        told = [*before.prompt_ids_T, *before.completion.ids_T]
        assert after.prompt_ids_T[: len(told)].tolist() == told


@given(seed=st.integers(0, 10**6))
def test_a_window_holds_the_sampled_ids_of_exactly_its_turns(seed):
    counter = iter(range(100))
    trajectory = one(
        STILL,
        lambda prompt, rng: f"turn{next(counter)}" + WALK.format("Fly"),
        seed=seed,
        history="window",
        window=2,
    )
    for index, turn in enumerate(trajectory.turns):
        shown = re.findall(r"turn(\d)", decode(turn.prompt_ids_T))
        assert shown == [str(i) for i in range(max(0, index - 1), index)]


def test_a_window_prompt_carries_the_last_sampled_ids_unchanged():
    trajectory = one(STILL, "caf√" + WALK.format("Fly"), history="window", window=2)
    for before, after in zip(trajectory.turns, trajectory.turns[1:], strict=False):
        told = bytes(i % 256 for i in before.completion.ids_T)
        assert told in bytes(i % 256 for i in after.prompt_ids_T)


def test_current_history_shows_this_turn_alone():
    trajectory = one(STILL, "marker" + WALK.format("Fly"), history="current")
    assert len(trajectory.turns) == STILL.max_turns
    for turn in trajectory.turns:
        text = decode(turn.prompt_ids_T)
        assert "marker" not in text
        assert text.count("user: ") == 1
        assert text.count("system: ") == 1


def test_every_prompt_ends_with_the_prefilled_tag():
    for thinking, tag in ((True, "<think>"), (False, "<answer>")):
        trajectory = one(STILL, "x", thinking=thinking)
        assert all(decode(t.prompt_ids_T).endswith(f"assistant: {tag}") for t in trajectory.turns)


def test_a_reply_that_ended_itself_gets_no_second_end():
    trajectory = one(STILL, "never an answer")
    first, second = trajectory.turns[:2]
    assert first.completion.finish is Finish.EOS
    after = len(first.prompt_ids_T) + len(first.completion.ids_T)
    assert second.prompt_ids_T[after - 1] == 0
    assert second.prompt_ids_T[after] != 0


# --- what is wrong with a reply --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("x" * 200, "cut at the token limit"),
        ("no tags", "no </think>"),
        ("a</think>Up", "no <answer>"),
        ("a" + WALK.format(""), "no action in the answer"),
    ],
)
def test_a_reply_that_cannot_be_read_is_data_with_a_penalty(reply, problem):
    trajectory = one(STILL, reply, max_tokens=64)
    assert trajectory.stop is StopReason.MAX_TURNS
    assert [turn.reply.problem for turn in trajectory.turns] == [problem] * STILL.max_turns
    assert all(turn.executed == () and turn.reward == 0.0 for turn in trajectory.turns)
    assert trajectory.reward == pytest.approx(-0.1 * STILL.max_turns)


def test_a_truncated_reply_keeps_exactly_the_token_limit():
    trajectory = one(STILL, "x" * 200, max_tokens=64)
    assert {len(turn.completion.ids_T) for turn in trajectory.turns} == {64}
    assert {turn.completion.finish for turn in trajectory.turns} == {Finish.LENGTH}


def test_the_next_turn_tells_what_was_wrong():
    trajectory = one(STILL, "no tags")
    assert "not valid" not in decode(trajectory.turns[0].prompt_ids_T)
    assert "Your last reply was not valid: no </think>." in decode(trajectory.turns[1].prompt_ids_T)


def test_an_unknown_action_does_nothing_is_penalised_and_told():
    trajectory = one(STILL, "a" + WALK.format("Fly"))
    first = trajectory.turns[0]
    assert first.reply.valid
    assert (first.executed, first.unknown) == ((), ("Fly",))
    assert (first.reward, first.penalty, first.problem) == (0.0, -0.1, "unknown action 'Fly'")
    assert "not valid: unknown action 'Fly'." in decode(trajectory.turns[1].prompt_ids_T)


def test_a_long_unknown_action_is_told_in_part():
    trajectory = one(STILL, "a" + WALK.format("Z" * 100), max_tokens=300)
    told = decode(trajectory.turns[1].prompt_ids_T).split("unknown action '")[1]
    assert told.startswith("Z" * 40 + "'.")


def test_too_many_actions_take_the_first_ones_with_one_penalty():
    env = FrozenLake(slip=0.0, max_turns=1)
    strict = {"actions_per_turn": 2, "surplus_actions": "invalid"}
    trajectory = one(env, "a" + WALK.format("Fly || Fly || Fly"), **strict)
    assert trajectory.turns[0].unknown == ("Fly", "Fly")
    assert trajectory.turns[0].problem == "3 actions, only 2 are taken"
    assert trajectory.reward == pytest.approx(-0.1)


def test_known_actions_of_a_reply_are_taken_and_it_is_told_which_of_them_did_something():
    env = FrozenLake(slip=0.0, max_turns=1)
    turn = one(env, "a" + WALK.format("Fly || Up || Down"), actions_per_turn=3).turns[0]
    assert (turn.executed, turn.unknown) == (("Up", "Down"), ("Fly",))
    episode = env.start(3, 0)
    assert turn.effective == tuple(episode.step(action).effective for action in ("Up", "Down"))


def test_a_valid_reply_has_no_penalty():
    trajectory = one(STILL, expert_reply(STILL, 3))
    assert [turn.penalty for turn in trajectory.turns] == [0.0] * len(trajectory.turns)


def test_the_penalty_is_a_setting():
    assert one(STILL, "x", format_penalty=-0.5).reward == pytest.approx(-0.5 * STILL.max_turns)
    assert one(STILL, "x", format_penalty=0.0).reward == 0.0


@given(seed=st.integers(0, 10**6))
def test_the_return_is_rewards_plus_one_penalty_for_each_bad_turn(seed):
    trajectory = one(STILL, random_reply, seed=seed)
    bad = sum(not t.reply.valid or "Fly" in t.unknown for t in trajectory.turns)
    assert trajectory.reward == pytest.approx(float(trajectory.solved) - 0.1 * bad)


def test_actions_after_the_end_are_not_taken():
    env = FrozenLake(slip=0.0, max_turns=10, max_actions=20)
    plan = env.start(3, 0).expert()
    reply = "a" + WALK.format(" || ".join([*plan, "Up", "Up"]))
    trajectory = one(env, reply, actions_per_turn=20)
    assert trajectory.turns[0].executed == plan
    assert trajectory.solved


# --- how an episode ends ---------------------------------------------------------------------------


def test_it_ends_at_max_turns():
    trajectory = one(FrozenLake(slip=0.0, max_turns=3), "a" + WALK.format("Fly"))
    assert (trajectory.stop, len(trajectory.turns)) == (StopReason.MAX_TURNS, 3)
    assert not trajectory.solved


def test_it_ends_at_max_actions_and_takes_no_action_beyond():
    env = FrozenLake(slip=0.0, max_turns=9, max_actions=3)
    trajectory = one(env, **against_the_border(env), actions_per_turn=2)
    assert trajectory.stop is StopReason.MAX_ACTIONS
    assert [len(turn.executed) for turn in trajectory.turns] == [2, 1]


def test_unknown_actions_spend_no_budget():
    env = FrozenLake(slip=0.0, max_turns=4, max_actions=2)
    trajectory = one(env, "a" + WALK.format("Fly"))
    assert (trajectory.stop, len(trajectory.turns)) == (StopReason.MAX_TURNS, 4)


def test_the_prompt_says_how_many_actions_are_left():
    env = FrozenLake(slip=0.0, max_turns=9, max_actions=5)
    trajectory = one(env, **against_the_border(env), history="current")
    left = [
        int(re.search(r"You may take (\d+) more action", decode(turn.prompt_ids_T))[1])
        for turn in trajectory.turns
    ]
    assert left == [5, 3, 1]


def test_done_wins_over_the_limits():
    env = Bandit(risky_chance=1.0)
    trajectory = one(env, expert_reply(env, 3))
    assert (trajectory.stop, trajectory.solved) == (StopReason.DONE, True)


def test_it_ends_when_the_next_prompt_would_not_fit():
    policy = ScriptedPolicy(lambda prompt, rng: "a" + WALK.format("Fly"))
    free = play(STILL, policy, [[Task(3, 0)]], Rollout(max_tokens=40), key=("test",))
    third_prompt = len(free[0].trajectories[0].turns[2].prompt_ids_T)
    policy.max_context = third_prompt + 40 - 1
    cut = play(STILL, policy, [[Task(3, 0)]], Rollout(max_tokens=40), key=("test",))
    assert cut[0].trajectories[0].stop is StopReason.CONTEXT_FULL
    assert len(cut[0].trajectories[0].turns) == 2
    policy.max_context += 1
    fits = play(STILL, policy, [[Task(3, 0)]], Rollout(max_tokens=40), key=("test",))
    assert len(fits[0].trajectories[0].turns) == 3


def test_a_first_prompt_that_does_not_fit_gives_a_trajectory_without_turns():
    policy = ScriptedPolicy(lambda prompt, rng: "never asked")
    policy.max_context = 10
    group = play(STILL, policy, [[Task(3, 0), Task(3, 1)]], Rollout(), key=("test",))[0]
    assert [t.turns for t in group.trajectories] == [(), ()]
    assert {t.stop for t in group.trajectories} == {StopReason.CONTEXT_FULL}


def test_an_environment_that_raises_becomes_data():
    trajectory = one(Fragile(), "a" + WALK.format("wait || act"))
    assert trajectory.stop is StopReason.ENV_ERROR
    assert "ZeroDivisionError: cannot act" in trajectory.error
    assert trajectory.turns[0].executed == ("wait",)
    assert trajectory.reward == 0.5
    assert not trajectory.solved


def test_an_environment_that_cannot_show_itself_becomes_data():
    trajectory = one(Fragile(), "a" + WALK.format("wait || see"))
    assert trajectory.stop is StopReason.ENV_ERROR
    assert "RuntimeError: cannot see" in trajectory.error
    assert not trajectory.solved
    assert trajectory.turns[0].executed == ("wait", "see")
    assert trajectory.reward == 1.0


def test_a_sandbox_that_fails_does_not_become_a_reward():
    with pytest.raises(GradingError, match="no wall"):
        one(Fragile(), "a" + WALK.format("wait || run"))


def test_one_broken_episode_does_not_stop_the_others():
    def reply(prompt, rng):
        return "a" + WALK.format("act" if rng.random() < 0.5 else "wait")

    tasks = [[Task(1, luck) for luck in range(16)]]
    group = play(Fragile(max_turns=2), ScriptedPolicy(reply), tasks, Rollout(), key=("test",))[0]
    stops = {trajectory.stop for trajectory in group.trajectories}
    assert stops == {StopReason.ENV_ERROR, StopReason.MAX_TURNS}


# --- sampling --------------------------------------------------------------------------------------


def test_the_same_key_gives_the_same_groups_and_another_key_others():
    def texts(key):
        tasks = [[Task(seed, luck) for luck in range(3)] for seed in range(3)]
        groups = play(STILL, ScriptedPolicy(random_reply), tasks, Rollout(), key=key)
        return [
            [[turn.completion.text for turn in t.turns] for t in group.trajectories]
            for group in groups
        ]

    assert texts(("a", 1)) == texts(("a", 1))
    assert texts(("a", 1)) != texts(("a", 2))


def test_an_episode_does_not_depend_on_what_else_is_played():
    def texts(tasks):
        groups = play(STILL, ScriptedPolicy(random_reply), tasks, Rollout(), key=("k",))
        last = groups[-1].trajectories[-1]
        return [turn.completion.text for turn in last.turns]

    many = [[Task(s, luck) for luck in range(4)] for s in range(4)]
    assert texts(many) == texts([[Task(3, 3)]])


def test_all_running_episodes_are_sampled_in_one_batch_a_turn():
    class Counting(ScriptedPolicy):
        def sample(self, requests, params):
            sizes.append(len(requests))
            return super().sample(requests, params)

    sizes: list[int] = []
    tasks = [[Task(seed, luck) for luck in range(3)] for seed in range(2)]
    policy = Counting(lambda prompt, rng: "a" + WALK.format("Fly"))
    play(FrozenLake(slip=0.0, max_turns=4), policy, tasks, Rollout(), key=("test",))
    assert sizes == [6, 6, 6, 6]


def test_sampling_follows_the_settings():
    class Noting(ScriptedPolicy):
        def sample(self, requests, params):
            noted.append(params)
            return super().sample(requests, params)

    noted: list = []
    rollout = Rollout(temperature=0.7, top_p=0.9, top_k=5, max_tokens=33)
    play(Bandit(), Noting(lambda prompt, rng: "x"), [[Task(1, 0)]], rollout, key=("test",))
    assert noted[0] == rollout.sampling(STILL)
    assert (noted[0].temperature, noted[0].top_p, noted[0].top_k) == (0.7, 0.9, 5)
    assert (noted[0].max_tokens, noted[0].stop) == (33, ("</answer>",))


def decode(ids_T: np.ndarray) -> str:
    return ScriptedPolicy(lambda prompt, rng: "").tokenizer.decode(ids_T.tolist())


# --- luck ------------------------------------------------------------------------------------------


def slipping_moves(luck: str) -> list[tuple[str, ...]]:
    """What each of eight members saw that all went the same way on a very slippery lake."""
    env = FrozenLake(slip=0.9, hole_ratio=0.0, size=8)
    policy = ScriptedPolicy(lambda prompt, rng: "go" + WALK.format("Right"))
    group = play(env, policy, [[Task(3, m) for m in range(8)]], Rollout(luck=luck), key=("t",))[0]
    return [tuple(turn.observation for turn in member.turns) for member in group.trajectories]


def test_members_that_share_their_luck_and_their_actions_end_alike():
    assert len(set(slipping_moves("shared"))) == 1
    assert len(set(slipping_moves("own"))) > 1


def test_members_that_share_their_luck_still_write_for_themselves():
    policy = ScriptedPolicy(lambda prompt, rng: f"{rng.integers(10**6)}" + WALK.format("Right"))
    tasks = [[Task(3, member) for member in range(8)]]
    group = play(FrozenLake(), policy, tasks, Rollout(luck="shared"), key=("t",))[0]
    assert len({one.turns[0].reply.reasoning for one in group.trajectories}) == 8
    assert {one.luck for one in group.trajectories} == {0}
