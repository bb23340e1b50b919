"""What ``ragen2 preflight`` prints: the signal, the filters, the flat prompts, and the advice."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ragen2.diagnostics import Label, Played, Triaged
from ragen2.trainer.advice import Decision
from ragen2.trainer.preflight import SCOPE, Preflight

MOST_PROMPTS = 3
"""Prompts shown for each label; the JSON file has all."""
MOST_TEXT = 36
"""Characters of a play's actions; what it led to follows."""
REPAIR_ORDER = (Label.REWARD_BLIND, Label.UNCLEAR, Label.TOO_HARD, Label.TOO_EASY)
"""Labels whose prompts are shown, those that ask for a repair first."""
LABEL_STYLES = {
    Label.LIVE: "green",
    Label.TOO_EASY: "cyan",
    Label.TOO_HARD: "yellow",
    Label.REWARD_BLIND: "bold red",
    Label.UNCLEAR: "dim",
}
DECISION_STYLES = {
    Decision.FILTER: "bold green",
    Decision.NO_FILTER: "bold green",
    Decision.EITHER: "bold green",
    Decision.FIX_FIRST: "bold red",
}


def show(found: Preflight, console: Console) -> None:
    """All sections, the advice last: it is what stays on the screen."""
    episodes = found.num_prompts * found.group_size
    console.print(
        Text(
            f"{found.env} · {found.model} · {found.num_prompts} prompts x {found.group_size} = "
            f"{episodes} episodes"
        )
    )
    console.print(_signal(found))
    console.print(_sizes(found))
    console.print(_filters(found))
    _replies(found, console)
    console.print(_triage(found))
    for label in REPAIR_ORDER:
        _prompts(label, [one for one in found.prompts if one.label is label], console)
    _advice(found, console)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    return table


def _signal(found: Preflight) -> Table:
    table = Table(title="signal", title_justify="left", title_style="bold")
    table.add_column("quantity")
    table.add_column("value", justify="right")
    table.add_column("how to read it")
    for label, value, note in _signal_rows(found):
        table.add_row(label, value, note)
    return table


def _signal_rows(found: Preflight) -> list[tuple[str, str, str]]:
    metrics = found.metrics
    rows = [
        ("success", f"{metrics['rollout/success']:.2f}", "share of episodes solved"),
        ("mean return", f"{metrics['reward/mean']:.3f}", "rewards and format penalties"),
        ("reward variance", f"{metrics['reward/variance']:.3f}", "mean over prompts, RV"),
        ("reward std", f"{metrics['reward/std']:.3f}", "mean over prompts"),
    ]
    if "reward/variance_std_over_mean" in metrics:
        low, high = found.ratio_interval or (0.0, 0.0)
        ratio = f"{metrics['reward/variance_std_over_mean']:.2f}"
        rows.append(("Std(RV)/Mean(RV)", ratio, f"95%: {low:.2f} to {high:.2f}"))
    rows.append(("dead prompts", f"{metrics['reward/dead_ratio']:.0%}", "all returns equal"))
    rows.append(
        ("effective batch", f"{metrics['reward/effective_batch']:.0f}", "episodes of the others")
    )
    if found.noise is not None and found.noise.environment_ratio is not None:
        share = f"{found.noise.environment_ratio:.0%}"
        rows.append(("luck's part of RV", share, "same actions under other luck"))
    if f"{SCOPE}/retrieval_accuracy" in metrics:
        chance = metrics[f"{SCOPE}/retrieval_chance"]
        accuracy = f"{metrics[f'{SCOPE}/retrieval_accuracy']:.2f}"
        rows.append(("retrieval accuracy", accuracy, f"chance {chance:.2f}; first-turn reasoning"))
        bound = metrics[f"{SCOPE}/mi_bound"]
        information = f"{round(metrics[f'{SCOPE}/mi_estimate'], 2) + 0.0:.2f}"
        rows.append(("MI, nats per token", information, f"at most {bound:.2f}"))
    rows.append(("regime", (found.regime or "not measured").replace("_", " "), ""))
    return rows


