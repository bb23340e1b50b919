"""How fast pairs are scored, against re-encoding every one of them, with the same numbers."""

from __future__ import annotations

import ctypes
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ragen2.backends.sampling.hf import HFPolicy
from ragen2.bench.device import machine, wait_for
from ragen2.envs import FrozenLake
from ragen2.envs.base import HELD_OUT_SEEDS, Env
from ragen2.policy import ChatTokenizer, Pair
from ragen2.rollout.prompts import PromptSettings, PromptWriter
from ragen2.rollout.settings import Rollout
from ragen2.scoring import Trace
from ragen2.seeding import stream
from ragen2.types import FloatArray

TRACES = 64
"""Reasoning traces that are cross-scored."""
NAIVE_ROWS = {"cpu": 8, "cuda": 64}
"""Pairs in one naive forward pass: as many as pay, since logits of the whole vocabulary are held."""


def expert_traces(env: Env, tokenizer: ChatTokenizer, *, prompts: int, traces: int) -> list[Trace]:
    """First-turn reasoning traces of the expert, all different, dealt evenly over distinct prompts."""
    writer = PromptWriter.of(env, Rollout(), PromptSettings(style="brief"))
    rng = stream("score workload", prompts, traces)
    made: list[Trace] = []
    seen: set[bytes] = set()
    seed = HELD_OUT_SEEDS
    for place in range(prompts):
        wanted = (traces + prompts - 1 - place) // prompts
        while True:
            own = _task_traces(writer, tokenizer, seed, wanted, rng)
            seed += 1
            if own and own[0].prompt_ids_T.tobytes() not in seen:
                break
        seen.add(own[0].prompt_ids_T.tobytes())
        made += own
    return made


def _task_traces(
    writer: PromptWriter,
    tokenizer: ChatTokenizer,
    seed: int,
    wanted: int,
    rng: np.random.Generator,
) -> list[Trace]:
    """``wanted`` different reasoning traces about one task; none when the expert has nothing to say."""
    episode = writer.env.start(seed, 0)
    plan = episode.expert()
    prompt = tokenizer.start(writer.first(seed)) + tokenizer.encode(writer.form.prefill)
    texts: dict[str, None] = {}
    while plan and len(texts) < wanted:
        count = int(rng.integers(1, writer.form.max_actions + 1))
        texts[episode.explain(plan[:count], rng)] = None
    return [
        Trace(np.array(prompt, dtype=np.int64), np.array(tokenizer.encode(text), dtype=np.int64))
        for text in texts
    ]


@dataclass(frozen=True, slots=True)
class Cost:
    """What scoring took."""

    seconds: float
    """Median over the repeats."""
    repeats: tuple[float, ...]
    tokens: int
    """Tokens that went through the model, padding included."""
    peak_bytes: int | None
    """Memory above what was held before; None where it cannot be measured."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours against naive on the same pairs."""

    ours: Cost
    naive: Cost
    naive_ratio: float
    """Share of the pairs that naive really scored; its seconds and tokens are divided by it."""
    difference: float
    """Largest difference of a token's log-prob, in float32."""
    timed_difference: float
    """The same in the precision that was timed: bfloat16 products on a GPU."""

    @property
    def speedup(self) -> float:
        """How many times faster ours is."""
        return self.naive.seconds / self.ours.seconds


