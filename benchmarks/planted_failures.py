"""Runs with a planted cause, and how often the examination names it: the library behind its verdicts.

Each run is simulated rollout by rollout: groups of real trajectories go through the real `surface`, `reward`
and `triage`, traces of a mixture whose likelihoods are known through the real `measure`, actions through the
real `measure_flow`. What is planted is what happens to the policy or to its environment, never a metric.
Thresholds were chosen on the runs of `TUNED`; the table is of the runs of `REPORTED`, which nobody looked at.

Run it with `python benchmarks/planted_failures.py`; it takes some minutes on one core.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ragen2.diagnostics import Examination, action_information, examine, measure, measure_flow
from ragen2.diagnostics.base import Evidence
from ragen2.diagnostics.metrics.reward import Reward
from ragen2.diagnostics.metrics.surface import Surface, actions_by_prompt
from ragen2.diagnostics.metrics.triage import Triage
from ragen2.diagnostics.statistics.resampling import wilson_of_trials
from ragen2.runs.files import write_atomically
from ragen2.runs.record import StepRecord
from ragen2.scoring.exchanges import FlowScores
from ragen2.seeding import stream
from ragen2.types import (
    Completion,
    Finish,
    FloatArray,
    Group,
    IntArray,
    Message,
    Prompt,
    Reply,
    StopReason,
    Trajectory,
    Turn,
)

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "planted_failures.json"
PAGE = ROOT / "docs" / "diagnostics" / "failures.md"
BEGIN, END = "<!-- planted -->\n", "\n<!-- /planted -->"
TUNED, REPORTED = 0, 1
"""Seeds: of the runs that thresholds were chosen on, and of those that are reported."""
RUNS = 20
VOCABULARY = 12
LONGEST = 24
"""Tokens of a reasoning trace at most."""
ACTIONS = ("Up", "Down", "Left", "Right")
MOST_TRACES, FLOW_TRACES, SWAPS = 64, 32, 2
"""As the diagnostics `collapse` and `flow` take by default."""
FLOW_EVERY = 10
RESAMPLES = 100


@dataclass(frozen=True, slots=True)
class Levels:
    """What the policy does and how the environment answers, at one step."""

    share: float = 0.95
    """Part of the traces that are about their prompt."""
    template_prompts: float = 0.0
    """Part of the prompts whose traces are all a template."""
    strength: float = 0.7
    """Chance that a token of a grounded trace is its prompt's own."""
    variety: float = 0.8
    """0: one template; 1: all tokens equally likely."""
    tokens: float = 12.0
    valid: float = 0.97
    cut: float = 0.0
    errors: float = 0.0
    """Part of the episodes in which the environment raises."""
    success: float = 0.4
    held_out: float = 0.4
    follows: float = 0.9
    """Chance that the action is what the reasoning says."""
    luck: float = 0.0
    """Chance that the reward is drawn, whatever was done."""
    is_constant: bool = False
    """Whether everything is paid the same."""
    turns: int = 1
    moves: float = 0.0
    """Sokoban's prices: a reply makes one move of -0.1, and with this chance another; 0 switches them off."""


