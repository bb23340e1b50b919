"""Play an environment: by hand, by its expert, and as a group whose members differ only in luck.

Run it with `python examples/01_play_an_env.py`; it needs no model.
"""

import re

import numpy as np

from ragen2.backends.scripted import ScriptedPolicy
from ragen2.envs import make
from ragen2.rollout import Rollout, Task, play


def play_by_hand() -> None:
    env = make("FrozenLake", size=4, observation="grid_coord", slip=0.0)
    episode = env.start(seed=3, luck=0)
    print(env.instruction)
    print(episode.observation)
    done = False
    while not done:
        action = episode.expert()[0]
        step = episode.step(action)
        done = step.done
        print(f"\n{action}: reward {step.reward:g}")
        print(episode.observation)
    print("solved" if step.solved else "not solved")


def head_for_goal(prompt: str, rng: np.random.Generator) -> str:
    """A scripted agent: reads the newest coordinates out of its prompt and walks towards the goal."""
    found = re.findall(r"You \((\d),(\d)\) Goal \((\d),(\d)\)", prompt)[-1]
    row, column, goal_row, goal_column = (int(number) for number in found)
    moves = ["Down" if goal_row > row else "Up"] * (goal_row != row)
    moves += ["Right" if goal_column > column else "Left"] * (goal_column != column)
    return f"the goal is at {goal_row},{goal_column}</think><answer>{rng.choice(moves)}</answer>"


def play_a_group() -> None:
    """Four members start on the same map; with slips of 50% each has its own luck."""
    env = make("FrozenLake", slip=0.5)
    tasks = [[Task(seed=5, luck=luck) for luck in range(4)]]
    policy = ScriptedPolicy(head_for_goal)
    (group,) = play(env, policy, tasks, Rollout(actions_per_turn=1), key=(0, "example"))
    print(f"\nall members read: {group.prompt.messages[-1].content!r}")
    for trajectory in group.trajectories:
        actions = [action for turn in trajectory.turns for action in turn.executed]
        print(f"luck {trajectory.luck}: {actions}, reward {trajectory.reward:g}, {trajectory.stop}")


if __name__ == "__main__":
    play_by_hand()
    play_a_group()