@torch.no_grad()
def naive_score(
    network: Any, pairs: Sequence[Pair], temperature: float, *, rows: int
) -> list[FloatArray]:
    """Every pair as one right-padded sequence with logits of all positions: what ours must equal."""
    device = next(network.parameters()).device
    scores: list[FloatArray] = []
    for start in range(0, len(pairs), rows):
        batch = pairs[start : start + rows]
        sequences = [np.concatenate([p.context_ids_T, p.continuation_ids_T]) for p in batch]
        width = max(len(ids) for ids in sequences)
        ids = torch.zeros((len(batch), width), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = torch.from_numpy(sequence)
            mask[row, : len(sequence)] = 1
        ids, mask = ids.to(device), mask.to(device)
        logits = network(input_ids=ids, attention_mask=mask, use_cache=False).logits.float()
        logp = torch.log_softmax(logits[:, :-1] / temperature, dim=-1)
        chosen = logp.gather(-1, ids[:, 1:, None]).squeeze(-1).double().cpu().numpy()
        for row, pair in enumerate(batch):
            first = len(pair.context_ids_T) - 1
            scores.append(chosen[row, first : first + len(pair.continuation_ids_T)])
    return scores


def compare_prompts(
    policy: HFPolicy, prompts: int, *, repeats: int, naive_columns: int
) -> tuple[Comparison, dict[str, Any]]:
    """Ours against naive on expert traces under ``prompts`` prompts, and the sizes of that work.

    ``naive_columns`` is the number of prompts under which naive really scores; 0 means all.
    """
    traces = expert_traces(FrozenLake(), policy.tokenizer, prompts=prompts, traces=TRACES)
    contexts = {trace.prompt_ids_T.tobytes(): trace.prompt_ids_T for trace in traces}.values()
    pairs = [Pair(ids, trace.reasoning_ids_T) for ids in contexts for trace in traces]
    few = TRACES * min(naive_columns, prompts) or None
    sizes = {
        "traces": TRACES,
        "prompts": prompts,
        "prompt_tokens": sum(map(len, contexts)) / prompts,
        "trace_tokens": sum(len(trace.reasoning_ids_T) for trace in traces) / TRACES,
    }
    return compare(policy, pairs, repeats=repeats, naive_pairs=few), sizes


def measured_on(policy: HFPolicy) -> dict[str, str | int]:
    """The machine, and which of our scoring methods was chosen on it."""
    return {**machine(policy.device), "way": policy.scorer.method().__name__}


def compare(
    policy: HFPolicy, pairs: Sequence[Pair], *, repeats: int, naive_pairs: int | None = None
) -> Comparison:
    """Time both, each after a warm-up, and compare their numbers.

    ``naive_pairs`` lets naive score only the first so many and scales its cost up to all of them:
    its cost is a sum over pairs, so nothing but time is lost.
    """
    few = list(pairs[:naive_pairs])
    rows = NAIVE_ROWS.get(policy.device.type, max(NAIVE_ROWS.values()))

    def ours() -> list[FloatArray]:
        return policy.scorer.score(pairs, 1.0)

    def naive() -> list[FloatArray]:
        return naive_score(policy.network, few, 1.0, rows=rows)

    policy.scorer.method()
    with policy.precision():
        our_cost, our_scores = _measure(policy, ours, repeats)
        naive_cost, naive_scores = _measure(policy, naive, repeats)
    timed = exact = _largest_difference(our_scores, naive_scores)
    if policy.device.type == "cuda":
        exact = _largest_difference(ours(), naive())
    share = len(few) / len(pairs)
    return Comparison(our_cost, _scaled(naive_cost, share), share, exact, timed)


def _largest_difference(ours: Sequence[FloatArray], naive: Sequence[FloatArray]) -> float:
    return max(
        float(np.abs(one - other).max())
        for one, other in zip(ours[: len(naive)], naive, strict=True)
    )


def _scaled(cost: Cost, share: float) -> Cost:
    times = tuple(seconds / share for seconds in cost.repeats)
    return Cost(cost.seconds / share, times, round(cost.tokens / share), cost.peak_bytes)


def _measure(
    policy: HFPolicy, work: Callable[[], list[FloatArray]], repeats: int
) -> tuple[Cost, list[FloatArray]]:
    """The warm-up counts tokens and memory; the repeats after it only take the time."""
    with _counted_tokens(policy) as count, _peak_memory(policy.device) as peak:
        scores = work()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        wait_for(policy.device)
        seconds.append(time.perf_counter() - started)
    return Cost(statistics.median(seconds), tuple(seconds), count[0], peak[0]), scores


@contextmanager
def _counted_tokens(policy: HFPolicy) -> Iterator[list[int]]:
    """Counts the tokens that really enter the model, whoever calls it."""
    count = [0]

    def note(_module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        count[0] += (options["input_ids"] if "input_ids" in options else args[0]).numel()

    hook = policy.split_model.decoder.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield count
    finally:
        hook.remove()


@contextmanager
def _peak_memory(device: torch.device) -> Iterator[list[int | None]]:
    """Most memory held at once, above what was held at the start."""
    peak: list[int | None] = [None]
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        yield peak
        torch.cuda.synchronize()
        peak[0] = torch.cuda.max_memory_allocated() - before
        return
    statistics_file = Path("/proc/self/statm")
    if not statistics_file.exists():
        yield peak
        return
    _give_back_freed()
    with _sampled_pages(statistics_file) as pages:
        yield peak
    peak[0] = (max(pages) - pages[0]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _sampled_pages(statistics_file: Path) -> Iterator[list[int]]:
    """Resident pages of this process, looked at every few milliseconds."""
    pages = [_resident(statistics_file)]
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.005):
            pages.append(_resident(statistics_file))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield pages
    finally:
        is_over.set()
        watcher.join()


def _give_back_freed() -> None:
    """Ask the C library for it: memory that it keeps for later would hide how much is needed."""
    with suppress(OSError, AttributeError):  # not every C library can
        ctypes.CDLL(None).malloc_trim(0)


def _resident(statistics_file: Path) -> int:
    return int(statistics_file.read_text().split()[1])