Course = Callable[[float], Levels]
"""Levels at each part of the run, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Planted:
    """A way to draw courses, and what the examination has to answer."""

    name: str
    cause: str
    draw: Callable[[np.random.Generator], Course]


def late(rng: np.random.Generator) -> Callable[[float], float]:
    """From 0 to 1, beginning at a fifth to a half of the run and taking up to a fifth of it."""
    onset, width = rng.uniform(0.2, 0.5), rng.uniform(0.01, 0.2)
    return lambda at: float(np.clip((at - onset) / width, 0.0, 1.0))


def learning(rng: np.random.Generator) -> Course:
    """Success rises from anywhere between 5 and 30% by 20 to 50 points; half the runs compress a little."""
    start, rise = rng.uniform(0.05, 0.3), rng.uniform(0.2, 0.5)
    base = Levels(
        share=rng.uniform(0.85, 1.0),
        strength=rng.uniform(0.6, 0.85),
        variety=rng.uniform(0.6, 1.0),
        tokens=rng.uniform(9.0, 16.0),
        valid=rng.uniform(0.9, 1.0),
        cut=rng.uniform(0.0, 0.04),
        luck=rng.choice([0.0, 0.05]),
    )
    compression = rng.choice([0.0, 0.2])

    def at(time: float) -> Levels:
        return replace(
            base,
            success=start + rise * time,
            held_out=start + 0.9 * rise * time,
            valid=min(1.0, base.valid + 0.03 * time),
            variety=base.variety * (1.0 - compression * time),
        )

    return at


def changed(change: Callable[[Levels, float], Levels]) -> Callable[[np.random.Generator], Course]:
    """A learning run to which something happens late; ``change`` is told how much of it has happened."""

    def draw(rng: np.random.Generator) -> Course:
        course, how_far = learning(rng), late(rng)
        return lambda time: change(course(time), how_far(time))

    return draw


def always(change: Callable[[Levels, float], Levels]) -> Callable[[np.random.Generator], Course]:
    """A learning run that has something from the start; ``change`` is told the time."""

    def draw(rng: np.random.Generator) -> Course:
        course = learning(rng)
        return lambda time: change(course(time), time)

    return draw


def solved(rng: np.random.Generator) -> Course:
    """Learnt to the end: at last nearly all prompts pay all their rollouts the same."""
    course, half = learning(rng), rng.uniform(0.3, 0.5)

    def at(time: float) -> Levels:
        success = min(0.99, 0.2 + 0.79 * time / half)
        return replace(course(time), success=success, held_out=success - 0.02, luck=0.0)

    return at


def compressing(rng: np.random.Generator) -> Course:
    """Reasoning becomes one text per prompt, the right one."""
    course = learning(rng)
    return lambda time: replace(course(time), strength=0.7 + 0.29 * time, share=0.98)


def giving_up(rng: np.random.Generator) -> Course:
    """A model that never solves Sokoban learns that one move, or an invalid reply, costs least."""
    start, end = rng.uniform(0.6, 0.85), rng.uniform(0.2, 0.5)
    pace, left = rng.uniform(5.0, 40.0), rng.choice([0.0, 0.0, 0.3])
    base = Levels(
        share=rng.choice([0.0, 0.9]),
        turns=5,
        held_out=0.02,
        variety=rng.uniform(0.4, 0.9),
        luck=0.0,
    )

    def at(time: float) -> Levels:
        moves = 1.0 + 1e-9 + left + (0.5 - left) * np.exp(-pace * 3.0 * time)
        return replace(
            base,
            valid=start + (end - start) * time,
            success=0.01 * float(np.exp(-pace * time)),
            moves=float(moves) if moves > 1.001 else 1.0,
        )

    return at


def _as_varied(levels: Levels, far: float) -> float:
    """Variety of a template with the entropy of the grounded traces that it replaces."""
    template_V = _template(levels.variety)
    own_V = (1.0 - levels.strength) * template_V
    entropies = []
    for token in range(VOCABULARY):
        chance_V = own_V + levels.strength * (np.arange(VOCABULARY) == token)
        entropies.append(-(chance_V * np.log(chance_V)).sum())
    wanted = float(np.mean(entropies))
    grid = np.linspace(0.0, 1.0, 201)
    found = [-(p * np.log(p)).sum() for p in map(_template, grid)]
    return levels.variety + far * (float(np.interp(wanted, found, grid)) - levels.variety)


def losing(levels: Levels, far: float) -> Levels:
    """What the loss of grounding does to success: some of what was learnt goes."""
    return replace(
        levels,
        success=levels.success * (1.0 - 0.3 * far),
        held_out=levels.held_out * (1.0 - 0.3 * far),
    )


LIBRARY: tuple[Planted, ...] = (
    Planted("healthy: learning", "healthy", learning),
    Planted("healthy: compressing", "healthy", compressing),
    Planted("healthy: solved", "healthy", solved),
    Planted(
        "environment raises",
        "environment_broken",
        changed(lambda now, far: replace(now, errors=0.2 * far)),
    ),
    Planted(
        "replies cut at the token limit",
        "replies_cut",
        changed(
            lambda now, far: replace(now, cut=now.cut + 0.5 * far, valid=now.valid - 0.45 * far)
        ),
    ),
    Planted(
        "format never learnt",
        "format_never_learnt",
        always(lambda now, time: replace(now, valid=0.3 + 0.05 * time)),
    ),
    Planted(
        "format lost",
        "format_lost",
        changed(lambda now, far: replace(now, valid=now.valid - 0.6 * far)),
    ),
    Planted("invalid as good as honest", "invalid_pays", giving_up),
    Planted(
        "reward constant",
        "reward_blind",
        changed(lambda now, far: replace(now, is_constant=far > 0.5)),
    ),
    Planted(
        "tasks too easy",
        "too_easy",
        always(lambda now, time: replace(now, success=0.985, held_out=0.97, luck=0.0, valid=0.999)),
    ),
    Planted(
        "tasks too hard",
        "too_hard",
        always(lambda now, time: replace(now, success=0.004, held_out=0.004, luck=0.0)),
    ),
    Planted(
        "reward is luck",
        "luck",
        always(lambda now, time: replace(now, luck=1.0, success=0.3, held_out=0.3)),
    ),
    Planted(
        "nothing learnt",
        "not_learning",
        always(lambda now, time: replace(now, success=0.3, held_out=0.3)),
    ),
    Planted(
        "learnt by heart",
        "overfit",
        always(lambda now, time: replace(now, success=0.2 + 0.5 * time, held_out=0.2)),
    ),
    Planted(
        "learnt and lost",
        "unlearnt",
        changed(lambda now, far: replace(now, success=0.6 - 0.45 * far, held_out=0.6 - 0.45 * far)),
    ),
    Planted("never grounded", "never_grounded", always(lambda now, time: replace(now, share=0.0))),
    Planted(
        "never grounded, nothing learnt",
        "never_grounded",
        always(lambda now, time: replace(now, share=0.0, success=0.2, held_out=0.2)),
    ),
    Planted(
        "template collapse",
        "template_collapse",
        changed(
            lambda now, far: losing(
                replace(now, share=now.share * (1.0 - far), variety=_as_varied(now, far)), far
            )
        ),
    ),
    Planted(
        "low-entropy collapse",
        "low_entropy_collapse",
        changed(
            lambda now, far: losing(
                replace(now, share=now.share * (1.0 - far), variety=now.variety * (1.0 - far)), far
            )
        ),
    ),
    Planted(
        "half of the traces are a template",
        "partial_collapse",
        changed(lambda now, far: replace(now, share=now.share * (1.0 - 0.55 * far))),
    ),
    Planted(
        "half of the prompts collapse",
        "partial_collapse",
        changed(lambda now, far: replace(now, template_prompts=0.5 * far)),
    ),
    Planted(
        "entropy gaming",
        "entropy_gaming",
        changed(
            lambda now, far: replace(now, share=now.share * (1.0 - far), variety=0.35 + 0.65 * far)
        ),
    ),
    Planted(
        "actions ignore reasoning",
        "unused_reasoning",
        changed(lambda now, far: replace(now, follows=now.follows * (1.0 - far))),
    ),
    Planted(
        "reasoning shrinks",
        "reasoning_shrinkage",
        changed(lambda now, far: replace(now, tokens=now.tokens * (1.0 - 0.65 * far))),
    ),
)


def simulate(planted: Planted, index: int, seed: int) -> list[StepRecord]:
    """The records of one run: 30 to 60 steps of 8 x 8, 8 x 16 or 16 x 8 rollouts."""
    rng = stream("planted failure", planted.name, seed, index)
    course = planted.draw(rng)
    prompts, members = ((8, 8), (8, 16), (16, 8))[rng.integers(3)]
    steps, tasks = int(rng.integers(30, 61)), int(rng.choice([128, 256]))
    wander = _wander(rng, steps + 1)
    records = []
    for step in range(steps + 1):
        levels = _shaken(course(step / steps), wander[step])
        metrics: dict[str, float] = {}
        if step:
            metrics |= _step(levels, prompts, members, step, rng)
        if step % FLOW_EVERY == 0 or step == steps:
            metrics |= _evaluation(levels.held_out, tasks, rng)
        records.append(StepRecord(step=step, metrics=metrics))
    return records


def _wander(rng: np.random.Generator, steps: int) -> FloatArray:
    """Noise of success, validity and length over steps, with a correlation of 0.5."""
    noise = np.zeros((steps, 3))
    for step in range(1, steps):
        noise[step] = 0.5 * noise[step - 1] + rng.normal(0.0, np.sqrt(0.75), 3)
    return noise


def _shaken(levels: Levels, noise: FloatArray) -> Levels:
    """Tasks differ from step to step, and so do success, validity and length."""

    def shift(share: float, by: float) -> float:
        if not 0.0 < share < 1.0:
            return share
        odds = share / (1.0 - share) * np.exp(by)
        return float(odds / (1.0 + odds))

    return replace(
        levels,
        success=shift(levels.success, 0.15 * noise[0]),
        valid=shift(levels.valid, 0.1 * noise[1]),
        tokens=levels.tokens * float(np.exp(0.04 * noise[2])),
    )


def _evaluation(success: float, tasks: int, rng: np.random.Generator) -> dict[str, float]:
    found = float(rng.binomial(tasks, np.clip(success, 0.0, 1.0))) / tasks
    low, high = wilson_of_trials(found, tasks)
    return {"eval/success": found, "eval/success_low": low, "eval/success_high": high}


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """First replies of a step: N traces of T token places, P prompts."""

    owner_N: IntArray
    tokens_NT: IntArray
    length_N: IntArray
    code_PT: IntArray
    """The tokens that each prompt calls for."""
    share_P: FloatArray
    """Part of each prompt's traces that are about it."""
    right_N: IntArray
    """The action that solves the task."""
    action_N: IntArray
    said_N: IntArray
    """The action that the reasoning speaks for."""


