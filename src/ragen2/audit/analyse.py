"""The audit itself: each kept step is measured as a training step would be, from its log alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from ragen2.audit.likelihoods import (
    Kind,
    Likelihood,
    PolicyLikelihood,
    StepScores,
    opening,
    plain,
)
from ragen2.audit.log import Log, ReadSettings
from ragen2.audit.reservoir import MAX_CHARACTERS, Play, StepSample, TextTrace
from ragen2.audit.text_model import effective_traces
from ragen2.audit.warning import FollowedWarning
from ragen2.diagnostics import Ema, measure, next_ema, reward_spread
from ragen2.diagnostics.base import Attempts, Measured, Metrics, Played
from ragen2.diagnostics.judging.detectors import Finding, find_failures
from ragen2.diagnostics.judging.periods import Period, periods
from ragen2.diagnostics.metrics.collapse import FIRST_TURN, PREFIX
from ragen2.diagnostics.metrics.grounding import allow_for_unseen
from ragen2.diagnostics.metrics.quotation import quotation
from ragen2.diagnostics.metrics.triage import Label, Triaged, triage
from ragen2.diagnostics.metrics.wording import words
from ragen2.runs.record import AuditRecord, BlindPrompt, FoundFailure, Rows, StepRecord
from ragen2.runs.scores import RowSource, ScopeScores, ScoreRecord
from ragen2.seeding import stream_key

RESAMPLES = 1000
"""Bootstrap samples and permutations of each measured step."""
NEEDS_MODEL = "needs --model: wording tells how traces differ, not how likely they were"
MOST_BLIND = 3
"""Reward-blind prompts shown."""
_OF_A_POLICY = (
    "conditional_entropy",
    "reasoning_entropy",
    "matched_logprob",
    "marginal_logprob",
)


@dataclass(slots=True)
class _Progress:
    """What earlier steps leave for later ones."""

    emas: dict[int, Ema] = field(default_factory=dict)
    unused: Counter[str] = field(default_factory=Counter)
    retokenised: Counter[str] = field(default_factory=Counter)
    num_scored: int = 0
    """Traces that a model scored, over all steps."""
    blind: list[BlindPrompt] = field(default_factory=list)
    scores: list[ScopeScores] = field(default_factory=list)
    """Matrices of the step at hand."""
    warning: FollowedWarning = field(default_factory=FollowedWarning)


def analyse(
    log: Log,
    settings: ReadSettings,
    likelihood: Likelihood,
    *,
    sources: Sequence[str],
    done: Callable[[], None],
    keep_scores: Callable[[ScoreRecord], None] | None = None,
) -> AuditRecord:
    """Measure every kept step; ``done`` is called after each, ``keep_scores`` gets its matrices."""
    progress = _Progress()
    has_rewards, note = _believable_rewards(log)
    steps = []
    scored = [
        likelihood.score_steps([_traces(sample, position) for sample in log.steps])
        for position in range(settings.limits.turns)
    ]
    for sample, *scores in zip(log.steps, *scored, strict=True):
        progress.scores = []
        steps.append(_step(sample, scores, likelihood.kind, progress, has_rewards=has_rewards))
        if progress.scores and keep_scores is not None:
            keep_scores(ScoreRecord(step=sample.step, scopes=progress.scores))
        done()
    found = periods(steps, FIRST_TURN)
    steps = _in_periods(steps, found)
    return AuditRecord(
        sources=list(sources),
        formats=log.formats,
        likelihood=likelihood.kind,
        scorer=likelihood.name,
        settings=_settings(settings, likelihood),
        rows=Rows(
            read=log.num_rows,
            used=log.num_used,
            unused=dict(log.unused.most_common()),
            no_trace=dict((log.no_trace + progress.unused).most_common()),
        ),
        unreadable=log.unreadable,
        notes=[*note, *_notes(log, settings), *_score_notes(log, likelihood, progress)],
        steps=steps,
        regime=found[-1].regime.value if found else None,
        regime_since=found[-1].since if found else None,
        failures=[
            *progress.warning.failures,
            *(_failure(one) for one in find_failures(steps)),
        ],
        blind_prompts=progress.blind[-MOST_BLIND:],
    )


def _step(
    sample: StepSample,
    scored: Sequence[StepScores],
    kind: Kind,
    progress: _Progress,
    *,
    has_rewards: bool,
) -> StepRecord:
    metrics = _surface(sample)
    absent = metrics.absent
    plays = [play for prompt in sample.prompts() for play in prompt.plays.items]
    known = [play for play in plays if play.reward is not None]
    if known and has_rewards:
        metrics |= _rewards(sample.step, known, progress)
    else:
        absent["reward"] = absent["triage"] = "the log holds no usable rewards"
    for position, scores in enumerate(scored):
        scope = "first_turn" if position == 0 else f"turn_{position + 1}"
        found, missing = _collapse(sample, position, scores, progress, scope)
        if found and kind == "text":
            found, missing = _of_wording(found, _traces(sample, position))
        if found and scores.num_fitted is not None:
            found |= allow_for_unseen(found, scores.num_fitted)
        metrics |= {f"collapse/{scope}/{name}": value for name, value in found.items()}
        absent |= {f"collapse/{scope}{name}": why for name, why in missing.items()}
        if position == 0 and found:
            metrics |= progress.warning.take(sample.step, found)
    return StepRecord(step=sample.step, metrics=metrics, absent=absent)


def _surface(sample: StepSample) -> Measured:
    """Counts of the whole step, the variety of the kept traces, and what they take over from prompts."""
    kept = _traces(sample, 0)
    shown = [opening(traces[0].prompt) for traces in kept]
    texts = [[trace.reasoning for trace in traces] for traces in kept]
    metrics = quotation(shown, texts, seed=sample.step).under("rollout")
    metrics |= {
        "audit/rollouts": float(sample.num_rollouts),
        "audit/reasonings": float(sample.num_traces),
        "audit/prompts_kept": float(len(sample.prompts())),
    }
    if sample.num_traces:
        metrics["rollout/reasoning_words"] = sample.reasoning_words / sample.num_traces
    wordings = [" ".join(words(text)) for some in texts for text in some]
    if wordings:
        metrics["rollout/distinct_reasoning_ratio"] = len(set(wordings)) / len(wordings)
    flags = [play.solved for one in sample.prompts() for play in one.plays.items]
    known = [flag for flag in flags if flag is not None]
    if known:
        metrics["rollout/success"] = float(np.mean(known))
    return metrics


def _rewards(step: int, plays: Sequence[Play], progress: _Progress) -> Metrics:
    """Spread within groups, and why groups without spread have none."""
    groups: dict[str, list[Play]] = {}
    for play in plays:
        groups.setdefault(play.group, []).append(play)
    rewards = [np.array([play.reward for play in members]) for members in groups.values()]
    metrics = {f"reward/{name}": value for name, value in reward_spread(rewards).items()}
    judged = triage(
        [
            Attempts("log", tuple(_played(play) for play in members), name=name)
            for name, members in groups.items()
        ]
    )
    labels = [one.label for one in judged]
    metrics |= {f"triage/{label.value}": labels.count(label) / len(labels) for label in Label}
    progress.blind += [_blind(step, one) for one in judged if one.label is Label.REWARD_BLIND]
    return metrics


def _played(play: Play) -> Played:
    reward = play.reward if play.reward is not None else 0.0
    return Played(reward, play.solved, (play.answer,) if play.answer else ())


def _blind(step: int, found: Triaged) -> BlindPrompt:
    examples = [
        f"{who}: {' '.join(play.actions)} -> {play.reward:g}" for who, play in found.examples
    ]
    return BlindPrompt(step=step, reason=found.reason, examples=examples)


def _collapse(
    sample: StepSample, position: int, scored: StepScores, progress: _Progress, scope: str
) -> tuple[Metrics, dict[str, str]]:
    """Proxies of one turn position, and what of them is missing and why."""
    if position == 0:
        progress.unused += scored.unused
        progress.retokenised += scored.retokenised
        progress.num_scored += len(scored.traces)
    if scored.matrix is None:
        return {}, {"": scored.reason}
    matrix = scored.matrix
    progress.scores.append(ScopeScores.of(scope, matrix, _row_sources(scored, position + 1)))
    before = progress.emas.get(position)
    progress.emas[position] = next_ema(before, matrix)
    found = measure(
        matrix.logp_NP,
        matrix.length_N,
        matrix.owner_N,
        resamples=RESAMPLES,
        ema=before,
        seed=stream_key("audit", sample.step, position) % 2**31,
    )
    return found, {}


def _traces(sample: StepSample, position: int) -> list[list[TextTrace]]:
    """Kept traces of each prompt at one turn position; prompts without any are left out."""
    kept = [one.traces[position].items for one in sample.prompts()]
    return [traces for traces in kept if traces]


def _row_sources(scored: StepScores, turn: int) -> list[RowSource]:
    """The texts of a matrix; a log has no seeds, so prompts are numbered by column."""
    assert scored.matrix is not None  # noqa: S101 - the caller looked
    counts: Counter[int] = Counter()
    found = []
    for trace, column in zip(scored.traces, scored.matrix.owner_N.tolist(), strict=True):
        counts[column] += 1
        name = f"prompt {column + 1}"
        found.append(
            RowSource(
                text=trace.reasoning,
                label=f"{name}, reasoning {counts[column]}",
                prompt=plain(trace.prompt),
                prompt_label=name,
                turn=turn,
            )
        )
    return found


def _of_wording(
    found: Metrics, prompts: Sequence[Sequence[TextTrace]]
) -> tuple[Metrics, dict[str, str]]:
    """Without a model there are no entropies of a policy, only of wording; the others are left out.

    H(Z|X) and H(Z) per sequence are then collision entropies of exact wordings: at most the true ones.
    """
    dropped = [name for name in found if name.startswith(_OF_A_POLICY)]
    kept = {name: value for name, value in found.items() if name not in dropped}
    absent = {f"/{name}": NEEDS_MODEL for name in dropped if not name.endswith(("_low", "_high"))}
    texts = [[one.reasoning for one in traces] for traces in prompts]
    for name, groups in (
        ("conditional_entropy_seq", texts),
        ("reasoning_entropy_seq", [list(chain(*texts))]),
    ):
        effective = effective_traces(groups)
        if effective is not None:
            kept[name] = math.log(effective)
            absent.pop(f"/{name}", None)
    return kept, absent


def _in_periods(steps: Sequence[StepRecord], found: Sequence[Period]) -> list[StepRecord]:
    """The steps with the regime of their period, and why; those that were not measured have none."""
    named = []
    for step in steps:
        at = [one for one in found if one.first_step <= step.step <= one.last_step]
        is_measured = f"{PREFIX}retrieval_accuracy" in step.metrics
        update = {"regime": at[0].regime.value, "note": at[0].text} if at and is_measured else {}
        named.append(step.model_copy(update=update))
    return named


def _believable_rewards(log: Log) -> tuple[bool, list[str]]:
    """RAGEN's exporter writes a reward of 0 for every rollout; that is no measurement."""
    if log.formats != ["ragen"]:
        return True, []
    plays = [play for step in log.steps for one in step.prompts() for play in one.plays.items]
    if any(play.reward for play in plays):
        return True, []
    return False, [
        "rewards are left out: every one is 0, as RAGEN's exporter writes whatever was paid"
    ]


