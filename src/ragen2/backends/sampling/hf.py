"""Sample from and score with any Hugging Face causal LM, on CPU or GPU.

Sampling goes through an engine of ours where one can run the model, and through Hugging Face's own forward
pass everywhere else: the plain path, which is also what the engines are tested against.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import torch

from ragen2.backends.decoder import describe_decoder
from ragen2.backends.device import compute_dtype
from ragen2.backends.learner.logprobs import SplitModel, base_of
from ragen2.backends.memory import give_back_spare, until_it_fits
from ragen2.backends.sampling.choosing import cut, invert, need_numbers, uniforms
from ragen2.backends.sampling.kv_cache import KVMemory, KVRecorder, weights_version
from ragen2.backends.scoring.pairs import PairScorer
from ragen2.backends.settings import SCORE_TOKENS, EngineChoice, Precision
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.backends.vision.embedding import ImageEmbedder
from ragen2.policy import Pair, Request, SamplingParams
from ragen2.progress import part, report
from ragen2.types import Completion, Finish, FloatArray, IntArray

logger = logging.getLogger(__name__)

DEFAULT_CONTEXT = 2048
COMPACT_BELOW = 0.75
"""Rows that finished leave the batch once fewer than this share still write."""


class SamplingEngine(Protocol):
    """Writes completions with a model's weights, without a Python call per module and token."""

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """One completion per request, in order."""
        ...

    def give_back(self) -> bool:
        """Let go of what is kept from call to call; whether there was anything."""
        ...


def open_engine(
    network: Any, tokenizer: TemplateTokenizer, *, dtype: torch.dtype, max_batch: int
) -> SamplingEngine | str:
    """The engine for this model where it lives, or why there is none."""
    is_gpu = next(network.parameters()).device.type == "cuda"
    decoder = describe_decoder(network, adapters=is_gpu)
    if isinstance(decoder, str):
        return decoder
    if is_gpu:
        if decoder.kernel_problem:
            return decoder.kernel_problem
        from ragen2.backends.sampling.gpu.engine import GPUEngine

        return GPUEngine(decoder, tokenizer, dtype=dtype, max_batch=max_batch)
    if dtype is not torch.float32:
        return f"on a CPU our engine computes in float32, not in {dtype}".replace("torch.", "")
    from ragen2.backends.sampling.cpu.engine import CPUEngine

    return CPUEngine(decoder, tokenizer)


class HFPolicy:
    """A Sampler and a Scorer over one model."""

    def __init__(
        self,
        network: Any,
        tokenizer: TemplateTokenizer,
        *,
        max_batch: int = 512,
        score_tokens: int = SCORE_TOKENS,
        precision: Precision = "auto",
        engine: EngineChoice = "auto",
        embedder: ImageEmbedder | None = None,
    ) -> None:
        self.network = network
        self.tokenizer = tokenizer
        self.max_batch = max_batch
        self.dtype = compute_dtype(precision, next(network.parameters()).device)
        text = network.config.get_text_config()
        self.max_context = int(getattr(text, "max_position_embeddings", None) or DEFAULT_CONTEXT)
        if embedder is None and tokenizer.images is not None:
            embedder = ImageEmbedder(base_of(network), tokenizer.images)
        self.split_model = SplitModel(network, embedder)
        self.never_written = [] if embedder is None else [embedder.inputs.token_id]
        """Ids that no reply may hold: an image token stands for an image that was shown."""
        self.scorer = PairScorer(self.split_model, score_tokens)
        self._pieces = _TokenTexts(tokenizer)
        self._memory: KVMemory | None = None
        self.engine_choice = engine

    @cached_property
    def engine(self) -> SamplingEngine | str:
        """What samples: an engine of ours over the same weights, or why Hugging Face's code has to."""
        if self.engine_choice == "plain":
            return "the plain path was asked for"
        try:
            return open_engine(
                self.network, self.tokenizer, dtype=self.dtype, max_batch=self.max_batch
            )
        except torch.OutOfMemoryError:
            reason = "there is no memory for a copy of the weights, which our engine needs"
            logger.warning("%s; sampling goes on without it, slower", reason)
            return reason

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.split_model.device

    @torch.no_grad()
    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """One completion per request; each draws from the random stream its key names.

        Log-probs are those of the whole distribution at the sampling temperature, also when
        ``top_p`` or ``top_k`` cut the choice, because that is what a learner can reproduce.
        """
        if not requests:
            return []
        if not isinstance(self.engine, str):
            return self.engine.sample(requests, params)
        requests = [self._with_image_ids(request) for request in requests]
        completions: list[Completion] = []
        while len(completions) < len(requests):
            left = requests[len(completions) :]
            write = partial(self._write, left, params)
            ends = len(completions) + min(len(left), self.max_batch)
            with part("writing", len(completions), ends, len(requests)):
                completions += until_it_fits(write, partial(self._shrink, len(left)))
        return completions

    def _write(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Completions of the first requests, as many as are written at once."""
        with self.precision():
            return _PlainDecodeLoop(self, requests[: self.max_batch], params).run()

    def _shrink(self, count: int) -> str:
        """Fewer of ``count`` sequences at once, once memory has run out; nothing if it was one."""
        self._memory = None
        at_once = min(count, self.max_batch)
        if at_once == 1:
            return ""
        self.max_batch = at_once // 2
        return f"{self.max_batch} sequences written at once"

    def give_back(self) -> bool:
        """Let go of what is kept for a next turn; whether there was anything."""
        had_any, self._memory = self._memory is not None, None
        engine = self.__dict__.get("engine", "")  # one that was never used holds nothing
        return had_any if isinstance(engine, str) else engine.give_back()

    def _with_image_ids(self, request: Request) -> Request:
        ids_T = self.split_model.with_image_ids(request.prompt_ids_T, request.images)
        return Request(ids_T, request.key, request.images)

    def remember(self, memory: KVMemory | None) -> None:
        """Keep the cache of the batch just written for a batch that continues it."""
        self._memory = memory

    def recall(self) -> KVMemory | None:
        """Take the remembered cache; it is handed out once, because continuing it changes it."""
        memory, self._memory = self._memory, None
        return memory

    def score(self, pairs: Sequence[Pair], temperature: float = 1.0) -> list[FloatArray]:
        """Log-prob of every continuation token; equal contexts and continuations are run once."""
        with self.precision():
            found = self.scorer.score(pairs, temperature)
        give_back_spare(self.device)
        return found

    def precision(self) -> torch.autocast:
        """The context in which the network computes as the learner's does."""
        is_low = self.dtype is not torch.float32
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=is_low)


