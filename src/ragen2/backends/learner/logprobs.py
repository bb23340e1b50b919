"""Log-probs of chosen tokens without ever holding full-vocabulary logits for more than a chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from ragen2.backends.decoder import PositionLookup, text_positions
from ragen2.backends.device import float_product
from ragen2.backends.vision.embedding import ImageEmbedder
from ragen2.errors import ModelError
from ragen2.types import Image, IntArray


class LinearLogprobs(torch.autograd.Function):
    """``(hidden, weight, bias, targets, temperature, rows of a chunk) -> (log-prob, entropy)``."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets_N: torch.Tensor,
        temperature: float,
        size: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Values; what the backward pass needs is one normaliser and one entropy per row."""
        ctx.dtype = _product_dtype(hidden)
        ctx.temperature, ctx.size = temperature, size
        found = []
        with torch.autocast(hidden.device.type, enabled=False):
            cast = weight.to(ctx.dtype)
            for part in _chunks(len(hidden), size):
                z_CV = _scaled_logits(hidden[part], cast, bias, temperature)
                norm_C = z_CV.logsumexp(-1)
                chosen_C = z_CV.gather(-1, targets_N[part, None]).squeeze(-1) - norm_C
                logp_CV = z_CV.sub_(norm_C[:, None])
                entropy_C = -(logp_CV.exp().mul_(logp_CV)).sum(-1)
                found.append((chosen_C, entropy_C, norm_C))
        logp_N, entropy_N, norm_N = (torch.cat(each) for each in zip(*found, strict=True))
        ctx.save_for_backward(hidden, weight, bias, targets_N, norm_N, entropy_N)
        return logp_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of ``hidden``, ``weight`` and ``bias``.

        With logits z over the temperature, p = softmax(z), l = log p and entropy H = -sum p l, the loss's
        gradients g of a row's log-prob l_t and e of its H give
        d z_v = g (1[v = t] - p_v) - e p_v (l_v + H) = g 1[v = t] - p_v (e l_v + (g + e H)).
        The last bracket is ``pull``. Logits are computed again, a chunk at a time, never kept.
        """
        hidden, weight, bias, targets_N, norm_N, entropy_N = ctx.saved_tensors
        logp_grad_N, entropy_grad_N = grads
        pull_N = logp_grad_N + entropy_grad_N * entropy_N
        hidden_grad = torch.empty_like(hidden)
        weight_grad = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        bias_grad = torch.zeros_like(bias) if ctx.needs_input_grad[2] else None
        cast = weight.to(ctx.dtype)
        for part in _chunks(len(hidden), ctx.size):
            z_CV = _scaled_logits(hidden[part], cast, bias, ctx.temperature)
            logp_CV = z_CV.sub_(norm_N[part, None])
            p_CV = logp_CV.exp()
            grad_CV = logp_CV.mul_(entropy_grad_N[part, None]).add_(pull_N[part, None])
            grad_CV = grad_CV.mul_(p_CV).neg_()
            grad_CV.scatter_add_(-1, targets_N[part, None], logp_grad_N[part, None])
            logit_grad = grad_CV.div_(ctx.temperature).to(ctx.dtype)
            hidden_grad[part] = (logit_grad @ cast).to(hidden.dtype)
            if weight_grad is not None:
                weight_grad += float_product(logit_grad.T, hidden[part].to(ctx.dtype))
            if bias_grad is not None:
                bias_grad += grad_CV.sum(0)
        return hidden_grad, weight_grad, bias_grad, None, None, None


def _product_dtype(hidden: torch.Tensor) -> torch.dtype:
    """What a linear layer would multiply in: autocast's precision, or that of its input."""
    kind = hidden.device.type
    is_cast = torch.is_autocast_enabled(kind) and hidden.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if is_cast else hidden.dtype


def _chunks(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, start + size)


def _scaled_logits(
    rows: torch.Tensor, cast: torch.Tensor, bias: torch.Tensor | None, temperature: float
) -> torch.Tensor:
    """Logits over the temperature, in float32 and never a view of something kept."""
    logits = float_product(rows.to(cast.dtype), cast.T)
    if bias is not None:
        logits += bias
    return logits if temperature == 1.0 else logits.div_(temperature)


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


class SplitModel:
    """A causal LM split into the part that makes hidden states and the head that makes logits.

    Splitting lets logits be made for chosen positions only. Some architectures scale or cap logits
    outside the head; ``SplitModel`` compares both ways once and refuses to split where they differ.
    """

    def __init__(self, network: Any, embedder: ImageEmbedder | None = None) -> None:
        self.network = network
        self.embedder = embedder
        self.decoder = network.get_decoder()
        self.head = network.get_output_embeddings()
        self.splits = self.head is not None and self._same_logits()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.network.parameters()).device  # type: ignore[no-any-return]  # untyped HF model

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the language model's matrices."""
        return self.network.get_input_embeddings().weight.dtype  # type: ignore[no-any-return]  # untyped HF model

    def __call__(
        self, ids: torch.Tensor, mask: torch.Tensor, **more: Any
    ) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor], Any]:
        """Hidden rows (or logits, where the model does not split), their head, and the cache.

        ``ids`` are rows as ``with_image_ids`` gives them.
        """
        if self.splits:
            out = self.decoder(**self.model_inputs(ids), attention_mask=mask, **more)
            return out.last_hidden_state, self.head, out.past_key_values
        out = self.network(**self.model_inputs(ids), attention_mask=mask, **more)
        return out.logits, identity, out.past_key_values

    def with_image_ids(self, ids_T: IntArray, images: Sequence[Image]) -> IntArray:
        """A row under which images are told apart; without images the row itself."""
        if not images:
            return ids_T
        if self.embedder is None:
            raise ModelError("a prompt holds images, but this model reads text only")
        return self.embedder.with_image_ids(ids_T, images)

    def model_inputs(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """What a network is given for rows of ``with_image_ids``: ids, or embeddings, images among them."""
        return (
            {"input_ids": ids}
            if self.embedder is None
            else {"inputs_embeds": self.embedder.embed(ids)}
        )

    def places(self, rows: Sequence[IntArray]) -> PositionLookup:
        """Positions in rows of ``with_image_ids``."""
        return (
            text_positions
            if self.embedder is None
            else self.embedder.position_lookup(rows, self.device)
        )

    @torch.no_grad()
    def _same_logits(self) -> bool:
        ids = torch.tensor([[1, 2, 3]], device=self.device)
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
        with self.own_precision():
            whole = self.network(**given).logits
            split = self.head(self.decoder(**given).last_hidden_state)
        return bool(torch.allclose(whole.float(), split.float(), atol=1e-4, rtol=1e-4))

    def own_precision(self) -> torch.autocast:
        """The context in which the model runs at the precision its matrices are stored in."""
        is_low = self.dtype is torch.bfloat16
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=is_low)


def identity(rows: torch.Tensor) -> torch.Tensor:
    """The head of a model that makes its logits by itself."""
    return rows


def base_of(network: Any) -> Any:
    """The Hugging Face model inside a PEFT wrapper, or the model itself."""
    return network.get_base_model() if hasattr(network, "get_base_model") else network
