"""A draw from a distribution over tokens: the same one number, the same token, on every path."""

from __future__ import annotations

import torch


def cut(logp: torch.Tensor, *, top_k: int, top_p: float) -> torch.Tensor:
    """Probabilities after ``top_k`` and ``top_p``; not normalised again, the draw does that."""
    probabilities = logp.exp()
    if top_k and top_k < logp.shape[-1]:
        least = probabilities.topk(top_k, dim=-1).values[:, -1:]
        probabilities = probabilities.where(probabilities >= least, 0.0)
    if top_p < 1.0:
        ordered, places = probabilities.sort(dim=-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        kept = ordered.where(before < top_p * ordered.sum(-1, keepdim=True), 0.0)
        probabilities = torch.zeros_like(probabilities).scatter(-1, places, kept)
    return probabilities


def invert(cumulative: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """The token that each draw of [0, 1), one a row, lands on."""
    # A draw so near 1 that it rounds up must still land on a token that may be chosen.
    below = torch.nextafter(cumulative[:, -1:], torch.zeros_like(cumulative[:, -1:]))
    wanted = (draws * cumulative[:, -1:]).minimum(below)
    # Where nothing is finite, nothing can be found: such a row lands past the end.
    places = torch.searchsorted(cumulative, wanted, right=True).squeeze(-1)
    return places.clamp(max=cumulative.shape[-1] - 1)
