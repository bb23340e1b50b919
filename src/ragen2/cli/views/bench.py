"""What a person sees of a benchmark: a table, and the sentences that draw its conclusion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from ragen2.bench.device import DecodeLimit
    from ragen2.bench.environments import Speed
    from ragen2.bench.rollout import Gap, GreedyAgreement, RolloutCost
    from ragen2.bench.score import Comparison
    from ragen2.bench.step import StepCosts


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """The first column is text, the others are numbers."""
    table = Table(title=title or None, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def print_env_speeds(speeds: Mapping[str, Speed]) -> None:
    """One row per environment."""
    columns = ("environment", "first start, ms", "resets/s", "ms/reset", "steps/s", "ms/step")
    rows = [
        (
            kind,
            f"{1000 * speed.seconds_first_start:.1f}",
            f"{1 / speed.seconds_reset:,.0f}",
            f"{1000 * speed.seconds_reset:.3f}",
            f"{1 / speed.seconds_step:,.0f}",
            f"{1000 * speed.seconds_step:.4f}",
        )
        for kind, speed in speeds.items()
    ]
    print_table(columns, rows)


def print_comparison(traces: int, prompts: int, comparison: Comparison) -> None:
    """Cross-scoring against re-encoding."""
    rows = []
    for name, cost in (("ours", comparison.ours), ("naive", comparison.naive)):
        peak = "not measured" if cost.peak_bytes is None else f"{cost.peak_bytes / 2**20:,.0f}"
        rows.append((name, f"{cost.seconds:.3f}", f"{cost.tokens:,}", peak))
    columns = ("", "seconds", "tokens read", "peak memory, MiB")
    print_table(columns, rows, f"{traces} traces x {prompts} prompts")
    found = f"{comparison.speedup:.1f} times faster; largest difference of a token's log-prob "
    found += f"{comparison.difference:.1e} in float32"
    if comparison.timed_difference != comparison.difference:
        found += f", {comparison.timed_difference:.1e} as timed"
    if comparison.naive_ratio < 1:
        found += f"; naive scored {comparison.naive_ratio:.0%} of the pairs, scaled up"
    print(found)


def print_updates(
    kept: Mapping[str, int], costs: Mapping[str, Mapping[str, Any]], summary: Mapping[str, float]
) -> None:
    """An update with and without a filter; ``kept`` is the number of prompts of each."""
    rows = [
        (name, str(kept[name]), f"{cost['seconds']:.3f}", f"{cost['tokens']:,}")
        for name, cost in costs.items()
    ]
    columns = ("", "prompts", "seconds", "tokens read")
    print_table(columns, rows, "One update on the same rollouts")
    print(
        f"filtered over unfiltered: {summary['seconds_ratio']:.2f} of the time, "
        f"{summary['tokens_ratio']:.2f} of the tokens"
    )
    print(
        f"choosing the prompts: {1000 * summary['seconds_select']:.3f} ms, "
        f"{summary['select_share']:.4%} of rollout and filtered update"
    )


def print_rollouts(
    title: str, costs: Mapping[str, RolloutCost], limit: DecodeLimit, gap: Gap
) -> None:
    """Our sampler and the others, then the limit of the memory and the agreement of the log-probs."""
    ours = costs["ours"]
    rows = [
        (
            name,
            f"{cost.seconds:.3f}",
            f"{cost.first_seconds:.3f}",
            f"{cost.tokens_per_second:,.0f}",
            f"{ours.tokens_per_second / cost.tokens_per_second:.2f}",
        )
        for name, cost in costs.items()
    ]
    print_table(("", "seconds", "first time", "tokens/s", "ours over this"), rows, title)
    most = limit.tokens_per_second
    print(
        f"memory moves {limit.bandwidth / 1e9:,.0f} GB/s here; reading weights and caches once per token "
        f"would allow {most:,.0f} tokens/s, ours reaches {ours.tokens_per_second / most:.1%} of it"
    )
    print(
        f"log-probs of the sampler and of a learner's forward pass differ by {gap.mean:.1e} on average, "
        f"{gap.largest:.1e} at most"
    )


def print_greedy(greedy: GreedyAgreement) -> None:
    """Whether both samplers choose the same likeliest tokens."""
    found = f"greedy in float32: {greedy.equal_sequences} of {greedy.sequences} sequences equal those of "
    found += "generate token for token"
    if greedy.equal_sequences < greedy.sequences:
        found += (
            f"; {greedy.equal_ratio:.1%} of the tokens come before a first difference, where the two "
            f"choices' log-probs differ by {greedy.margin:.1e} at most"
        )
    print(found)


def print_phases(costs: StepCosts) -> None:
    """Seconds of a step by phase."""
    rows = [
        (name, f"{seconds:.3f}", f"{costs.shares[name]:.1%}")
        for name, seconds in costs.phases.items()
    ]
    rows.append(("step", f"{costs.seconds:.3f}", "100.0%"))
    print_table(("phase", "seconds", "share"), rows, f"Mean of {len(costs.steps)} steps")
    print(
        f"sampled {costs.sampled_tokens:,.0f} tokens per step, "
        f"{costs.sampled_tokens / costs.phases['rollout']:,.0f}/s in rollout; trained on "
        f"{costs.trained_tokens:,.0f}, {costs.trained_tokens / costs.phases['update']:,.0f}/s in update; "
        f"first step {costs.first_seconds:.3f} s; one evaluation {costs.seconds_evaluation:.3f} s"
    )


def print_trl(races: Mapping[str, Any]) -> None:
    """The same job by TRL and by ours, for each mode in which TRL can generate."""
    rows = []
    for name, found in races["ways"].items():
        if "failed" in found:
            rows.append((name, "does not run here", "", ""))
            continue
        cells = (found["theirs"]["seconds_a_token"], found["ours"]["seconds_a_token"])
        shown = (f"{1e6 * seconds:,.1f}" for seconds in cells)
        rows.append((name, *shown, f"{found['ratio']:.2f}"))
    columns = ("TRL writes by", "TRL, µs/token", "ours, µs/token", "ratio")
    print_table(columns, rows, "One step of the same single-turn job")
    for name, found in races["ways"].items():
        if "failed" in found:
            print(f"{name}: {found['failed']}")
    print(
        f"ours is {races['ratio']:.2f} times as fast as TRL's fastest way, {races['fastest']}; by "
        f"processor time {races['cpu_ratio']:.2f} times"
    )
