"""Learning: the forward pass for a gradient, log-probs, the optimiser, the critic, adapters."""
