"""A made-up Sokoban run of any length that collapses half-way: real rooms and moves, invented reasoning.

Written quickly: a few different batches of episodes are played and written again under each step's number.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ragen2.config import RunConfig, dump_config
from ragen2.diagnostics import measure, regime
from ragen2.diagnostics.metrics.reward import reward_spread
from ragen2.diagnostics.metrics.surface import surface
from ragen2.envs import Sokoban
from ragen2.rollout import Rollout
from ragen2.runs.record import StepRecord
from ragen2.runs.scores import RowSource, ScopeScores
from ragen2.runs.store import RunDirectory
from ragen2.runs.trajectories import group_lines
from ragen2.seeding import stream
from ragen2.types import (
    Completion,
    Finish,
    Group,
    Message,
    Prompt,
    Reply,
    ScoreMatrix,
    StopReason,
    Trajectory,
    Turn,
)

ENV = Sokoban(max_turns=4, max_actions=8)
BANKS = 4
"""Different batches before the collapse, and as many after it."""
TEMPLATE = "let me think step by step about the box and the target, then I will push it to the goal"


def write_large_run(
    path: Path, *, steps: int = 400, prompts: int = 16, group_size: int = 8, collapse_at: int = 140
) -> Path:
    """A run directory with records, rollouts and score matrices of every step."""
    rollout = Rollout(prompts=prompts, group_size=group_size)
    config = RunConfig(steps=steps, env=ENV, rollout=rollout)
    run = RunDirectory.create(path, dump_config(config))
    banks = {
        grounded: [_batch(bank, prompts, group_size, grounded=grounded) for bank in range(BANKS)]
        for grounded in (True, False)
    }
    texts = {grounded: [_lines(groups) for groups in banks[grounded]] for grounded in (True, False)}
    run.append(StepRecord(step=0, metrics=_success(0.2), seconds={"evaluate": 1.5}))
    for step in range(1, steps + 1):
        grounded, bank = step < collapse_at, step % BANKS
        groups = banks[grounded][bank]
        lines = texts[grounded][bank].replace('"step": 0', f'"step": {step}')
        (path / "rollouts" / f"step_{step:06d}.jsonl").write_text(lines, encoding="utf-8")
        scores = _scores(groups, step, grounded=grounded)
        run.save_scores(step, [scores[1]])
        record = _record(step, groups, scores[0], grounded=grounded)
        with run.steps_file.open("a", encoding="utf-8") as file:
            file.write(record.model_dump_json() + "\n")
    return path


def _batch(bank: int, prompts: int, group_size: int, *, grounded: bool) -> list[Group]:
    return [
        _group(100_000 + bank * prompts + place, group_size, grounded=grounded)
        for place in range(prompts)
    ]


def _group(seed: int, size: int, *, grounded: bool) -> Group:
    shown = ENV.start(seed, 0).observation
    prompt = Prompt("Sokoban", seed, (Message("system", ENV.instruction), Message("user", shown)))
    return Group(
        prompt, tuple(_trajectory(prompt, luck, grounded=grounded) for luck in range(size))
    )


def _trajectory(prompt: Prompt, luck: int, *, grounded: bool) -> Trajectory:
    """Random play; every second member follows the expert."""
    rng = stream("large run", prompt.seed, luck)
    episode = ENV.start(prompt.seed, luck)
    turns, solved, done = [], False, False
    while len(turns) < ENV.max_turns and not done:
        plan = episode.expert()[:2] if luck % 2 else ()
        actions = plan or tuple(episode.random_action(rng) for _ in range(2))
        reasoning = episode.explain(actions, rng) if grounded else f"{TEMPLATE} {luck}"
        reward = 0.0
        for action in actions:
            step = episode.step(action)
            reward, solved, done = reward + step.reward, step.solved, step.done
            if done:
                break
        turns.append(_turn(reasoning, actions, episode.observation, reward, rng))
    stop = StopReason.DONE if done else StopReason.MAX_TURNS
    return Trajectory(prompt, luck, tuple(turns), stop, solved)


def _turn(
    reasoning: str,
    actions: tuple[str, ...],
    observation: str,
    reward: float,
    rng: np.random.Generator,
) -> Turn:
    ids = rng.integers(0, 500, size=24)
    return Turn(
        prompt_ids_T=rng.integers(0, 500, size=160),
        completion=Completion(
            ids,
            -rng.random(24),
            f"{reasoning}</think><answer>{' || '.join(actions)}</answer>",
            Finish.STOP,
        ),
        reply=Reply(reasoning, actions),
        reasoning_span=(0, 18),
        observation=observation,
        reward=reward,
        penalty=0.0,
        executed=actions,
        action_span=(20, 23),
    )


def _lines(groups: list[Group]) -> str:
    lines = [line for group in groups for line in group_lines(group, 0)]
    assert json.loads(lines[0])["step"] == 0
    return "".join(f"{line}\n" for line in lines)


def _scores(groups: list[Group], step: int, *, grounded: bool) -> tuple[ScoreMatrix, ScopeScores]:
    """Four reasonings a prompt; grounded ones fit their own prompt best."""
    rng = stream("large scores", step)
    owner_N = np.repeat(np.arange(len(groups)), 4)
    logp_NP = rng.normal(-24.0, 1.5, size=(len(owner_N), len(groups)))
    if grounded:
        logp_NP[np.arange(len(owner_N)), owner_N] += 8.0
    matrix = ScoreMatrix(logp_NP, np.full(len(owner_N), 18), owner_N)
    sources = [
        RowSource(
            text=groups[place].trajectories[row % 4].turns[0].reply.reasoning,
            label=f"seed {groups[place].prompt.seed}, play {row % 4}",
            prompt=groups[place].prompt.messages[-1].content,
            prompt_label=f"seed {groups[place].prompt.seed}",
            action="Up",
        )
        for row, place in enumerate(owner_N.tolist())
    ]
    return matrix, ScopeScores.of("first_turn", matrix, sources)


def _record(step: int, groups: list[Group], matrix: ScoreMatrix, *, grounded: bool) -> StepRecord:
    found = measure(matrix.logp_NP, matrix.length_N, matrix.owner_N, resamples=100, seed=step)
    if not grounded:
        for name in (name for name in found if "_entropy" in name):
            found[name] *= 1.3
    rewards = [group.rewards_G for group in groups]
    spread = [float(one.var(ddof=1)) for one in rewards]
    kept = [value > 0.0 for value in spread]
    metrics = {
        **{f"rollout/{name}": value for name, value in surface(groups).items()},
        **{f"reward/{name}": value for name, value in reward_spread(rewards).items()},
        **{f"collapse/first_turn/{name}": value for name, value in found.items()},
        "filter/kept": float(sum(kept)),
        "filter/kept_ratio": float(np.mean(kept)),
        "update/grad_norm": 1.0 / step,
        "update/entropy": 1.0,
    }
    if step % 15 == 0:
        metrics |= _success(0.5 if grounded else 0.3)
    return StepRecord(
        step=step,
        metrics=metrics,
        regime=regime(found).value,
        kept=kept,
        scores=spread,
        seeds=[group.prompt.seed for group in groups],
        seconds={"rollout": 2.0, "score": 0.5, "update": 1.0, "step": 3.5},
    )


def _success(value: float) -> dict[str, float]:
    return {
        "eval/success": value,
        "eval/success_low": value - 0.1,
        "eval/success_high": value + 0.1,
    }
