"""Scoring: log-probs of given continuations, each shared context run once."""
