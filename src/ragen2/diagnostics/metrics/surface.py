"""What can be seen without a model: success, lengths, format, and whether actions depend on their prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from ragen2.diagnostics.base import Diagnostic, Evidence, Measured, Metrics
from ragen2.diagnostics.metrics.quotation import quotation
from ragen2.diagnostics.statistics.resampling import permutation_p_value
from ragen2.seeding import stream
from ragen2.types import (
    Finish,
    FloatArray,
    Group,
    IntArray,
    StopReason,
    Trajectory,
    Turn,
    context_key,
)

Symbols = Sequence[Hashable]
"""A trajectory as a sequence of turns that can be told apart."""


class Surface(Diagnostic):
    """Success rate, the outward form of replies, and what their reasoning takes over from prompts."""

    kind: Literal["surface"] = "surface"

    def measure(self, evidence: Evidence) -> Measured:
        """All under ``rollout/``."""
        found = Measured(surface(evidence.groups))
        traces: dict[str, list[str]] = {}
        for trajectory in (one for group in evidence.groups for one in group.trajectories):
            shown = "\n".join(message.content for message in trajectory.prompt.messages)
            first = [turn.reply.reasoning for turn in trajectory.turns[:1]]
            traces.setdefault(shown, []).extend(first)
        found.add(quotation(list(traces), list(traces.values()), seed=evidence.step))
        return found.under("rollout")


def surface(groups: Sequence[Group]) -> Metrics:
    """Means over trajectories (success, turns, actions) or over turns (lengths, validity)."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    errors = sum(trajectory.stop is StopReason.ENV_ERROR for trajectory in trajectories)
    metrics = {
        "success": float(np.mean([trajectory.solved for trajectory in trajectories])),
        "turns": float(np.mean([len(trajectory.turns) for trajectory in trajectories])),
        "actions": float(
            np.mean([sum(len(t.executed) for t in one.turns) for one in trajectories])
        ),
        "env_errors": float(errors),
    }
    if turns:
        first = [one.turns[0].reply.reasoning for one in trajectories if one.turns]
        metrics |= {
            "format_validity": float(np.mean([not turn.problem for turn in turns])),
            "parsed_ratio": float(np.mean([turn.reply.valid for turn in turns])),
            **_action_ratios(turns),
            "reply_tokens": float(np.mean([len(turn.completion.ids_T) for turn in turns])),
            "reasoning_tokens": float(np.mean([len(turn.reasoning_ids_T) for turn in turns])),
            "cut_ratio": float(
                np.mean([turn.completion.finish is Finish.LENGTH for turn in turns])
            ),
            "distinct_reasoning_ratio": len(set(first)) / len(first),
        }
    return metrics


def _action_ratios(turns: Sequence[Turn]) -> Metrics:
    """Shares of actions that the environment knew, and of those that changed something.

    Records of older versions say neither.
    """
    known = sum(len(turn.executed) for turn in turns)
    all_ = known + sum(len(turn.unknown) for turn in turns)
    flags = [flag for turn in turns for flag in turn.effective or ()]
    if not all_ or len(flags) != known:
        return {}
    found = {"known_actions_ratio": known / all_}
    return found | ({"effective_actions_ratio": sum(flags) / known} if known else {})


@dataclass(frozen=True, slots=True)
class ActionInformation:
    """I(X;A) of discrete actions, in nats."""

    raw: float
    """The plug-in estimate: too high, the more so the fewer actions a prompt has."""
    null: float
    """Mean plug-in estimate when actions are permuted among the prompts."""
    adjusted: float
    """``bound * (raw - null) / (bound - null)``: 0 in the mean for actions that ignore their prompt,
    the plug-in value for those that are a function of it (adjusted for chance as by Vinh et al. 2010)."""
    p_value: float
    """Chance of ``raw`` if actions ignored their prompt."""
    bound: float
    """No estimate can be larger: the smaller of H(X) and H(A)."""
    entropy: float
    """H(A), the variety of actions over all prompts (plug-in)."""


def action_information(
    actions_PG: Sequence[Sequence[str]], *, resamples: int = 200, seed: int = 0
) -> ActionInformation | None:
    """How much an action tells about its prompt, from the actions of each prompt.

    ``action_information([["Up", "Up"], ["Down", "Down"]])`` has a raw estimate of log 2. A prompt with
    one action cannot tell and is left out; None when fewer than two prompts remain.
    """
    if not is_comparable(actions_PG):
        return None
    present = [list(actions) for actions in actions_PG if len(actions) >= 2]
    owner_N = np.repeat(np.arange(len(present)), [len(actions) for actions in present])
    _, action_N = np.unique([one for actions in present for one in actions], return_inverse=True)
    rng = stream("action information", seed)
    shuffled_BN = rng.permuted(np.tile(action_N, (resamples, 1)), axis=1)
    raw = float(_plug_in(owner_N, action_N[None])[0])
    null_B = _plug_in(owner_N, shuffled_BN)
    null = float(null_B.mean())
    entropy = float(_entropy(np.bincount(action_N)[None])[0])
    bound = min(entropy, float(_entropy(np.bincount(owner_N)[None])[0]))
    # Actions that are all alike have nothing above the null, and no information.
    most = bound - null
    adjusted = bound * (raw - null) / most if most > 1e-9 else 0.0
    p_value = permutation_p_value(raw, null_B)
    return ActionInformation(raw, null, adjusted, p_value, bound, entropy)


