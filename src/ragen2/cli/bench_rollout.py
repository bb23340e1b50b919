"""``ragen2 bench rollout``: tokens a second of our sampler and of Hugging Face's generate."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ragen2.bench.output import (
    OutOption,
    RepeatsOption,
    check_device,
    print_table,
    write_json,
)
from ragen2.cli.options import require_torch
from ragen2.errors import ConfigError

if TYPE_CHECKING:
    from ragen2.backends.settings import Precision
    from ragen2.bench.memory_limit import DecodeLimit
    from ragen2.bench.rollout import Gap, GreedyAgreement, RolloutCost


def bench_rollout(  # noqa: PLR0913, PLR0917 - one parameter a flag
    model: Annotated[
        str, typer.Option(help="Folder, hub id, GGUF file, run directory, or ragen2-tiny.")
    ] = "ragen2-tiny",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[
        str, typer.Option(help="auto, float32 or bfloat16; auto is bfloat16 on a GPU.")
    ] = "auto",
    sequences: Annotated[int, typer.Option(min=1, help="Completions written at once.")] = 128,
    prompts: Annotated[int, typer.Option(min=1, help="Distinct prompts among them.")] = 8,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 86,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a completion.")] = 128,
    repeats: RepeatsOption = 3,
    check_greedy: Annotated[
        bool,
        typer.Option("--check-greedy", help="Also compare greedy tokens, in float32."),
    ] = False,
    out: OutOption = None,
) -> None:
    """Write completions with our sampler and with `model.generate`, in turn, on the same prompts.

    Example: ragen2 bench rollout --sequences 16 --new-tokens 32 --repeats 1
    """
    check_device(device)
    if dtype not in {"auto", "float32", "bfloat16"}:
        raise ConfigError(f"--dtype must be auto, float32 or bfloat16, got {dtype}")
    require_torch()
    from ragen2.bench import rollout as bench
    from ragen2.bench.memory_limit import copy_bandwidth

    size = bench.RolloutSize(sequences, prompts, prompt_tokens, new_tokens)
    policy = bench.open_endless(model, device, cast("Precision", dtype))
    costs = bench.rollout_costs(policy, size, repeats=repeats)
    limit = bench.limit_of(policy, size, copy_bandwidth(policy.device))
    gap = bench.logprob_gap(policy, size)
    greedy = bench.greedy_agreement(policy, size) if check_greedy else None
    _print(f"{size.describe()}; engine: {bench.engine_of(policy)}", costs, limit, gap)
    if greedy is not None:
        _print_greedy(greedy)
    if out is not None:
        found = {
            "model": model,
            "dtype": str(policy.dtype).removeprefix("torch."),
            "engine": bench.engine_of(policy),
            **bench.machine(policy.device),
            **asdict(size),
            **_as_json(costs, limit, gap, greedy),
        }
        write_json(out, found)


def _as_json(
    costs: dict[str, RolloutCost], limit: DecodeLimit, gap: Gap, greedy: GreedyAgreement | None
) -> dict[str, Any]:
    return {
        "ways": {name: asdict(cost) for name, cost in costs.items()},
        "limit": {**asdict(limit), "tokens_per_second": limit.tokens_per_second},
        "logprob_gap": asdict(gap),
        "greedy": None if greedy is None else asdict(greedy),
    }


def _print(title: str, costs: dict[str, RolloutCost], limit: DecodeLimit, gap: Gap) -> None:
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
    print_table(title, ("", "seconds", "first time", "tokens/s", "ours over this"), rows)
    most = limit.tokens_per_second
    print(
        f"memory moves {limit.bandwidth / 1e9:,.0f} GB/s here; reading weights and caches once a token "
        f"would allow {most:,.0f} tokens/s, ours reaches {ours.tokens_per_second / most:.1%} of it"
    )
    print(
        f"log-probs of the sampler and of a learner's forward pass differ by {gap.mean:.1e} on average, "
        f"{gap.largest:.1e} at most"
    )


def _print_greedy(greedy: GreedyAgreement) -> None:
    told = f"greedy in float32: {greedy.equal_sequences} of {greedy.sequences} sequences equal those of "
    told += "generate token for token"
    if greedy.equal_sequences < greedy.sequences:
        told += (
            f"; {greedy.equal_ratio:.1%} of the tokens come before a first difference, where the two "
            f"choices' log-probs differ by {greedy.margin:.1e} at most"
        )
    print(told)