def _step(
    levels: Levels, prompts: int, members: int, step: int, rng: np.random.Generator
) -> dict[str, float]:
    batch = _draw(levels, prompts, members, rng)
    groups = _groups(levels, batch, members, rng)
    evidence = Evidence(step, groups)
    metrics = dict(Surface().measure(evidence)) | Reward().measure(evidence)
    metrics |= Triage(replays=0).measure(evidence)
    chosen = rng.permutation(len(batch.owner_N))[:MOST_TRACES]
    found = measure(
        _log_probs(levels, batch)[chosen],
        batch.length_N[chosen],
        batch.owner_N[chosen],
        resamples=RESAMPLES,
        seed=step,
    )
    metrics |= {f"collapse/first_turn/{name}": value for name, value in found.items()}
    if step == 1 or step % FLOW_EVERY == 0:
        metrics |= _flow(levels, batch, groups, rng)
    return metrics


def _draw(levels: Levels, prompts: int, members: int, rng: np.random.Generator) -> _Batch:
    owner_N = np.repeat(np.arange(prompts), members)
    code_PT = rng.integers(0, VOCABULARY, (prompts, LONGEST))
    is_template_P = rng.permutation(prompts) < round(levels.template_prompts * prompts)
    share_P = np.where(is_template_P, 0.0, levels.share)
    is_grounded_N = rng.random(len(owner_N)) < share_P[owner_N]
    shape = (len(owner_N), LONGEST)
    template_NT = rng.choice(VOCABULARY, shape, p=_template(levels.variety))
    own_NT = (rng.random(shape) < levels.strength) & is_grounded_N[:, None]
    # Tasks differ in how hard they are; the mean over them is the success of the step.
    spread = 2.0
    ease_P = rng.beta(
        spread * levels.success + 1e-3, spread * (1.0 - levels.success) + 1e-3, prompts
    )
    right_P = rng.integers(0, len(ACTIONS), prompts)
    right_N = right_P[owner_N]
    wrong_N = (right_N + rng.integers(1, len(ACTIONS), len(owner_N))) % len(ACTIONS)
    action_N = np.where(rng.random(len(owner_N)) < ease_P[owner_N], right_N, wrong_N)
    said_N = np.where(
        rng.random(len(owner_N)) < levels.follows,
        action_N,
        rng.integers(0, len(ACTIONS), len(owner_N)),
    )
    return _Batch(
        owner_N,
        np.where(own_NT, code_PT[owner_N], template_NT),
        np.clip(rng.poisson(levels.tokens, len(owner_N)), 2, LONGEST),
        code_PT,
        share_P,
        right_N,
        action_N,
        said_N,
    )