class _TokenTexts:
    """Which tokens can complete a stop string: only those are worth decoding for."""

    def __init__(self, tokenizer: TemplateTokenizer) -> None:
        self._tokenizer = tokenizer
        self._may_end: dict[tuple[str, ...], frozenset[int]] = {}

    def may_end(self, stop: tuple[str, ...]) -> frozenset[int]:
        """Ids whose text holds the last character of some stop string."""
        if stop not in self._may_end:
            endings = {text[-1] for text in stop if text}
            ids = range(len(self._tokenizer.hf))
            texts = self._tokenizer.hf.batch_decode([[i] for i in ids]) if endings else []
            self._may_end[stop] = frozenset(
                i for i, text in zip(ids, texts, strict=False) if endings & set(text)
            )
        return self._may_end[stop]


class _PlainDecodeLoop:
    """One batch of completions being written by Hugging Face's forward pass."""

    def __init__(
        self, policy: HFPolicy, requests: Sequence[Request], params: SamplingParams
    ) -> None:
        self.policy = policy
        self.params = params
        self.requests = requests
        self.device = policy.device
        count = len(requests)
        self.uniforms = uniforms(requests, params.max_tokens)
        self.ids: list[list[int]] = [[] for _ in range(count)]
        self.logprobs: list[list[float]] = [[] for _ in range(count)]
        self.finish: list[Finish] = [Finish.LENGTH] * count
        self.may_end = policy._pieces.may_end(params.stop)
        self.longest_stop = max((len(text) for text in params.stop), default=0)
        self.version = weights_version(policy.network)
        self.places = policy.split_model.places([request.prompt_ids_T for request in requests])
        self.recorder = KVRecorder()

    def run(self) -> list[Completion]:
        """Prefill what is new of the prompts, then write token by token until all have finished."""
        logits, cache, mask = self._begin()
        active = list(range(len(self.requests)))
        for position in range(self.params.max_tokens):
            tokens = self._choose(logits, active, position)
            report("writing", position + 1, self.params.max_tokens)
            going = [row for row, index in enumerate(active) if self._goes_on(index)]
            if not going or position + 1 == self.params.max_tokens:
                break
            if len(going) < COMPACT_BELOW * len(active):
                gone = sorted(set(range(len(active))) - set(going))
                self.recorder.retire(cache, mask, gone, [active[row] for row in gone])
                rows = torch.tensor(going, device=self.device)
                cache.batch_select_indices(rows)
                tokens, mask = tokens[rows], mask[rows]
                active = [active[row] for row in going]
                going = list(range(len(active)))
            is_real = torch.zeros((len(active), 1), dtype=mask.dtype, device=self.device)
            is_real[going] = 1
            mask = torch.cat([mask, is_real], dim=1)
            slots = mask.sum(1, keepdim=True) - 1
            out = self._forward(tokens[:, None], mask, self.places(slots, active), cache)
            logits = out.logits[:, -1]
        self.recorder.retire(cache, mask, list(range(len(active))), active)
        self.policy.remember(self.recorder.finish(cache, self._held_ids(), self.version))
        return [self._completion(index) for index in range(len(self.requests))]

    def _begin(self) -> tuple[torch.Tensor, Any, torch.Tensor]:
        """Logits after each prompt, the cache and its mask; from memory where it can continue."""
        prompts = [request.prompt_ids_T for request in self.requests]
        memory = self.policy.recall()
        rows = memory.match(prompts, self.version) if memory is not None else None
        if memory is None or rows is None:
            return self._prefill_whole()
        at = torch.tensor(rows, device=self.device)
        memory.cache.batch_select_indices(at)
        known = [len(memory.held[row]) // 8 for row in rows]
        fresh = [prompt[start:] for prompt, start in zip(prompts, known, strict=True)]
        ids, new = _left_padded(fresh, self.device)
        mask = torch.cat([memory.mask[at], new], dim=1)
        before = torch.tensor(known, device=self.device)[:, None]
        slots = (before + new.cumsum(1) - 1).clamp(min=0)
        out = self._forward(ids, mask, self.places(slots), memory.cache)
        return out.logits[:, -1], memory.cache, mask

    def _prefill_whole(self) -> tuple[torch.Tensor, Any, torch.Tensor]:
        """Prefill every distinct prompt once and hand its cache to all that share it."""
        unique: dict[bytes, int] = {}
        rows = [
            unique.setdefault(request.prompt_ids_T.tobytes(), len(unique))
            for request in self.requests
        ]
        firsts = [rows.index(row) for row in range(len(unique))]
        ids, mask = _left_padded(
            [np.frombuffer(key, dtype=np.int64) for key in unique], self.device
        )
        slots = (mask.cumsum(1) - 1).clamp(min=0)
        out = self._forward(ids, mask, self.places(slots, firsts), None)
        expand = torch.tensor(rows, device=self.device)
        cache = out.past_key_values
        cache.batch_select_indices(expand)
        return out.logits[expand, -1], cache, mask[expand]

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any
    ) -> Any:
        """Logits of the last token of each row, and the cache with the rows in it."""
        return self.policy.network(
            **self.policy.split_model.model_inputs(ids),
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )

    def _held_ids(self) -> list[IntArray]:
        """What each row's cache holds: its prompt and all written tokens but the last."""
        return [
            np.concatenate([request.prompt_ids_T, np.array(ids[:-1], dtype=np.int64)])
            for request, ids in zip(self.requests, self.ids, strict=True)
        ]

    def _choose(self, logits: torch.Tensor, active: list[int], position: int) -> torch.Tensor:
        """Draw one token per row by inverting the cumulative distribution at the row's own uniform."""
        logp = torch.log_softmax(logits.float() / (self.params.temperature or 1.0), dim=-1)
        may_be = logp
        if never := self.policy.never_written:
            may_be = logp.index_fill(-1, torch.tensor(never, device=self.device), -torch.inf)
        if self.params.temperature == 0.0:
            tokens = may_be.argmax(-1)
        else:
            kept = cut(may_be, top_k=self.params.top_k, top_p=self.params.top_p)
            uniform_R1 = self.uniforms[active, position, None]
            draws = torch.as_tensor(uniform_R1, dtype=torch.float32).to(self.device)
            tokens = invert(kept.cumsum(-1), draws)
        chosen = logp.gather(-1, tokens[:, None]).squeeze(-1)
        values = chosen.tolist()
        need_numbers(np.array(values))
        for index, token, value in zip(active, tokens.tolist(), values, strict=True):
            if self.finish[index] is Finish.LENGTH:
                self.ids[index].append(token)
                self.logprobs[index].append(value)
        return tokens

    def _goes_on(self, index: int) -> bool:
        """Whether this row still writes; notes why not."""
        if self.finish[index] is not Finish.LENGTH:
            return False
        last = self.ids[index][-1]
        if last in self.policy.tokenizer.eos_ids:
            self.finish[index] = Finish.EOS
        elif last in self.may_end and self._has_stop(index):
            self.finish[index] = Finish.STOP
        return self.finish[index] is Finish.LENGTH

    def _has_stop(self, index: int) -> bool:
        tail = self.policy.tokenizer.decode(self.ids[index][-self.longest_stop :])
        return any(text in tail for text in self.params.stop)

    def _completion(self, index: int) -> Completion:
        return Completion(
            ids_T=np.array(self.ids[index], dtype=np.int64),
            logprobs_T=np.array(self.logprobs[index], dtype=np.float64),
            text=self.policy.tokenizer.decode(self.ids[index]),
            finish=self.finish[index],
        )


def _left_padded(
    sequences: Sequence[IntArray], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask with every sequence ending in the last column."""
    width = max(len(ids) for ids in sequences)
    padded = torch.zeros((len(sequences), width), dtype=torch.long)
    mask = torch.zeros_like(padded)
    for row, ids in enumerate(sequences):
        padded[row, width - len(ids) :] = torch.tensor(ids)
        mask[row, width - len(ids) :] = 1
    return padded.to(device), mask.to(device)
