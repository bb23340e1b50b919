"""What was wrong with replies is told by kind, with examples."""

from __future__ import annotations

from ragen2.backends.scripted import ScriptedPolicy
from ragen2.diagnostics.metrics.problems import ProblemCount, count_problems, reply_problems
from ragen2.envs import FrozenLake
from ragen2.rollout import Rollout, Task, play


def test_kinds_are_counted_without_what_is_particular_to_a_reply():
    found = count_problems(
        [
            ("unknown action 'Fly'", "a"),
            ("", "fine"),
            ("no </answer>", "b"),
            ("unknown action 'Hop'", "c"),
            ("3 actions, only 2 are taken", "d"),
            ("unknown action 'Fly'", "a"),
            ("unknown action 'Run'", "e"),
        ]
    )
    assert found == [
        ProblemCount("an action that does not exist", 4, ("a", "c")),
        ProblemCount("no </answer>", 1, ("b",)),
        ProblemCount("more actions than are taken", 1, ("d",)),
    ]


def test_the_replies_of_a_batch_are_counted():
    texts = iter(["x</think><answer>Fly</answer>", "x"])
    policy = ScriptedPolicy(lambda prompt, rng: next(texts))
    env = FrozenLake(max_turns=2)
    groups = play(env, policy, [[Task(3, 0)]], Rollout(), key=())
    assert [(one.kind, one.count) for one in reply_problems(groups)] == [
        ("an action that does not exist", 1),
        ("no </think>", 1),
    ]
