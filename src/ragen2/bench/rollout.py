"""How fast completions are written: our sampler against Hugging Face's generate, on the same prompts."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from ragen2.backends.agent import open_model, pick_device
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.settings import EngineChoice, Precision
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.bench.device import DecodeLimit, decode_limit, wait_for
from ragen2.bench.score import naive_score
from ragen2.errors import ConfigError, ModelError
from ragen2.policy import Pair, Request, SamplingParams
from ragen2.seeding import stream
from ragen2.types import Completion, IntArray

OURS, DYNAMIC, STATIC = "ours", "generate", "generate, static cache"
FORWARD_ROWS = 16
"""Sequences in one plain forward pass: logits of the whole vocabulary are held for all of them."""


@dataclass(frozen=True, slots=True)
class RolloutSize:
    """So many sequences over so many distinct prompts, and how long all of them are."""

    sequences: int = 128
    prompts: int = 8
    prompt_tokens: int = 86
    new_tokens: int = 128

    def __post_init__(self) -> None:
        if self.sequences % self.prompts:
            raise ConfigError(
                f"--sequences must be a multiple of --prompts, got {self.sequences} and {self.prompts}"
            )

    def describe(self) -> str:
        """In words."""
        return (
            f"{self.sequences} sequences of {self.prompts} prompts, {self.prompt_tokens} + "
            f"{self.new_tokens} tokens"
        )

    @property
    def mean_cache(self) -> float:
        """Tokens in a sequence's cache, averaged over the steps that write."""
        return self.prompt_tokens + self.new_tokens / 2


@dataclass(frozen=True, slots=True)
class RolloutCost:
    """What writing all completions took, reading the prompts included."""

    seconds: float
    """Median of the repeats."""
    repeats: tuple[float, ...]
    first_seconds: float
    """The first time, with whatever is prepared or compiled then."""
    tokens_per_second: float
    """Of written tokens."""


@dataclass(frozen=True, slots=True)
class Gap:
    """How far the sampler's log-probs are from a learner's forward pass over the same tokens."""

    mean: float
    largest: float


@dataclass(frozen=True, slots=True)
class GreedyAgreement:
    """Our greedy tokens against those of ``generate``, in float32."""

    sequences: int
    equal_sequences: int
    equal_ratio: float
    """Share of tokens before the first difference."""
    margin: float
    """Largest difference in log-prob of two choices that differ first; 0 when none does."""


def open_endless(model: str, device: str, precision: Precision) -> HFPolicy:
    """A policy to be timed."""
    network, tokenizer = open_model(model, device=pick_device(device))
    return endless_policy(network, tokenizer, precision=precision)


def endless_policy(
    network: Any,
    tokenizer: TemplateTokenizer,
    *,
    precision: Precision = "auto",
    engine: EngineChoice = "auto",
) -> HFPolicy:
    """A policy to which no token is an end of text, so that completions have the asked-for length."""
    plain = TemplateTokenizer(tokenizer.hf, [])
    return HFPolicy(network, plain, precision=precision, engine=engine)


