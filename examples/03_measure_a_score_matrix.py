"""Measure collapse from a matrix of log-probs, whoever computed it.

Two made-up batches have the same entropy. In the first, a trace is likelier under its own prompt than
under the others; in the second, every prompt explains it equally well. Only the second has collapsed.

Run it with `python examples/03_measure_a_score_matrix.py`.
"""

import numpy as np

from ragen2.diagnostics import measure, regime

NUM_PROMPTS, TRACES_EACH, TOKENS = 8, 8, 20
NATS_PER_TOKEN = 0.5
"""H(Z|X) of both batches."""


def batch(penalty: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log-probs (N x P), lengths and owners; a wrong prompt costs ``penalty`` nats per token."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(NUM_PROMPTS), TRACES_EACH)
    length = np.full(len(owner), TOKENS)
    own_nats = NATS_PER_TOKEN + 0.05 * rng.standard_normal(len(owner))
    is_own = owner[:, None] == np.arange(NUM_PROMPTS)
    noise = 0.05 * rng.standard_normal(is_own.shape)
    nats = own_nats[:, None] + noise + np.where(is_own, 0.0, penalty)
    return -nats * length[:, None], length, owner


def main() -> None:
    for name, penalty in (("grounded", 1.5), ("collapsed", 0.0)):
        metrics = measure(*batch(penalty))
        print(f"\n{name}: {regime(metrics).value}")
        for metric in ("conditional_entropy", "mi_estimate", "retrieval_accuracy"):
            low, high = metrics[f"{metric}_low"], metrics[f"{metric}_high"]
            print(f"  {metric:<20} {metrics[metric]:.3f}  (95% {low:.3f} to {high:.3f})")
        print(f"  {'retrieval_chance':<20} {metrics['retrieval_chance']:.3f}")
        print(f"  {'retrieval_p_value':<20} {metrics['retrieval_p_value']:.4f}")


if __name__ == "__main__":
    main()
