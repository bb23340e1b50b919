"""The CPU sampler: a decode loop of its own over a model's weights, for models that fit a few cores.

Prompts are prefilled, then tokens written until every row has finished. What all prompts begin with is
prefilled once, equal prompts once, and of a conversation that goes on only what is new.

Shape letters: N requests in the order asked, R rows that still write in the order of the cache, T tokens
written or read, V vocabulary, S states of the stop strings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ragen2.backends.decoder import Decoder
from ragen2.backends.device import side_by_side
from ragen2.backends.sampling.choosing import (
    EndRules,
    StopTable,
    cut,
    invert,
    need_numbers,
    uniforms,
)
from ragen2.backends.sampling.cpu.forward import CPUCache, CPUForward, shared_beginning
from ragen2.backends.sampling.kv_cache import MAX_BYTES, weights_version
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.policy import Request, SamplingParams
from ragen2.progress import counter
from ragen2.types import BoolArray, Completion, Finish, IntArray

COMPACT_SHARE = 0.2
"""Rows that finished leave the batch once they are such a share of it: moving them costs a few tokens."""
FINISHES = (Finish.LENGTH, Finish.EOS, Finish.STOP)
PIECE = 256
"""New tokens of a row that are prefilled at once: attention's scores are held for all of them."""
PREFILL_TOKENS = 512
"""New tokens of all rows that are prefilled at once: scores of attention that stay in a core's cache."""
SPREAD = 1.25
"""Rows are prefilled together while none has more new tokens than so many times the first one's."""