def _sizes(found: Preflight) -> Table:
    table = Table(title="dead prompts at other group sizes", title_justify="left")
    table.title_style = "bold"
    table.add_column("group size")
    for one in found.group_sizes:
        mark = "*" if one.is_extrapolated else ""
        table.add_column(f"{one.group_size}{mark}", justify="right")
    table.add_row("dead", *(f"{one.dead_ratio:.0%}" for one in found.group_sizes))
    if any(one.is_extrapolated for one in found.group_sizes):
        table.caption = "* larger than played: from a beta model"
        table.caption_justify = "left"
    return table


def _filters(found: Preflight) -> Table:
    table = _table(
        "filters: what they would keep", "filter", "keep rate", "9 of 10 batches", "effective batch"
    )
    for one in found.filters:
        name = f"{one.kind} (this run)" if one.is_own else one.kind
        table.add_row(
            name,
            f"{one.kept_ratio:.0%}",
            f"{one.kept_ratio_low:.0%} to {one.kept_ratio_high:.0%}",
            f"{one.effective_batch:.0f}",
        )
    return table


def _replies(found: Preflight, console: Console) -> None:
    """What was wrong with replies, and what policies earn that need no model."""
    if found.problems:
        table = _table("replies that could not be executed as written", "problem", "replies")
        table.add_column("for example", no_wrap=True, overflow="ellipsis")
        for one in found.problems:
            first, *others = [" ".join(text.split()) for text in one.examples]
            table.add_row(one.kind, str(one.count), Text(first))
            for other in others:
                table.add_row("", "", Text(other))
        console.print(table)
    if found.incentives is not None:
        paid = found.incentives
        policies = {
            "always invalid": paid.invalid,
            "changing nothing": paid.idle,
            "random": paid.random,
            "expert": paid.expert,
        }
        known = [f"{name} {value:.2f}" for name, value in policies.items() if value is not None]
        console.print(Text.assemble(("what play pays  ", "bold"), ", ".join(known)))


def _triage(found: Preflight) -> Text:
    counts = {label: sum(one.label is label for one in found.prompts) for label in Label}
    text = Text("prompts  ", style="bold")
    for index, (label, count) in enumerate(counts.items()):
        style = LABEL_STYLES[label] if count else "dim"
        comma = ", " if index else ""
        text.append(comma, style="not bold")
        text.append(f"{count} {label.value.replace('_', ' ')}", style=f"not bold {style}")
    return text


def _prompts(label: Label, prompts: Sequence[Triaged], console: Console) -> None:
    """The first few prompts of a label, each with its examples."""
    for one in prompts[:MOST_PROMPTS]:
        line = Table.grid(padding=(0, 1))
        line.add_row(
            Text(label.value.replace("_", " "), style=LABEL_STYLES[label]),
            Text(f"{one.name}: {one.reason}"),
        )
        console.print(line)
        for who, played in one.examples:
            console.print(_example(who, played), no_wrap=True, overflow="ellipsis")
    if len(prompts) > MOST_PROMPTS:
        more = f"  and {len(prompts) - MOST_PROMPTS} more {label.value.replace('_', ' ')}"
        console.print(Text(more, style="dim"))


def _example(who: str, played: Played) -> Text:
    """A play on one line, cut at the edge; the JSON file has it whole."""
    solved = {True: "solved", False: "not solved", None: ""}[played.solved]
    actions = " || ".join(played.actions) or "nothing"
    cut = actions if len(actions) <= MOST_TEXT else f"{actions[: MOST_TEXT - 3]}..."
    deeds = " ".join((f"{cut} -> {played.outcome}" if played.outcome else cut).split())
    line = f"  {who:<9} paid {played.reward:<4g} {solved:<10}  {deeds}"
    return Text(line, style="dim")


def _advice(found: Preflight, console: Console) -> None:
    for name, reason in found.absent.items():
        console.print(Text(f"no {name}: {reason}", style="dim"))
    console.print()
    console.print(Text(found.advice.line, style=DECISION_STYLES[found.advice.decision]))
    reasons = Table.grid(padding=(0, 1))
    for reason in found.advice.reasons:
        reasons.add_row("  -", Text(reason))
    console.print(reasons)
