"""Log-probs of chosen tokens without ever holding full-vocabulary logits for more than a chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from ragen2.backends.images.sight import Places, Sight, plain_places
from ragen2.backends.linear_logprobs import LinearLogprobs
from ragen2.backends.precision import float_product
from ragen2.errors import ModelError
from ragen2.types import Image, IntArray

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
    size = rows_per_chunk(_vocabulary(head, hidden))
    if type(head) is torch.nn.Linear and len(hidden):
        return LinearLogprobs.apply(  # type: ignore[no-any-return, no-untyped-call]  # torch's is untyped
            hidden, head.weight, head.bias, targets, temperature, size
        )
    pieces = [
        checkpoint(_one_chunk, rows, chosen, head, temperature, use_reentrant=False)
        for rows, chosen in zip(torch.split(hidden, size), torch.split(targets, size), strict=True)
    ]
    return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])


def _one_chunk(
    rows: torch.Tensor,
    chosen: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor],
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """For heads that are more than a matrix: adapters, logits made elsewhere."""
    logp = torch.log_softmax(head(rows).float() / temperature, dim=-1)
    entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(-1, chosen.unsqueeze(-1)).squeeze(-1), entropy


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
        logits = _float_logits(head, hidden[start : start + size])
        if temperature != 1.0:
            logits = logits / temperature
        chosen = logits.gather(-1, targets[start : start + size, None]).squeeze(-1)
        pieces.append(chosen - logits.logsumexp(-1))
    return torch.cat(pieces)


def _float_logits(
    head: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor
) -> torch.Tensor:
    """In float32, and not rounded to a lower precision on the way where the head is a plain matrix."""
    kind = hidden.device.type
    if type(head) is torch.nn.Linear and head.bias is None and torch.is_autocast_enabled(kind):
        low = torch.get_autocast_dtype(kind)
        return float_product(hidden.to(low), head.weight.to(low).T)
    return head(hidden).float()


def _vocabulary(head: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor) -> int:
    return int(getattr(head, "out_features", 0)) or int(head(hidden[:1]).shape[-1])


class Trunk:
    """A causal LM split into the part that makes hidden states and the head that makes logits.

    Splitting lets logits be made for chosen positions only. Some architectures scale or cap logits
    outside the head; ``Trunk`` compares both ways once and refuses to split where they differ.
    """

    def __init__(self, network: Any, sight: Sight | None = None) -> None:
        self.network = network
        self.sight = sight
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
        """Hidden rows (or logits, where the model does not split), their head, and the cache.

        ``ids`` are rows as ``placed`` gives them.
        """
        if self.splits:
            out = self.decoder(**self.read(ids), attention_mask=mask, **more)
            return out.last_hidden_state, self.head, out.past_key_values
        out = self.network(**self.read(ids), attention_mask=mask, **more)
        return out.logits, identity, out.past_key_values

    def placed(self, ids_T: IntArray, images: Sequence[Image]) -> IntArray:
        """A row under which images are told apart; without images the row itself."""
        if not images:
            return ids_T
        if self.sight is None:
            raise ModelError("a prompt holds images, but this model reads text only")
        return self.sight.place(ids_T, images)

    def read(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """What a network is given for placed rows: ids, or embeddings with images among them."""
        return (
            {"input_ids": ids} if self.sight is None else {"inputs_embeds": self.sight.embed(ids)}
        )

    def places(self, rows: Sequence[IntArray]) -> Places:
        """Positions in placed rows."""
        return plain_places if self.sight is None else self.sight.places(rows, self.device)

    @torch.no_grad()
    def _same_logits(self) -> bool:
        device = next(self.network.parameters()).device
        ids = torch.tensor([[1, 2, 3]], device=device)
        mask = torch.ones_like(ids)
        whole = self.network(input_ids=ids, attention_mask=mask, use_cache=False).logits
        hidden = self.decoder(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        return bool(torch.allclose(whole.float(), self.head(hidden).float(), atol=1e-4, rtol=1e-4))


def identity(rows: torch.Tensor) -> torch.Tensor:
    """The head of a model that makes its logits by itself."""
    return rows