def next_tokens(
    logits_RV: torch.Tensor, uniform_R: torch.Tensor, params: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and their log-probs in the whole distribution at the sampling temperature.

    Temperature 0 takes the likeliest token, with its log-prob at temperature 1.
    """
    if params.temperature not in {0.0, 1.0}:
        logits_RV = logits_RV / params.temperature
    logp_RV = torch.log_softmax(logits_RV, dim=-1)
    if params.temperature == 0.0:
        logp_R, token_R = logp_RV.max(dim=-1)
        return token_R, logp_R
    chance_RV = cut(logp_RV, top_k=params.top_k, top_p=params.top_p)
    token_R = invert(chance_RV.cumsum(-1), uniform_R[:, None])
    return token_R, logp_RV.gather(-1, token_R[:, None]).squeeze(-1)


@dataclass(frozen=True, slots=True, eq=False)
class SamplingCall:
    """What all batches of a call of the sampler share."""

    forward: CPUForward
    params: SamplingParams
    is_eos_V: BoolArray
    stops: StopTable
    decode: Callable[[Sequence[int]], str]
    count: Callable[[float], None]
    """Is told of every token that a batch has come on by."""


class DecodeBatch:
    """Requests that are written together in one cache."""

    def __init__(self, call: SamplingCall, cache: CPUCache, requests: Sequence[Request]) -> None:
        self.call, self.cache, self.requests = call, cache, requests
        self.forward, self.params = call.forward, call.params
        count, tokens = len(requests), call.params.max_tokens
        uniform_NT = uniforms(requests, tokens)
        self.uniform_TN = torch.from_numpy(np.ascontiguousarray(uniform_NT.T.astype(np.float32)))
        self.token_TN = torch.zeros(tokens, count, dtype=torch.long)
        self.logp_TN = torch.zeros(tokens, count)
        self.length_N = np.full(count, tokens)
        self.finish_N = np.zeros(count, dtype=np.int64)
        self.request_of_row = np.arange(count)

    def begin(self) -> list[Completion]:
        """Write after prompts that are new; equal ones are prefilled once."""
        prefill_shared(self.forward, self.cache)
        leaders: dict[bytes, int] = {}
        leader_of = [
            leaders.setdefault(request.prompt_ids_T.tobytes(), row)
            for row, request in enumerate(self.requests)
        ]
        shared, rows = self.cache.num_shared, list(leaders.values())
        hidden = prefill(
            self.forward,
            self.cache,
            [PrefillRow(row, 0, self.requests[row].prompt_ids_T[shared:]) for row in rows],
        )
        copies = [(a, row) for row, a in enumerate(leader_of) if a != row]
        slots = max(len(request.prompt_ids_T) for request in self.requests) - shared
        self.cache.copy_rows([a for a, _ in copies], [b for _, b in copies], slots)
        number = {row: at for at, row in enumerate(rows)}
        return self._write(hidden[torch.tensor([number[row] for row in leader_of])])

    def go_on(self, rows: Sequence[int]) -> list[Completion]:
        """Write after prompts that continue what these rows have read."""
        rows, cache = self.cache.to_front(rows), self.cache
        self.request_of_row[rows] = np.arange(len(rows))
        unread = []
        for row, number in enumerate(self.request_of_row.tolist()):
            known, prompt = cache.known(row), self.requests[number].prompt_ids_T
            unread.append(PrefillRow(row, known - cache.num_shared, prompt[known:]))
        return self._write(prefill(self.forward, cache, unread))

    def _write(self, hidden: torch.Tensor) -> list[Completion]:
        """Write token by token until all have finished; ``hidden`` is row-ordered."""
        order_R = self.request_of_row
        lengths = [len(self.requests[number].prompt_ids_T) for number in order_R.tolist()]
        slot_R = torch.tensor(lengths) - self.cache.num_shared
        width = int(slot_R.max())
        state_R = np.zeros(len(order_R), dtype=np.int32)
        writes_R = np.ones(len(order_R), dtype=np.bool_)
        for position in range(self.params.max_tokens):
            token_R = self._choose(self.forward.logits(hidden), order_R, position)
            self.call.count(1)
            state_R = self.call.stops.next_SV[state_R, token_R.numpy()]
            writes_R = self._note_ends(position, order_R, token_R.numpy(), state_R, writes_R)
            if not writes_R.any() or position + 1 == self.params.max_tokens:
                break
            # Rows that have ended go on being computed until they are worth moving: decoding then reads the
            # first rows of the cache only, and those behind keep what a next turn continues.
            if writes_R.sum() <= (1.0 - COMPACT_SHARE) * len(writes_R):
                kept = self._compact(writes_R, width)
                order_R, state_R = self.request_of_row[: len(kept)], state_R[kept]
                writes_R = writes_R[kept]
                at = torch.from_numpy(kept)
                token_R, slot_R = token_R[at], slot_R[at]
            self.cache.reserve(width + 1)
            hidden = self.forward.decode(self.cache, token_R, slot_R)
            slot_R, width = slot_R + 1, width + 1
        return self._completions()

    def _choose(self, logits: torch.Tensor, order_R: IntArray, position: int) -> torch.Tensor:
        at = torch.from_numpy(order_R)
        token_R, logp_R = next_tokens(
            logits, self.uniform_TN[position].index_select(0, at), self.params
        )
        self.token_TN[position].index_copy_(0, at, token_R)
        self.logp_TN[position].index_copy_(0, at, logp_R)
        return token_R

    def _note_ends(
        self,
        position: int,
        order_R: IntArray,
        token_R: IntArray,
        state_R: npt.NDArray[np.int32],
        writes_R: BoolArray,
    ) -> BoolArray:
        """Which rows still write; notes how long the others are and why they ended."""
        is_eos_R = self.call.is_eos_V[token_R]
        over_R = writes_R & (is_eos_R | (state_R == self.call.stops.stopped))
        self.length_N[order_R[over_R]] = position + 1
        self.finish_N[order_R[over_R]] = np.where(is_eos_R[over_R], 1, 2)
        going_R: BoolArray = writes_R & ~over_R
        return going_R

    def _compact(self, writes_R: BoolArray, width: int) -> IntArray:
        """Bring the rows that write to the front; where each of the new rows was."""
        count = int(writes_R.sum())
        holes = np.flatnonzero(~writes_R[:count])
        behind = count + np.flatnonzero(writes_R[count:])
        kept = np.arange(count)
        if len(holes):
            self.cache.swap(holes.tolist(), behind.tolist(), width)
            rows = self.request_of_row
            rows[holes], rows[behind] = rows[behind], rows[holes]
            kept[holes] = behind
        return kept

    def _completions(self) -> list[Completion]:
        """What was written, once the cache has noted what its rows have read."""
        ids_NT, logp_NT = self.token_TN.t().numpy(), self.logp_TN.t().double().numpy()
        found = []
        for number, length in enumerate(self.length_N.tolist()):
            ids_T, logp_T = ids_NT[number, :length].copy(), logp_NT[number, :length].copy()
            need_numbers(logp_T)
            text = self.call.decode(ids_T.tolist())
            found.append(Completion(ids_T, logp_T, text, FINISHES[self.finish_N[number]]))
        for row, number in enumerate(self.request_of_row.tolist()):
            read_T = np.concatenate([self.requests[number].prompt_ids_T, found[number].ids_T[:-1]])
            self.cache.hold(row, read_T)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class PrefillRow:
    """A row and the ids that are new to it; ``start`` is the slot of the first such token."""

    row: int
    start: int
    ids_T: IntArray


def prefill_shared(forward: CPUForward, cache: CPUCache) -> None:
    """Prefill what all rows of the cache begin with, as a cache of one row."""
    count = cache.num_shared
    if not count:
        return
    once = CPUCache(forward.cache_shape, 1, cache.shared_ids_C[:0])
    prefill(forward, once, [PrefillRow(0, 0, cache.shared_ids_C)])
    cache.shared = [
        (keys[0, :, :count].contiguous(), values[0, :, :count].contiguous())
        for keys, values in zip(once.keys, once.values, strict=True)
    ]


def prefill(forward: CPUForward, cache: CPUCache, new: Sequence[PrefillRow]) -> torch.Tensor:
    """The hidden state after each row's last new token, in the order given."""
    cache.reserve(max(one.start + len(one.ids_T) for one in new))
    last = torch.empty(len(new), forward.decoder.hidden)
    for numbers in _like_lengths([len(one.ids_T) for one in new]):
        last[torch.tensor(numbers)] = _prefill_batch(forward, cache, [new[n] for n in numbers])
    return last


def _like_lengths(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Rows with about as many new tokens, so that little is padding."""
    batch: list[int] = []
    for number in np.argsort(lengths, kind="stable").tolist():
        length = lengths[number]
        is_full = batch and (len(batch) + 1) * min(length, PIECE) > PREFILL_TOKENS
        if batch and (is_full or length > SPREAD * lengths[batch[0]]):
            yield batch
            batch = []
        batch.append(number)
    yield batch


def _prefill_batch(forward: CPUForward, cache: CPUCache, new: Sequence[PrefillRow]) -> torch.Tensor:
    """As ``prefill``; tokens of shorter rows are filled up behind, where nothing looks."""
    ends_R = torch.tensor([len(one.ids_T) for one in new])
    start_R = torch.tensor([one.start for one in new])
    row_R = torch.tensor([one.row for one in new])
    longest = int(ends_R.max())
    ids_RT = torch.zeros(len(new), longest, dtype=torch.long)
    for line, one in zip(ids_RT, new, strict=True):
        line[: len(one.ids_T)] = torch.as_tensor(one.ids_T)
    cache.reserve(int(start_R.max()) + longest)
    last = torch.empty(len(new), forward.decoder.hidden)
    for begin in range(0, longest, PIECE):
        piece_RT = ids_RT[:, begin : begin + PIECE]
        count = piece_RT.shape[1]
        slot_RT = start_R[:, None] + torch.arange(begin, begin + count)
        at_R = ends_R - 1 - begin
        hidden = forward.prefill(cache, piece_RT, slot_RT, row_R, at_R.clamp(0, count - 1))
        ends_here_R = (at_R >= 0) & (at_R < count)
        last[ends_here_R] = hidden[ends_here_R]
    return last


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
        parts = self._parts([request.prompt_ids_T for request in requests])
        call = SamplingCall(
            *(self.forward, params, self._ends.is_eos_V, stops, self.tokenizer.decode),
            counter("writing", params.max_tokens * len(parts)),
        )

        @torch.no_grad()
        def write(part: BatchPart) -> list[Completion]:
            batch = DecodeBatch(call, part.cache, [requests[number] for number in part.numbers])
            found = batch.go_on(part.rows) if part.rows else batch.begin()
            self._keep_within_budget(part.cache)
            return found

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

    def give_back(self) -> bool:
        """Drop all caches; whether there were any."""
        had_any = bool(self._caches or self._spares)
        self.forget()
        return had_any

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
