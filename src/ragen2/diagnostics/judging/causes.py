"""What can be wrong with a run: each cause with its headline, its reason and the next thing to do.

Causes are those of ``benchmarks/planted_failures.py``, where each was planted and had to be named again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why the first failing question fails."""

    ENVIRONMENT_BROKEN = "environment_broken"
    REPLIES_CUT = "replies_cut"
    FORMAT_NEVER_LEARNT = "format_never_learnt"
    FORMAT_LOST = "format_lost"
    INVALID_PAYS = "invalid_pays"
    REWARD_BLIND = "reward_blind"
    TOO_EASY = "too_easy"
    TOO_HARD = "too_hard"
    REWARD_FLAT = "reward_flat"
    LUCK = "luck"
    NOT_LEARNING = "not_learning"
    UNLEARNT = "unlearnt"
    OVERFIT = "overfit"
    NEVER_GROUNDED = "never_grounded"
    TEMPLATE_COLLAPSE = "template_collapse"
    LOW_ENTROPY_COLLAPSE = "low_entropy_collapse"
    PARTIAL_COLLAPSE = "partial_collapse"
    ENTROPY_GAMING = "entropy_gaming"
    UNUSED_REASONING = "unused_reasoning"


@dataclass(frozen=True, slots=True)
class Remedy:
    """What a cause is called, why it comes about, and what to do next."""

    head: str
    reason: str
    next: str
    """One sentence with a command or a setting."""


REMEDIES: dict[Cause, Remedy] = {
    Cause.ENVIRONMENT_BROKEN: Remedy(
        "The environment breaks",
        "It raises while episodes are played, so their rewards mean nothing.",
        "Run `ragen2 envs check NAME`; the tracebacks are in the run's rollouts folder.",
    ),
    Cause.REPLIES_CUT: Remedy(
        "Replies are cut off",
        "The token limit ends replies before their answer.",
        "Double `rollout.max_tokens`: `ragen2 train RUN.toml --set rollout.max_tokens=256`.",
    ),
    Cause.FORMAT_NEVER_LEARNT: Remedy(
        "Replies do not parse",
        "The model never had the asked-for form.",
        "Teach the form first: `ragen2 warmstart --model MODEL --env NAME --out warm`, then train with "
        "`--model warm`.",
    ),
    Cause.FORMAT_LOST: Remedy(
        "Replies no longer parse",
        "Updates take the form apart faster than its penalty keeps it.",
        "Go back to a checkpoint before that step, and train with `--set rollout.format_penalty=-0.5` and "
        "half of `learner.lr`.",
    ),
    Cause.INVALID_PAYS: Remedy(
        "An invalid reply pays as well as an honest one",
        "An honest try costs at least what an invalid or empty reply does, so giving up is the best policy.",
        "Make an invalid reply cost more than a failed honest try: `--set rollout.format_penalty=-1`.",
    ),
    Cause.REWARD_BLIND: Remedy(
        "The reward does not see what is done",
        "Rollouts of a prompt do different things and are paid the same.",
        "Look at such prompts with `ragen2 preflight RUN.toml` and mend the reward.",
    ),
    Cause.TOO_EASY: Remedy(
        "The tasks are too easy",
        "Every rollout of a prompt solves it, so there is nothing left to tell good from bad.",
        "Take harder tasks in `[env]`; `ragen2 preflight RUN.toml` shows whether they are hard enough.",
    ),
    Cause.TOO_HARD: Remedy(
        "The tasks are too hard",
        "No rollout of a prompt solves it, so none is better than another.",
        "Take easier tasks in `[env]`, a warm start, or larger groups: `--set rollout.group_size=32`.",
    ),
    Cause.REWARD_FLAT: Remedy(
        "Rewards do not differ",
        "All rollouts of a prompt are paid the same, and the records do not say why.",
        "Switch on the diagnostic `triage`, or look at one batch with `ragen2 preflight RUN.toml`.",
    ),
    Cause.LUCK: Remedy(
        "Rewards differ by luck alone",
        "Rollouts that did the very same are paid as differently as any.",
        "Give a group the same luck with `--set rollout.luck=shared`, or make the environment less random.",
    ),
    Cause.NOT_LEARNING: Remedy(
        "Nothing is learnt",
        "Rewards differ, but updates do not carry over to held-out tasks.",
        "Raise `learner.lr` threefold, and look at the gradient with `ragen2 probe RUN_DIR`.",
    ),
    Cause.UNLEARNT: Remedy(
        "What was learnt is lost again",
        "Held-out success has fallen from its best.",
        "Go back to the checkpoint of the best evaluation and train on with half of `learner.lr`.",
    ),
    Cause.OVERFIT: Remedy(
        "Training tasks are learnt by heart",
        "Success rises on training tasks and not on held-out ones.",
        "Train on more different tasks, and stay nearer to the start: `--set algorithm.kl_coefficient=0.01`.",
    ),
    Cause.NEVER_GROUNDED: Remedy(
        "Reasoning was never about its prompt",
        "The model wrote a template from the first step on: training had no dependence to keep.",
        "Warm-start it on reasoning that describes its state: `ragen2 warmstart --model MODEL "
        "--env NAME --set groundedness=1 --out warm`.",
    ),
    Cause.TEMPLATE_COLLAPSE: Remedy(
        "Template collapse",
        "Reasoning still varies, but no longer depends on its prompt. An entropy bonus pulls that way, most "
        "of all where rewards do not differ within a prompt.",
        "Go back to a checkpoint before that step and filter, or keep less than now: "
        "`--set filter.kind=top_p --set filter.mass=0.8 --set warning.response=checkpoint`.",
    ),
    Cause.LOW_ENTROPY_COLLAPSE: Remedy(
        "Low-entropy collapse",
        "Reasoning became one text for all prompts.",
        "Go back to a checkpoint before that step, with half of `learner.lr` and "
        "`--set algorithm.entropy_coefficient=0.001`.",
    ),
    Cause.PARTIAL_COLLAPSE: Remedy(
        "Part of the reasoning is not about its prompt",
        "Part of the traces are a template, the others are still about their prompt.",
        "Filter, or keep less than now, before the rest goes too: "
        "`--set filter.kind=top_p --set filter.mass=0.8 --set warning.response=checkpoint`.",
    ),
    Cause.ENTROPY_GAMING: Remedy(
        "Template collapse while entropy rises",
        "Variety grows while information about the prompt goes: it serves an entropy bonus, not the task.",
        "Go back to a checkpoint before that step and train with `--set algorithm.entropy_coefficient=0 "
        "--set filter.kind=top_p --set filter.mass=0.9`.",
    ),
    Cause.UNUSED_REASONING: Remedy(
        "Actions do not follow the reasoning",
        "Another prompt's reasoning makes the same action no less likely.",
        "If success does without it, save the tokens with `--set rollout.thinking=false`; otherwise "
        "warm-start on reasoning that leads to its action.",
    ),
}
