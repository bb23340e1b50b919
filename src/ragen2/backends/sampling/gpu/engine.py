"""The GPU sampler: decoding captured in CUDA graphs, over a cache that lasts from turn to turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from ragen2.backends.decoder import Decoder, DecoderWeights
from ragen2.backends.device import free_memory
from ragen2.backends.memory import fitting, until_it_fits
from ragen2.backends.sampling.choosing import EndRules, need_numbers, uniforms
from ragen2.backends.sampling.gpu.cache import GPUCache, RowAssignment
from ragen2.backends.sampling.gpu.choose import Chooser, Lanes, Output, Rule
from ragen2.backends.sampling.gpu.forward import PROMPT_BLOCK, GPUForward, PackedPrompts
from ragen2.backends.sampling.kv_cache import weights_version
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.policy import Request, SamplingParams
from ragen2.types import Completion, Finish, IntArray

BUCKETS = (16, 32, 64, 128, 192, 256, 384, 512)
"""Batch sizes that graphs are captured for, since a graph's shapes are fixed; a batch runs in the smallest
that holds it."""
TOKENS_PER_LOOK = 8
"""Tokens decoded between two looks at which sequences have ended: a look waits for the device."""
PREFILL_TOKENS = 2**15
"""New prompt tokens that are prefilled at once."""

Replay = Callable[[], None]


class GPUEngine:
    """Samples from a model of a known family; every completion has its own random stream."""

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: TemplateTokenizer,
        *,
        dtype: torch.dtype,
        max_batch: int = BUCKETS[-1],
    ) -> None:
        self.tokenizer = tokenizer
        self.network = decoder.network
        self.device = decoder.device
        self.max_batch = min(max_batch, BUCKETS[-1])
        self.weights = DecoderWeights(decoder, dtype)
        self.cache = GPUCache(
            len(decoder.layers), decoder.num_kv_heads, decoder.head_dim, dtype, self.device
        )
        self.forward = GPUForward(self.weights, self.cache, dtype)
        self.chooser = Chooser(EndRules(tokenizer, decoder.vocabulary), self.device)
        self.lanes = Lanes.empty(0, self.device)
        self.out = Output(0, 0, self.device)
        self._room = self._at_once = 1
        self._most = 2**31
        """Sequences written at once at most; fewer, once memory has run out."""
        self._graphs: dict[tuple[int, Rule], Replay] = {}

    @torch.no_grad()
    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """One completion per request, in order."""
        if self.weights.refresh(weights_version(self.network)):
            self.cache.forget()
        longest = max(len(request.prompt_ids_T) for request in requests) + params.max_tokens
        completions: list[Completion] = []
        while len(completions) < len(requests):
            write = partial(self._sample, requests[len(completions) :], params, longest)
            completions += until_it_fits(write, self._shrink)
        return completions

    def give_back(self) -> bool:
        """Let go of the cache and what points at it, and take less from now on; whether there was any."""
        had_any = self.cache.num_rows > 0
        self._graphs.clear()
        self.cache.drop()
        self.cache.be_thrifty()
        self.forward.drop_lanes()
        self.out = Output(0, 0, self.device)
        return had_any

    def _shrink(self) -> str:
        """Fewer sequences at once; nothing when one alone, in a cache for one, was too many."""
        if self._at_once <= 1 and self.cache.num_rows <= 1:
            return ""
        self._most = max(1, self._at_once // 2)
        self.give_back()
        return f"{self._most} sequences written at once"

    def _sample(
        self, requests: Sequence[Request], params: SamplingParams, longest: int
    ) -> list[Completion]:
        """Completions of as many of the first requests as there is room for."""
        self._room = min(self._most, self.cache.rows_that_fit(longest))
        requests = requests[: self._room]
        self._at_once = len(requests)
        prompts = [request.prompt_ids_T for request in requests]
        cache_rows = len(requests) + self.cache.waiting(prompts)
        self._reserve(len(requests), cache_rows, params.max_tokens, longest)
        assigned = self.cache.assign(prompts)
        normed = self._prefill(prompts, assigned)
        self._set_draws(requests, params)
        rule = Rule.of(params)
        for start in range(0, len(requests), self.max_batch):
            rows = range(start, min(start + self.max_batch, len(requests)))
            self._fill_lanes(rows, prompts, assigned)
            self._write(normed[start : rows.stop], rule, params.max_tokens)
        return self._completions(requests, assigned, params)

    def _reserve(self, rows: int, cache_rows: int, tokens: int, longest: int) -> None:
        """Room for this call; graphs that point at memory which has moved are dropped."""
        even = _bucket(cache_rows) if cache_rows <= BUCKETS[-1] else cache_rows
        moved = self.cache.reserve(min(even, max(rows, self._room)), longest)
        self.forward.reserve_positions(self.cache.num_tokens)
        lanes = _bucket(min(rows, self.max_batch))
        if self.forward.reserve_lanes(lanes):
            self.lanes = Lanes.empty(lanes, self.device)
            self.chooser.reserve(lanes)
            moved = True
        if rows > self.out.rows or tokens != self.out.tokens:
            self.out = Output(max(rows, self.out.rows), tokens, self.device)
            moved = True
        if moved:
            self._graphs.clear()

    def _prefill(
        self, prompts: Sequence[IntArray], assigned: Sequence[RowAssignment]
    ) -> torch.Tensor:
        """Bring every prompt into the cache; the hidden state that its first token is drawn from."""
        leaders = [row for row, one in enumerate(assigned) if one.copy_of == row]
        found: dict[int, torch.Tensor] = {}
        part: list[int] = []
        size, most = 0, self._prefill_tokens()
        for row in leaders:
            new = len(prompts[row]) - assigned[row].known
            if part and size + new > most:
                found |= self._prefill_part(part, prompts, assigned)
                part, size = [], 0
            part.append(row)
            size += new
        found |= self._prefill_part(part, prompts, assigned)
        copies = [one for row, one in enumerate(assigned) if one.copy_of != row]
        self.cache.copy_rows(
            [assigned[one.copy_of].row for one in copies],
            [one.row for one in copies],
            max(map(len, prompts)),
        )
        order = {row: number for number, row in enumerate(found)}
        pick = torch.tensor([order[one.copy_of] for one in assigned], device=self.device)
        return torch.stack(list(found.values()))[pick]

    def _prefill_tokens(self) -> int:
        """New prompt tokens at once: by default, or as many as there is memory for."""
        if self.device.type != "cuda":
            return PREFILL_TOKENS
        return fitting(PREFILL_TOKENS, self.forward.bytes_per_token, free_memory(self.device))

    def _prefill_part(
        self, rows: Sequence[int], prompts: Sequence[IntArray], assigned: Sequence[RowAssignment]
    ) -> dict[int, torch.Tensor]:
        new = [prompts[row][assigned[row].known :] for row in rows]
        counts = [len(ids) for ids in new]
        ends = np.cumsum(counts)
        blocks = [
            (
                end - count + at,
                assigned[row].row,
                assigned[row].known + at,
                min(PROMPT_BLOCK, count - at),
            )
            for row, count, end in zip(rows, counts, ends, strict=True)
            for at in range(0, count, PROMPT_BLOCK)
        ]
        positions = np.concatenate(
            [
                assigned[row].known + np.arange(count)
                for row, count in zip(rows, counts, strict=True)
            ]
        )
        packed = PackedPrompts(
            self._put(np.concatenate(new)),
            self._put(np.repeat([assigned[row].row for row in rows], counts)),
            self._put(positions),
            self._put(np.array(blocks, dtype=np.int64).T.copy()),
        )
        return dict(zip(rows, self.forward.prefill(packed, self._put(ends - 1)), strict=True))

    def _put(self, values: IntArray) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
        return tensor.to(self.device, non_blocking=True)

    def _set_draws(self, requests: Sequence[Request], params: SamplingParams) -> None:
        uniform_RT = np.zeros((len(requests), params.max_tokens), dtype=np.float32)
        if params.temperature > 0.0:
            uniform_RT[:] = uniforms(requests, params.max_tokens)
        self.out.uniform_RT[: len(requests)] = torch.from_numpy(uniform_RT).to(self.device)
        self.out.temperature.fill_(params.temperature or 1.0)

    def _fill_lanes(
        self, rows: range, prompts: Sequence[IntArray], assigned: Sequence[RowAssignment]
    ) -> None:
        """Put requests into the first lanes; lanes without one write where nobody reads."""
        state, count = Lanes.empty(len(self.lanes.token_B), torch.device("cpu")), len(rows)
        state.row_B.fill_(self.cache.trash)
        state.done_B.fill_(1)
        state.row_B[:count] = torch.tensor([assigned[row].row for row in rows])
        # The position of the last prompt token: choosing the first new one moves it on.
        state.position_B[:count] = torch.tensor([len(prompts[row]) - 1 for row in rows])
        state.output_B[:count] = torch.tensor(rows)
        state.done_B[:count] = 0
        self.lanes.state_6B.copy_(state.state_6B)
        self.out.step.zero_()

    def _write(self, normed: torch.Tensor, rule: Rule, tokens: int) -> None:
        """Decode the filled lanes to their end; sequences that have ended leave their lanes."""
        filled = len(normed)
        self._choose(self.forward.logits(normed), filled, rule)
        for written in range(1, tokens):
            if written % TOKENS_PER_LOOK == 1:
                filled = self._close_up(filled)
                if not filled:
                    return
                replay = self._replay(_bucket(filled), rule)
            replay()

    def _choose(self, logits: torch.Tensor, count: int, rule: Rule) -> None:
        self.chooser.choose(logits, self.lanes.first(count), self.out, rule)

    def _close_up(self, filled: int) -> int:
        """Close up lanes that have ended, if that makes a smaller batch; how many are filled now."""
        lanes = self.lanes.first(filled)
        going = torch.nonzero(lanes.done_B == 0).flatten()
        count = len(going)
        if count and _bucket(count) < _bucket(filled):
            moved = lanes.state_6B[:, going]
            lanes.row_B.fill_(self.cache.trash)
            lanes.done_B.fill_(1)
            lanes.position_B.zero_()  # attention over the spare row is then over nothing
            lanes.first(count).state_6B.copy_(moved)
            return count
        return filled if count else 0

    def _replay(self, lanes: int, rule: Rule) -> Replay:
        """One step of decoding for so many lanes, captured the first time it is asked for."""
        key = (lanes, rule)
        if key not in self._graphs:
            step = lambda: self._decode(lanes, rule)  # noqa: E731 - a graph's body is a closure
            self._graphs[key] = self._capture(step) if self.device.type == "cuda" else step
        return self._graphs[key]

    def _decode(self, count: int, rule: Rule) -> None:
        lanes = self.lanes.first(count)
        logits = self.forward.decode(lanes.token_B, lanes.row_B, lanes.position_B)
        self._choose(logits, count, rule)

    def _capture(self, step: Replay) -> Replay:
        """Record the kernels of a step; a first run beside the data compiles what has to be compiled.

        Triton's compilation and cuBLAS's workspaces must not happen while a graph is being recorded. That
        first run does compute, so all lanes are sent to the row that nobody reads and marked as done, and
        what it changes is put back; it is on a side stream, as torch asks. Recording computes nothing.
        """
        saved, at = self.lanes.state_6B.clone(), self.out.step.clone()
        self.lanes.state_6B.zero_()
        self.lanes.row_B.fill_(self.cache.trash)
        self.lanes.done_B.fill_(1)
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        self.lanes.state_6B.copy_(saved)
        self.out.step.copy_(at)
        replay: Replay = graph.replay
        return replay

    def _completions(
        self, requests: Sequence[Request], assigned: Sequence[RowAssignment], params: SamplingParams
    ) -> list[Completion]:
        """Bring what was written to the host, and note what the cache's rows now hold."""
        count = len(requests)
        written = self.out.written_R[:count].cpu().numpy()
        ids_RT = self.out.ids_RT[:count].cpu().numpy()
        logp_RT = self.out.logp_RT[:count].cpu().numpy().astype(np.float64)
        completions = []
        for row, request in enumerate(requests):
            ids_T, logp_T = ids_RT[row, : written[row]].copy(), logp_RT[row, : written[row]].copy()
            need_numbers(logp_T)
            held_T = np.concatenate([request.prompt_ids_T, ids_T[:-1]])
            self.cache.hold(assigned[row].row, held_T)
            text = self.tokenizer.decode(ids_T.tolist())
            completions.append(Completion(ids_T, logp_T, text, self._finish(ids_T, text, params)))
        return completions

    def _finish(self, ids_T: IntArray, text: str, params: SamplingParams) -> Finish:
        if int(ids_T[-1]) in self.tokenizer.eos_ids:
            return Finish.EOS
        if any(stop in text for stop in params.stop):
            return Finish.STOP
        return Finish.LENGTH


def _bucket(count: int) -> int:
    """The smallest batch size with a graph that holds ``count``."""
    return next(size for size in BUCKETS if size >= count)
