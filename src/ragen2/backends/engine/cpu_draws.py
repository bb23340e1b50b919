"""The next token of every row: drawn by a random number of its own, or the likeliest."""

from __future__ import annotations

import torch

from ragen2.backends.draws import cut, invert
from ragen2.policy import SamplingParams


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
