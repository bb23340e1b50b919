"""Log-probs of chosen tokens without ever holding full-vocabulary logits for more than a chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

MAX_LOGITS = 2**25
"""Elements of one chunk of logits: 128 MiB in float32."""


def rows_per_chunk(vocabulary: int) -> int:
    """Positions whose logits may exist at the same time."""
    return max(1, MAX_LOGITS // vocabulary)


def chosen_logprobs(
    hidden: torch.Tensor,
    targets: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor],
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of ``targets`` and entropy of the distribution at each row of ``hidden``.

    With gradients on, a chunk's logits are computed again in the backward pass instead of kept.
    """

    def one_chunk(rows: torch.Tensor, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logp = torch.log_softmax(head(rows).float() / temperature, dim=-1)
        entropy = -(logp.exp() * logp).sum(-1)
        return logp.gather(-1, chosen.unsqueeze(-1)).squeeze(-1), entropy

    size = rows_per_chunk(_vocabulary(head, hidden))
    if len(hidden) <= size:
        return one_chunk(hidden, targets)
    pieces: list[Any] = []
    for start in range(0, len(hidden), size):
        rows, chosen = hidden[start : start + size], targets[start : start + size]
        if torch.is_grad_enabled():
            pieces.append(checkpoint(one_chunk, rows, chosen, use_reentrant=False))
        else:
            pieces.append(one_chunk(rows, chosen))
    return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])


def target_logprobs(
    hidden: torch.Tensor,
    targets: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor],
    temperature: float,
) -> torch.Tensor:
    """Log-prob of ``targets`` at each row of ``hidden``; for scoring, where no gradient is wanted."""
    size = rows_per_chunk(_vocabulary(head, hidden))
    pieces = []
    for start in range(0, len(hidden), size):
        logits = head(hidden[start : start + size]).float()
        if temperature != 1.0:
            logits = logits / temperature
        chosen = logits.gather(-1, targets[start : start + size, None]).squeeze(-1)
        pieces.append(chosen - logits.logsumexp(-1))
    return torch.cat(pieces)


def _vocabulary(head: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor) -> int:
    return int(getattr(head, "out_features", 0)) or int(head(hidden[:1]).shape[-1])


class Trunk:
    """A causal LM split into the part that makes hidden states and the head that makes logits.

    Splitting lets logits be made for chosen positions only. Some architectures scale or cap logits
    outside the head; ``Trunk`` compares both ways once and refuses to split where they differ.
    """

    def __init__(self, network: Any) -> None:
        self.network = network
        self.decoder = network.get_decoder()
        self.head = network.get_output_embeddings()
        self.splits = self.head is not None and self._same_logits()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.network.parameters()).device  # type: ignore[no-any-return]  # untyped HF model

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights."""
        return next(self.network.parameters()).dtype  # type: ignore[no-any-return]  # untyped HF model

    def __call__(
        self, ids: torch.Tensor, mask: torch.Tensor, **more: Any
    ) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor], Any]:
        """Hidden rows (or logits, where the model does not split), their head, and the cache."""
        if self.splits:
            out = self.decoder(input_ids=ids, attention_mask=mask, **more)
            return out.last_hidden_state, self.head, out.past_key_values
        out = self.network(input_ids=ids, attention_mask=mask, **more)
        return out.logits, _identity, out.past_key_values

    @torch.no_grad()
    def _same_logits(self) -> bool:
        device = next(self.network.parameters()).device
        ids = torch.tensor([[1, 2, 3]], device=device)
        mask = torch.ones_like(ids)
        whole = self.network(input_ids=ids, attention_mask=mask, use_cache=False).logits
        hidden = self.decoder(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        return bool(torch.allclose(whole.float(), self.head(hidden).float(), atol=1e-4, rtol=1e-4))


def _identity(rows: torch.Tensor) -> torch.Tensor:
    return rows