def draw_requests(policy: HFPolicy, size: RolloutSize, round_: int) -> list[Request]:
    """Prompts of random ordinary tokens, other ones each round; members of a group share theirs."""
    if size.prompt_tokens + size.new_tokens > policy.max_context:
        raise ModelError(
            f"the model reads {policy.max_context} tokens, but {size.prompt_tokens} + {size.new_tokens} "
            "were asked for; lower --prompt-tokens or --new-tokens"
        )
    special = set(policy.tokenizer.hf.all_special_ids)
    known = min(policy.network.config.vocab_size, len(policy.tokenizer.hf))
    ordinary = np.array([token for token in range(known) if token not in special])
    rng = stream("bench rollout", round_)
    prompts = ordinary[rng.integers(0, len(ordinary), (size.prompts, size.prompt_tokens))]
    members = size.sequences // size.prompts
    return [
        Request(prompts[index // members], ("bench rollout", round_, index))
        for index in range(size.sequences)
    ]


def write_ours(
    policy: HFPolicy, requests: Sequence[Request], tokens: int, *, greedy: bool = False
) -> list[Completion]:
    """Completions of exactly ``tokens`` tokens."""
    params = SamplingParams(temperature=0.0 if greedy else 1.0, max_tokens=tokens, stop=())
    completions = policy.sample(requests, params)
    _check_lengths([len(completion.ids_T) for completion in completions], tokens, OURS)
    return completions


class Generate:
    """``model.generate`` on a copy of the network in one precision, without an end of text."""

    def __init__(self, network: Any, dtype: torch.dtype) -> None:
        self.network = copy.deepcopy(network).to(dtype)
        self.network.generation_config = GenerationConfig()  # a model's own would be mixed in

    def __call__(
        self,
        requests: Sequence[Request],
        tokens: int,
        *,
        cache: str | None = None,
        greedy: bool = False,
    ) -> list[IntArray]:
        """Ids of exactly ``tokens`` new tokens for each request; ``cache`` is transformers' name."""
        prompts = torch.as_tensor(np.stack([request.prompt_ids_T for request in requests]))
        ids = prompts.to(self.network.device)
        drawn = {} if greedy else {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
        config = GenerationConfig(
            max_new_tokens=tokens,
            do_sample=not greedy,
            pad_token_id=0,
            cache_implementation=cache,
            **drawn,
        )
        with torch.no_grad():
            out = self.network.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config
            )
        written = out[:, ids.shape[1] :].cpu().numpy()
        _check_lengths([written.shape[1]], tokens, "generate")
        return list(written)


def rollout_costs(policy: HFPolicy, size: RolloutSize, *, repeats: int) -> dict[str, RolloutCost]:
    """Every sampler once to warm up, then ``repeats`` times in turn, on new prompts each round.

    In turn, so that a machine that slows down meanwhile slows all of them.
    """
    generate = Generate(policy.network, policy.dtype)
    samplers: dict[str, Callable[[Sequence[Request]], object]] = {
        OURS: partial(write_ours, policy, tokens=size.new_tokens),
        DYNAMIC: partial(generate, tokens=size.new_tokens),
    }
    if policy.device.type == "cuda":
        samplers[STATIC] = partial(generate, tokens=size.new_tokens, cache="static")
    return timed_in_turn(policy, samplers, size, repeats)


def timed_in_turn(
    policy: HFPolicy,
    samplers: Mapping[str, Callable[[Sequence[Request]], object]],
    size: RolloutSize,
    repeats: int,
) -> dict[str, RolloutCost]:
    """Seconds of each sampler; round 0 is kept apart as the first time."""
    seconds: dict[str, list[float]] = {name: [] for name in samplers}
    for round_ in range(repeats + 1):
        requests = draw_requests(policy, size, round_)
        for name, write in samplers.items():
            wait_for(policy.device)
            started = time.perf_counter()
            write(requests)
            wait_for(policy.device)
            seconds[name].append(time.perf_counter() - started)
    tokens = size.sequences * size.new_tokens
    return {
        name: RolloutCost(
            seconds=statistics.median(rest),
            repeats=tuple(rest),
            first_seconds=first,
            tokens_per_second=tokens / statistics.median(rest),
        )
        for name, (first, *rest) in seconds.items()
    }


def limit_of(policy: HFPolicy, size: RolloutSize, bandwidth: float) -> DecodeLimit:
    """What memory of this bandwidth would allow for this size."""
    return decode_limit(
        policy.network,
        size.sequences,
        size.mean_cache,
        bytes_each=policy.dtype.itemsize,
        bandwidth=bandwidth,
    )


def logprob_gap(policy: HFPolicy, size: RolloutSize) -> Gap:
    """Sampled log-probs against one forward pass over whole sequences, as an update makes it."""
    requests = draw_requests(policy, size, 0)
    completions = write_ours(policy, requests, size.new_tokens)
    pairs = [
        Pair(request.prompt_ids_T, completion.ids_T)
        for request, completion in zip(requests, completions, strict=True)
    ]
    with policy.precision():
        scores = naive_score(policy.network, pairs, 1.0, rows=FORWARD_ROWS)
    sampled_N = np.concatenate([completion.logprobs_T for completion in completions])
    gap_N = np.abs(sampled_N - np.concatenate(scores))
    return Gap(float(gap_N.mean()), float(gap_N.max()))


def greedy_agreement(policy: HFPolicy, size: RolloutSize) -> GreedyAgreement:
    """Whether both choose the same tokens when each takes its likeliest, in float32."""
    exact = endless_policy(policy.network, policy.tokenizer, precision="float32")
    requests = draw_requests(exact, size, 0)
    ours = [one.ids_T for one in write_ours(exact, requests, size.new_tokens, greedy=True)]
    theirs = Generate(exact.network, torch.float32)(requests, size.new_tokens, greedy=True)
    common = [_common_length(one, other) for one, other in zip(ours, theirs, strict=True)]
    differ = [row for row, length in enumerate(common) if length < size.new_tokens]
    pairs = [
        Pair(np.concatenate([requests[row].prompt_ids_T, ours[row][: common[row]]]), choice)
        for row in differ
        for choice in (_at(ours[row], common[row]), _at(theirs[row], common[row]))
    ]
    scores = [float(score[0]) for score in exact.score(pairs)] if pairs else []
    margins = [abs(one - other) for one, other in zip(scores[::2], scores[1::2], strict=True)]
    return GreedyAgreement(
        sequences=len(ours),
        equal_sequences=len(ours) - len(differ),
        equal_ratio=sum(common) / (len(ours) * size.new_tokens),
        margin=max(margins, default=0.0),
    )


def engine_of(policy: HFPolicy) -> str:
    """What writes: the name of an engine of ours, or why Hugging Face's code does."""
    engine = policy.engine
    return f"plain, because {engine}" if isinstance(engine, str) else type(engine).__name__


def _common_length(one: IntArray, other: IntArray) -> int:
    differs = np.flatnonzero(one != other)
    return int(differs[0]) if len(differs) else len(one)


def _at(ids_T: IntArray, place: int) -> IntArray:
    return ids_T[place : place + 1]


def _check_lengths(lengths: Sequence[int], wanted: int, who: str) -> None:
    """A completion that ended early would make its writer look fast."""
    if set(lengths) != {wanted}:
        raise AssertionError(f"{who} wrote {sorted(set(lengths))} tokens instead of {wanted}")
