"""check_env: the environment contract as a suite that anyone can run on their own environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ragen2.envs.base import Env, Episode, Step
from ragen2.errors import EnvError
from ragen2.seeding import stream

ODD_ACTIONS = ("", " ", "\x00", "||", "<think>", "é√😀", "x" * 100_000, "-1", "nan", "()" * 500)
"""What a model may write instead of an action."""
MAX_EXPERT_ACTIONS = 1000


def check_env(env: Env, seeds: Iterable[int] = range(20)) -> list[str]:
    """Run the whole contract; return the claims that hold; raise ``EnvError`` at the first other."""
    seeds = list(seeds)
    for claim, problem_of in _SEED_CHECKS.items():
        for seed in seeds:
            problem = problem_of(env, seed)
            if problem:
                raise EnvError(f"{env.kind}, seed {seed}: not true that {claim}: {problem}")
    for claim, problem_with in _ENV_CHECKS.items():
        problem = problem_with(env, seeds)
        if problem:
            raise EnvError(f"{env.kind}: not true that {claim}: {problem}")
    return [*_SEED_CHECKS, *_ENV_CHECKS]


def expert_steps(env: Env, seed: int, luck: int = 0) -> list[Step]:
    """Play the expert, asking it anew before every action."""
    episode = env.start(seed, luck)
    steps: list[Step] = []
    while len(steps) < MAX_EXPERT_ACTIONS and not (steps and steps[-1].done):
        plan = episode.expert()
        if not plan:
            break
        steps.append(episode.step(plan[0]))
    return steps


def _play(episode: Episode, actions: Iterable[str]) -> list[tuple[str, Step]]:
    played = []
    for action in actions:
        step = episode.step(action)
        played.append((episode.observation, step))
        if step.done:
            break
    return played


def _random_actions(env: Env, seed: int, luck: int) -> list[str]:
    rng = stream("check", seed)
    episode = env.start(seed, luck)
    actions = []
    for _ in range(env.max_actions):
        actions.append(episode.random_action(rng))
        if episode.step(actions[-1]).done:
            break
    return actions


def _differs_from_itself(env: Env, seed: int) -> str:
    actions = _random_actions(env, seed, luck=3)
    first, second = env.start(seed, 3), env.start(seed, 3)
    if first.observation != second.observation:
        return "first observations differ"
    return "" if _play(first, actions) == _play(second, actions) else "two plays differ"


def _luck_shows(env: Env, seed: int) -> str:
    observations = {env.start(seed, luck).observation for luck in range(4)}
    return "" if len(observations) == 1 else f"{len(observations)} prompts for four members"


def _odd_action_matters(env: Env, seed: int) -> str:
    for action in ODD_ACTIONS:
        episode = env.start(seed, 0)
        step = episode.step(action)
        if not np.isfinite(step.reward):
            return f"reward {step.reward} for {action[:20]!r}"
        if not isinstance(episode.observation, str):
            return f"the observation is {type(episode.observation).__name__}, not text"
    return ""


def _return_out_of_range(env: Env, seed: int) -> str:
    low, high = env.reward_range
    played = _play(env.start(seed, 1), _random_actions(env, seed, luck=1))
    total = sum(step.reward for _, step in played)
    return "" if low - 1e-9 <= total <= high + 1e-9 else f"return {total} not in [{low}, {high}]"


def _goes_on_after_the_end(env: Env, seed: int) -> str:
    episode = env.start(seed, 0)
    actions = _random_actions(env, seed, luck=0)
    played = _play(episode, actions)
    if not played or not played[-1][1].done:
        return ""
    after = episode.step(actions[0])
    return "" if after.done and after.reward == 0.0 else f"a step after the end gives {after}"


def _expert_fails(env: Env, seeds: Sequence[int]) -> str:
    plays = [expert_steps(env, seed) for seed in seeds]
    solved = sum(bool(steps) and steps[-1].solved for steps in plays)
    if not env.stochastic and solved < len(seeds):
        return f"it solves {solved} of {len(seeds)} deterministic tasks"
    best = max(sum(step.reward for step in steps) for steps in plays)
    return "" if solved and best > env.reward_range[0] else "it never solves a task"


def _no_example(env: Env, seeds: Sequence[int]) -> str:
    del seeds
    return "" if "<answer>" in env.instruction else "there is no <answer>..</answer> in it"


_SEED_CHECKS: dict[str, Callable[[Env, int], str]] = {
    "the same seed and luck give the same episode": _differs_from_itself,
    "the prompt depends on the seed, not on luck": _luck_shows,
    "odd actions are survived": _odd_action_matters,
    "random play stays in the stated reward range": _return_out_of_range,
    "an episode that is done stays done and pays nothing": _goes_on_after_the_end,
}
_ENV_CHECKS: dict[str, Callable[[Env, Sequence[int]], str]] = {
    "the expert solves the task": _expert_fails,
    "the instruction shows a worked reply": _no_example,
}