def _template(variety: float) -> FloatArray:
    """Token chances of the template: one token at 0, all alike at 1."""
    weights = np.exp(-np.arange(VOCABULARY) * 8.0 * (1.0 - variety) ** 2)
    return np.asarray(weights / weights.sum())


def _log_probs(levels: Levels, batch: _Batch) -> FloatArray:
    """Exact log-prob of each trace under each prompt: a mixture of grounded and template traces."""
    chance_NT = _template(levels.variety)[batch.tokens_NT]
    inside_NT = np.arange(LONGEST) < batch.length_N[:, None]
    template_N = np.where(inside_NT, np.log(chance_NT), 0.0).sum(1)
    is_own_NPT = batch.tokens_NT[:, None, :] == batch.code_PT[None]
    mixed_NPT = levels.strength * is_own_NPT + (1.0 - levels.strength) * chance_NT[:, None, :]
    with np.errstate(divide="ignore"):
        own_NP = np.where(inside_NT[:, None, :], np.log(mixed_NPT), 0.0).sum(2)
        share_P, rest_P = np.log(batch.share_P), np.log1p(-batch.share_P)
    # A trace that no prompt could write has a floor, as rounding gives it in a model.
    return np.asarray(
        np.maximum(np.logaddexp(share_P + own_NP, rest_P + template_N[:, None]), -500.0)
    )


