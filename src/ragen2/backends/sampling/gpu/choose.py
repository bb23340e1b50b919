"""Choosing tokens on the device: draws, stop strings and the end of text, without asking the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from ragen2.backends.sampling.choosing import EndRules, cut, invert
from ragen2.backends.sampling.gpu import kernels
from ragen2.policy import SamplingParams

VOCABULARY_BLOCK = 2048


@dataclass(frozen=True, slots=True)
class Rule:
    """What of the sampling settings is built into a graph; temperature and uniforms are read at run time."""

    greedy: bool
    top_k: int
    top_p: float
    stop: tuple[str, ...]

    @classmethod
    def of(cls, params: SamplingParams) -> Rule:
        """The rule of these settings."""
        return cls(params.temperature == 0.0, params.top_k, params.top_p, params.stop)

    @property
    def cuts(self) -> bool:
        """Whether some tokens may not be chosen."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1.0)


@dataclass(frozen=True, slots=True)
class Lanes:
    """The sequences being written, one column each; one tensor, so that columns move together."""

    state_6B: torch.Tensor

    @classmethod
    def empty(cls, count: int, device: torch.device) -> Lanes:
        """So many columns."""
        return cls(torch.zeros((6, count), dtype=torch.int64, device=device))

    def first(self, count: int) -> Lanes:
        """The first columns, in the same memory."""
        return Lanes(self.state_6B[:, :count])

    @property
    def token_B(self) -> torch.Tensor:
        """The token that goes through the model next."""
        return self.state_6B[0]

    @property
    def row_B(self) -> torch.Tensor:
        """Row of the cache."""
        return self.state_6B[1]

    @property
    def position_B(self) -> torch.Tensor:
        """Where in its row the token goes."""
        return self.state_6B[2]

    @property
    def output_B(self) -> torch.Tensor:
        """Row of the output."""
        return self.state_6B[3]

    @property
    def stop_B(self) -> torch.Tensor:
        """State of the stop strings' automaton."""
        return self.state_6B[4]

    @property
    def done_B(self) -> torch.Tensor:
        """1 once the sequence has ended."""
        return self.state_6B[5]


class Output:
    """What is written, by row and step, and the uniforms it is drawn with."""

    def __init__(self, rows: int, tokens: int, device: torch.device) -> None:
        self.rows, self.tokens = rows, tokens
        self.uniform_RT = torch.zeros((rows, tokens), dtype=torch.float32, device=device)
        self.ids_RT = torch.zeros((rows, tokens), dtype=torch.int64, device=device)
        self.logp_RT = torch.zeros((rows, tokens), dtype=torch.float32, device=device)
        self.written_R = torch.zeros(rows, dtype=torch.int64, device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.temperature = torch.ones(1, dtype=torch.float32, device=device)


class Chooser:
    """Draws a token per lane from logits and writes it down."""

    def __init__(self, ends: EndRules, device: torch.device) -> None:
        self._ends = ends
        self._tables: dict[tuple[str, ...], torch.Tensor] = {}
        self.is_eos_V = torch.from_numpy(ends.is_eos_V).to(device, torch.int8)
        self.vocabulary = len(self.is_eos_V)
        self._blocks = triton.cdiv(self.vocabulary, VOCABULARY_BLOCK)
        self._parts: tuple[torch.Tensor, ...] = ()

    def reserve(self, lanes: int) -> None:
        """Scratch for so many lanes."""
        shape, device = (lanes, self._blocks), self.is_eos_V.device
        self._parts = (
            torch.empty(shape, device=device),
            torch.empty(shape, device=device),
            torch.empty(shape, dtype=torch.int64, device=device),
            torch.empty(lanes, device=device),
        )

    def choose(self, logits: torch.Tensor, lanes: Lanes, out: Output, rule: Rule) -> None:
        """One more token in every lane that still writes."""
        logp_B, table_SV = self._parts[3], self._table(rule.stop)
        if rule.cuts:
            self._draw_cut(logits, lanes, out, rule)
        else:
            self._draw(logits, lanes, out, greedy=rule.greedy)
        kernels.advance[(len(lanes.token_B),)](
            lanes.token_B,
            logp_B,
            lanes.output_B,
            lanes.position_B,
            lanes.stop_B,
            lanes.done_B,
            table_SV,
            self.is_eos_V,
            out.step,
            out.ids_RT,
            out.logp_RT,
            out.written_R,
            self.vocabulary,
            out.tokens,
            STOPPED=len(table_SV) - 1,
            num_warps=1,
        )
        out.step += 1

    def _table(self, stop: tuple[str, ...]) -> torch.Tensor:
        """The stop strings' table on the device; it stays where it is, because graphs point at it."""
        if stop not in self._tables:
            table = self._ends.table(stop).next_SV
            self._tables[stop] = torch.from_numpy(table).to(self.is_eos_V.device)
        return self._tables[stop]

    def _draw(self, logits: torch.Tensor, lanes: Lanes, out: Output, *, greedy: bool) -> None:
        top_BJ, sum_BJ, best_BJ, logp_B = self._parts
        count = len(logits)
        kernels.block_sums[(count, self._blocks)](
            logits,
            out.temperature,
            top_BJ,
            sum_BJ,
            best_BJ,
            self.vocabulary,
            BLOCKS=self._blocks,
            BLOCK=VOCABULARY_BLOCK,
        )
        kernels.draw[(count,)](
            logits,
            out.temperature,
            top_BJ,
            sum_BJ,
            best_BJ,
            out.uniform_RT,
            lanes.output_B,
            out.step,
            lanes.token_B,
            logp_B,
            self.vocabulary,
            out.tokens,
            GREEDY=greedy,
            BLOCKS=self._blocks,
            BLOCKS_2=triton.next_power_of_2(self._blocks),
            BLOCK=VOCABULARY_BLOCK,
        )

    def _draw_cut(self, logits: torch.Tensor, lanes: Lanes, out: Output, rule: Rule) -> None:
        """With top-k or top-p: the same draw among fewer tokens; log-probs stay those of all."""
        logp = torch.log_softmax(logits.float() / out.temperature, dim=-1)
        cumulative = cut(logp, top_k=rule.top_k, top_p=rule.top_p).cumsum(-1)
        draws = out.uniform_RT[lanes.output_B].gather(1, out.step.expand(len(logits), 1))
        tokens = invert(cumulative, draws)
        lanes.token_B.copy_(tokens)
        self._parts[3][: len(logits)] = logp.gather(-1, tokens[:, None]).squeeze(-1)
