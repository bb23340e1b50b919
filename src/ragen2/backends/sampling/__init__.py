"""Sampling: completions from a model, by transformers or by the engines of our own for CPU and GPU."""