def _groups(levels: Levels, batch: _Batch, members: int, rng: np.random.Generator) -> list[Group]:
    groups = []
    for column in range(len(batch.code_PT)):
        prompt = Prompt("Planted", column, (Message("user", f"task {column}"),))
        rows = range(column * members, (column + 1) * members)
        played = tuple(_played(levels, batch, prompt, row, rng) for row in rows)
        groups.append(Group(prompt, played))
    return groups


def _played(
    levels: Levels, batch: _Batch, prompt: Prompt, row: int, rng: np.random.Generator
) -> Trajectory:
    if rng.random() < levels.errors:
        return Trajectory(prompt, row, (), StopReason.ENV_ERROR, solved=False, error="raised")
    is_right = bool(batch.action_N[row] == batch.right_N[row])
    if rng.random() < levels.luck:
        is_right = bool(rng.random() < levels.success)
    turns = []
    solved = False
    for number in range(levels.turns):
        valid = bool(rng.random() < levels.valid)
        solved = solved or (valid and is_right)
        turns.append(_turn(levels, batch, row, rng, valid=valid, solved=is_right and number == 0))
    return Trajectory(prompt, row, tuple(turns), StopReason.DONE, solved=solved)


def _turn(
    levels: Levels,
    batch: _Batch,
    row: int,
    rng: np.random.Generator,
    *,
    valid: bool,
    solved: bool,
) -> Turn:
    count = 1
    if levels.moves:
        count += int(rng.random() < levels.moves - 1.0)
    actions = (ACTIONS[batch.action_N[row]],) * count if valid else ()
    paid = 1.0 if solved and valid else 0.0
    if levels.moves:
        paid = 10.0 * paid - 0.1 * len(actions)
    is_cut = rng.random() < levels.cut
    tokens = batch.tokens_NT[row, : batch.length_N[row]]
    return Turn(
        prompt_ids_T=batch.code_PT[batch.owner_N[row]],
        completion=Completion(
            tokens, np.full(len(tokens), -1.0), "", Finish.LENGTH if is_cut else Finish.STOP
        ),
        reply=Reply(str(tokens.tolist()), actions, "" if valid else "no answer"),
        reasoning_span=(0, len(tokens)),
        observation="solved" if solved and valid else "not solved",
        reward=0.5 if levels.is_constant else paid,
        penalty=0.0 if valid or levels.is_constant else -0.1,
        executed=actions,
    )