def _notes(log: Log, settings: ReadSettings) -> list[str]:
    notes = [log.trl_rewards.note] if log.trl_rewards.note else []
    asked = (settings.columns or {}).get("reward")
    plays = [play for step in log.steps for one in step.prompts() for play in one.plays.items]
    if asked and all(play.reward is None for play in plays):
        notes.append(f"no row has a number in each column of reward={asked}; check --columns")
    cut = sum(step.num_cut for step in log.steps)
    if cut:
        notes.append(f"{cut} reasoning traces were cut after {MAX_CHARACTERS} characters")
    if log.num_steps > len(log.steps):
        notes.append(
            f"{len(log.steps)} of {log.num_steps} steps are measured; raise --max-steps for more"
        )
    return notes


def _score_notes(log: Log, likelihood: Likelihood, progress: _Progress) -> list[str]:
    """How far scores of a model may be from those of the run that wrote the log."""
    if likelihood.kind == "text":
        return []
    if not isinstance(likelihood, PolicyLikelihood):
        return [
            "the server is sent text, chats as plain paragraphs: scores of chats and of recorded tokens are "
            "not the run's own; score with a local --model for those"
        ]
    notes = [
        f"{count} of {progress.num_scored} reasoning traces were tokenised again, because {why}: scores are "
        "the run's own where it sampled the usual tokens of these texts, at temperature "
        f"{likelihood.temperature:g}"
        for why, count in progress.retokenised.most_common()
    ]
    traces = [one for step in log.steps for kept in _traces(step, 0) for one in kept]
    if log.formats == ["verl"] and any(isinstance(one.prompt, str) for one in traces):
        notes.append(
            "verl's prompts lack their special tokens: where a template other than ChatML made them, scores "
            "are not the run's own"
        )
    return notes


def _failure(found: Finding) -> FoundFailure:
    return FoundFailure(
        name=found.name, since_step=found.since_step, severity=found.severity, text=found.text
    )


def _settings(settings: ReadSettings, likelihood: Likelihood) -> dict[str, str | int | float]:
    limits = settings.limits
    scored = (
        {"temperature": likelihood.temperature} if isinstance(likelihood, PolicyLikelihood) else {}
    )
    return {
        **scored,
        "reasoning": settings.rule.text,
        "max_prompts": limits.prompts,
        "max_traces": limits.traces,
        "max_steps": limits.steps,
        "turns": limits.turns,
        "seed": limits.seed,
    }
