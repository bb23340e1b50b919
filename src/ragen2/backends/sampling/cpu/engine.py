"""The CPU sampler: a decode loop of its own over a model's weights, for models that fit a few cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ragen2.backends.decoder import Decoder
from ragen2.backends.device import side_by_side
from ragen2.backends.sampling.choosing import EndRules
from ragen2.backends.sampling.cpu.batch import DecodeBatch, SamplingCall
from ragen2.backends.sampling.cpu.cache import CPUCache, shared_beginning
from ragen2.backends.sampling.cpu.forward import CPUForward
from ragen2.backends.sampling.kv_cache import MAX_BYTES, weights_version
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.policy import Request, SamplingParams
from ragen2.types import Completion, IntArray

LEAST_SHARED = 8
"""Fewer tokens than these are not worth a product of their own."""
LEAST_PART, MOST_PART = 32, 256
"""Rows that are written together: a part per thread, unless it becomes too small or too large."""
KEPT_PARTS = 64
"""Parts whose rows may still be continued: a rollout may play several batches in turn."""
THREADED_WORK = 2**24
"""Multiplications of a product below which a second thread costs more than it brings."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchPart:
    """Requests that are written together, by number, and the rows they continue, if any."""

    cache: CPUCache
    numbers: list[int]
    rows: list[int]


class CPUEngine:
    """Samples from a float32 model of a known family; every completion has its own random stream."""

    def __init__(self, decoder: Decoder, tokenizer: TemplateTokenizer) -> None:
        self.tokenizer = tokenizer
        self.network = decoder.network
        self.forward = CPUForward(decoder)
        self._ends = EndRules(tokenizer, decoder.vocabulary)
        self._caches: list[CPUCache] = []
        self._spares: list[CPUCache] = []

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """One completion per request, in order. Prompts that go on from an earlier call prefill what is new.

        Log-probs are those of the whole distribution at the sampling temperature, also when ``top_p``
        or ``top_k`` cut the choice, because that is what a learner can reproduce.
        """
        if not requests:
            return []
        self._refresh()
        longest = max(len(request.prompt_ids_T) for request in requests)
        # Rows that are prefilled together are filled up, never to twice their length.
        self.forward.reserve_positions(2 * longest + params.max_tokens)
        stops = self._ends.table(params.stop)
        call = SamplingCall(self.forward, params, self._ends.is_eos_V, stops, self.tokenizer.decode)

        @torch.no_grad()
        def write(part: BatchPart) -> list[Completion]:
            batch = DecodeBatch(call, part.cache, [requests[number] for number in part.numbers])
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
        """Drop all caches."""
        self._caches, self._spares = [], []

    def _refresh(self) -> None:
        """Take new weights, and forget what old ones made; its memory is used again."""
        if self.forward.refresh(weights_version(self.network)):
            self._spares, self._caches = self._caches or self._spares, []

    def _parts(self, prompts: Sequence[IntArray]) -> list[BatchPart]:
        """Requests by the cache they continue, and those that continue nothing in order.

        What is kept never changes what a fresh part computes: a resumed run must write the same.
        """
        ids = [prompt.tobytes() for prompt in prompts]
        left, parts = list(range(len(prompts))), []
        for cache in self._caches:
            rows = cache.continued([ids[number] for number in left])
            if rows:
                parts.append(BatchPart(cache, [left[at] for at in rows], list(rows.values())))
                left = [number for at, number in enumerate(left) if at not in rows]
        size = min(MOST_PART, max(LEAST_PART, -(-len(left) // torch.get_num_threads())))
        for start in range(0, len(left), size):
            numbers = left[start : start + size]
            parts.append(BatchPart(self._new_cache([prompts[n] for n in numbers]), numbers, []))
        return parts

    def _new_cache(self, prompts: Sequence[IntArray]) -> CPUCache:
        """A cache for rows that continue nothing."""
        while len(self._caches) >= KEPT_PARTS:
            self._spares.append(self._caches.pop(0))
        cache = CPUCache(
            self.forward.cache_shape, len(prompts), shared_beginning(prompts, LEAST_SHARED)
        )
        fitting = [spare for spare in self._spares if spare.num_rows >= cache.num_rows]
        if fitting:
            cache.adopt(fitting[0])
            self._spares.remove(fitting[0])
        self._caches.append(cache)
        return cache

    def _keep_within_budget(self, cache: CPUCache) -> None:
        """Do not keep what is too much together: prefilling again is slower, but fits."""
        if sum(one.num_bytes for one in self._caches) > MAX_BYTES:
            self._caches = [one for one in self._caches if one is not cache]