def is_comparable(actions_PG: Sequence[Sequence[str]]) -> bool:
    """Whether at least two prompts have at least two actions each."""
    return sum(len(actions) >= 2 for actions in actions_PG) >= 2


class Actions(Diagnostic):
    """Do actions go back and forth, or have no effect? Read off the turns, without a model."""

    kind: Literal["actions"] = "actions"

    resamples: int = Field(
        200, ge=100, le=1_000_000, description="shuffles of each trajectory's turns"
    )

    def measure(self, evidence: Evidence) -> Measured:
        """All under ``rollout/``; what needs longer episodes than there are is left out."""
        trajectories = [one for group in evidence.groups for one in group.trajectories]
        found, absent = no_effect(trajectories), {}
        if not found:
            absent["rollout/no_effect"] = "no action was taken after a first turn"
        if max((len(one.turns) for one in trajectories), default=0) < 3:
            absent["rollout/oscillation"] = "no episode had three turns"
        rng = stream(evidence.seed, "oscillation", evidence.step)
        found |= oscillation([symbols(one) for one in trajectories], self.resamples, rng)
        return Measured({f"rollout/{name}": value for name, value in found.items()}, absent)


def symbols(trajectory: Trajectory) -> list[Hashable]:
    """Each turn as what was done and what was seen after it.

    Right, Down, Right, Down over new ground is no oscillation: what is seen differs each time.
    """
    return [(turn.executed, turn.shown) for turn in trajectory.turns]


def no_effect(trajectories: Sequence[Trajectory]) -> Metrics:
    """Shares of the acting turns after the first whose observation is the old one.

    ``no_effect`` counts them all, ``stuck`` those that had also done the same the turn before.
    """
    pairs = [
        (before, turn)
        for one in trajectories
        for before, turn in zip(one.turns, one.turns[1:], strict=False)
        if turn.executed
    ]
    if not pairs:
        return {}
    still = [turn.shown == before.shown for before, turn in pairs]
    again = [turn.executed == before.executed for before, turn in pairs]
    return {
        "no_effect": float(np.mean(still)),
        "stuck": float(np.mean([a and b for a, b in zip(still, again, strict=True)])),
    }


def oscillation(sequences: Sequence[Symbols], resamples: int, rng: np.random.Generator) -> Metrics:
    """Mean share of A-B-A in sequences of three or more, against the same turns in random order."""
    long = [_codes(sequence) for sequence in sequences if len(sequence) >= 3]
    if not long:
        return {}
    observed = float(np.mean([back_and_forth(codes[None])[0] for codes in long]))
    shuffled_B = np.mean(
        [back_and_forth(rng.permuted(np.tile(codes, (resamples, 1)), axis=1)) for codes in long],
        axis=0,
    )
    return {
        "oscillation": observed,
        "oscillation_null": float(np.mean([shuffled_back_and_forth(codes) for codes in long])),
        "oscillation_p_value": permutation_p_value(observed, shuffled_B),
    }


def back_and_forth(codes_BT: IntArray) -> FloatArray:
    """Share of places, from the third on, that repeat the last but one and not the last."""
    now, last, before = codes_BT[:, 2:], codes_BT[:, 1:-1], codes_BT[:, :-2]
    return np.asarray(((now == before) & (now != last)).mean(1))


def shuffled_back_and_forth(codes_T: IntArray) -> float:
    """What ``back_and_forth`` is in the mean over all orders of the same turns, exactly."""
    count_A = np.array(list(Counter(codes_T.tolist()).values()), dtype=np.float64)
    n = len(codes_T)
    return float((count_A * (count_A - 1) * (n - count_A)).sum() / (n * (n - 1) * (n - 2)))


def actions_by_prompt(groups: Sequence[Group], turn: int) -> list[list[str]]:
    """Answers given in turn ``turn`` (from 1), for each distinct prompt that the model then saw."""
    found: dict[bytes, list[str]] = {}
    for group in groups:
        for trajectory in group.trajectories:
            if len(trajectory.turns) >= turn and trajectory.turns[turn - 1].reply.actions:
                one = trajectory.turns[turn - 1]
                key = context_key(one.prompt_ids_T, one.images)
                found.setdefault(key, []).append(" || ".join(one.reply.actions))
    return list(found.values())


def _codes(sequence: Symbols) -> IntArray:
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(one, len(known)) for one in sequence], dtype=np.int64)


def _plug_in(owner_N: IntArray, action_BN: IntArray) -> FloatArray:
    """H(X) + H(A) - H(X,A) of counted pairs, for B assignments of actions at once."""
    prompts, kinds = int(owner_N.max()) + 1, int(action_BN.max()) + 1
    draws = len(action_BN)
    cell_BN = (np.arange(draws)[:, None] * prompts + owner_N) * kinds + action_BN
    count_BPA = np.bincount(cell_BN.ravel(), minlength=draws * prompts * kinds).reshape(
        draws, prompts, kinds
    )
    joint = _entropy(count_BPA.reshape(draws, -1))
    return np.asarray(_entropy(count_BPA.sum(2)) + _entropy(count_BPA.sum(1)) - joint)


def _entropy(count_BA: IntArray) -> FloatArray:
    share = count_BA / count_BA.sum(1, keepdims=True)
    return np.asarray(-(share * np.log(np.where(share > 0.0, share, 1.0))).sum(1))