def _flow(
    levels: Levels, batch: _Batch, groups: Sequence[Group], rng: np.random.Generator
) -> dict[str, float]:
    """Actions follow what the reasoning says with ``follows``, and else their prompt's right action."""
    rows = rng.permutation(len(batch.owner_N))[:FLOW_TRACES]
    others_NS = np.array(
        [rng.choice(np.flatnonzero(batch.owner_N != batch.owner_N[row]), SWAPS) for row in rows]
    )

    def score(said: IntArray, right: IntArray, action: IntArray) -> FloatArray:
        told = np.where(action == said, 0.85, 0.05)
        direct = np.where(action == right, 0.7, 0.1)
        return np.asarray(np.log(levels.follows * told + (1.0 - levels.follows) * direct))

    action, said, right = batch.action_N[rows], batch.said_N[rows], batch.right_N[rows]
    blank = np.log(
        levels.follows * 0.25 + (1.0 - levels.follows) * np.where(action == right, 0.7, 0.1)
    )
    scores = FlowScores(
        own_N=score(said, right, action),
        swapped_NS=score(batch.said_N[others_NS], right[:, None], action[:, None]),
        blank_N=blank,
        redirected_NS=score(said[:, None], batch.right_N[others_NS], action[:, None]),
        differs_NS=(batch.tokens_NT[others_NS, :6] != batch.tokens_NT[rows][:, None, :6]).any(2),
        owner_N=batch.owner_N[rows],
        length_N=np.ones(len(rows), dtype=np.int64),
    )
    found = measure_flow(scores, RESAMPLES, rng)
    information = action_information(actions_by_prompt(groups, 1), resamples=RESAMPLES)
    if information is not None:
        found |= {
            "input_action": information.adjusted,
            "input_action_p_value": information.p_value,
        }
    return {f"flow/first_turn/{name}": value for name, value in found.items()}


def examined(planted: Planted, index: int, seed: int) -> Examination:
    """The verdict on one run."""
    return examine(simulate(planted, index, seed))


def confusion(runs: int, seed: int) -> list[dict[str, Any]]:
    """For each planted cause, how often which one was named, the commonest first."""
    rows = []
    for planted in LIBRARY:
        named = Counter(examined(planted, index, seed).cause for index in range(runs))
        rows.append(
            {
                "planted": planted.name,
                "cause": planted.cause,
                "right": named[planted.cause],
                "runs": runs,
                "named": dict(named.most_common()),
            }
        )
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The confusion table, as the page shows it."""
    lines = ["| planted | named right | named otherwise |", "|---|---|---|"]
    for row in rows:
        others = ", ".join(
            f"`{name}` {count}" for name, count in row["named"].items() if name != row["cause"]
        )
        lines.append(f"| {row['planted']} | {row['right']} of {row['runs']} | {others} |")
    right, runs = sum(row["right"] for row in rows), sum(row["runs"] for row in rows)
    lines.append(f"| all | {right} of {runs} ({right / runs:.1%}) | |")
    return "\n".join(lines)


def main() -> None:
    """Simulate, examine, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of each cause")
    parser.add_argument("--seed", type=int, default=REPORTED)
    parser.add_argument(
        "--only", default="", help="causes whose name contains this; writes nothing"
    )
    given = parser.parse_args()
    if given.only:
        for planted in (one for one in LIBRARY if given.only in one.name):
            for index in range(given.runs):
                found = examined(planted, index, given.seed)
                print(planted.cause, index, found.cause, "|", found.head, "|", found.text)
        return
    rows = confusion(given.runs, given.seed)
    print(table(rows))
    if given.seed == REPORTED and given.runs == RUNS:
        write_atomically(RESULTS, json.dumps(rows, indent=1) + "\n")
        before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise SystemExit(f"{PAGE} lacks the marks {BEGIN.strip()} and {END.strip()}")
        write_atomically(PAGE, f"{before}{BEGIN}{table(rows)}{END}{after}")


if __name__ == "__main__":
    main()
