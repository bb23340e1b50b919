"""The CPU sampler: a decode loop of its own over a model's weights, for models that fit a few cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ragen2.backends.decoder import Family
from ragen2.backends.device import side_by_side
from ragen2.backends.sampling.cpu.batch import Batch, Call, Ends
from ragen2.backends.sampling.cpu.cache import RowCache, shared_beginning
from ragen2.backends.sampling.cpu.forward import Forward
from ragen2.backends.sampling.kv_cache import MAX_BYTES, weights_version
from ragen2.backends.sampling.stops import StopTable, token_texts
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.policy import Request, SamplingParams
from ragen2.types import Completion, IntArray

LEAST_SHARED = 8
"""Fewer tokens than these are not worth a product of their own."""
LEAST_PART, MOST_PART = 32, 256
"""Rows that are written together: a part a thread, unless it becomes too small or too large."""
KEPT_PARTS = 64
"""Parts whose rows may still be continued: a rollout may play several batches in turn."""
THREADED_WORK = 2**24
"""Multiplications of a product below which a second thread costs more than it brings."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Requests that are written together, by number, and the rows they continue, if any."""

    cache: RowCache
    numbers: list[int]
    rows: list[int]


class CPUEngine:
    """Samples from a float32 model of a known family; every completion has its own random stream."""

    def __init__(self, family: Family, tokenizer: TemplateTokenizer) -> None:
        self.tokenizer = tokenizer
        self.network = family.network
        self.forward = Forward(family)
        self._vocabulary = family.vocabulary
        self._version = -1
        self._caches: list[RowCache] = []
        self._spares: list[RowCache] = []
        self._texts: list[str] = []
        self._ends: dict[tuple[str, ...], Ends] = {}

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """One completion a request, in order. Prompts that go on from an earlier call read what is new.

        Log-probs are those of the whole distribution at the sampling temperature, also when ``top_p``
        or ``top_k`` cut the choice, because that is what a learner can reproduce.
        """
        if not requests:
            return []
        self._refresh()
        longest = max(len(request.prompt_ids_T) for request in requests)
        # Rows that are read together are filled up, never to twice their length.
        self.forward.reserve_positions(2 * longest + params.max_tokens)
        ends = self._ends_of(params.stop)
        call = Call(self.forward, params, ends, self.tokenizer.decode)

        @torch.no_grad()
        def write(part: Part) -> list[Completion]:
            batch = Batch(call, part.cache, [requests[number] for number in part.numbers])
            found = batch.go_on(part.rows) if part.rows else batch.begin()
            self._keep_within_budget(part.cache)
            return found

        parts = self._parts([request.prompt_ids_T for request in requests])
        work = self.forward.largest * max(len(part.numbers) for part in parts)
        threads = torch.get_num_threads()
        each = threads // min(threads, len(parts)) if work >= THREADED_WORK else 1
        found: dict[int, Completion] = {}
        try:
            written = side_by_side(write, parts, threads_each=each)
            for part, completions in zip(parts, written, strict=True):
                found |= zip(part.numbers, completions, strict=True)
        except BaseException:
            self.forget()  # what was left half written is of no use
            raise
        return [found[number] for number in range(len(requests))]

    def forget(self) -> None:
        """Drop all that was read."""
        self._caches, self._spares = [], []

    def _ends_of(self, stop: tuple[str, ...]) -> Ends:
        if stop not in self._ends:
            self._texts = self._texts or token_texts(self.tokenizer.hf, self._vocabulary)
            is_eos_V = np.zeros(self._vocabulary, dtype=np.bool_)
            is_eos_V[[token for token in self.tokenizer.eos_ids if token < self._vocabulary]] = True
            table = StopTable.of(stop, self._texts)
            self._ends[stop] = Ends(is_eos_V, table.next_SV, table.stopped)
        return self._ends[stop]

    def _refresh(self) -> None:
        """Take new weights, and forget what old ones made; its memory is used again."""
        version = weights_version(self.network)
        if version != self._version:
            self.forward.refresh()
            self._version = version
            self._spares, self._caches = self._caches or self._spares, []

    def _parts(self, prompts: Sequence[IntArray]) -> list[Part]:
        """Requests by the cache they continue, and those that continue nothing in order.

        What is kept never changes what a fresh part computes: a resumed run must write the same.
        """
        left, parts = list(range(len(prompts))), []
        for cache in self._caches:
            rows = cache.continued([prompts[number] for number in left])
            if rows:
                parts.append(Part(cache, [left[at] for at in rows], list(rows.values())))
                left = [number for at, number in enumerate(left) if at not in rows]
        size = min(MOST_PART, max(LEAST_PART, -(-len(left) // torch.get_num_threads())))
        for start in range(0, len(left), size):
            numbers = left[start : start + size]
            parts.append(Part(self._new_cache([prompts[n] for n in numbers]), numbers, []))
        return parts

    def _new_cache(self, prompts: Sequence[IntArray]) -> RowCache:
        """A cache for rows that continue nothing."""
        while len(self._caches) >= KEPT_PARTS:
            self._spares.append(self._caches.pop(0))
        cache = RowCache(
            self.forward.cache_shape, len(prompts), shared_beginning(prompts, LEAST_SHARED)
        )
        fitting = [spare for spare in self._spares if spare.num_rows >= cache.num_rows]
        if fitting:
            cache.adopt(fitting[0])
            self._spares.remove(fitting[0])
        self._caches.append(cache)
        return cache

    def _keep_within_budget(self, cache: RowCache) -> None:
        """Do not keep what is too much together: reading again is slower, but fits."""
        if sum(one.num_bytes for one in self._caches) > MAX_BYTES:
            self._caches = [one for one in self._caches if one is not cache]
