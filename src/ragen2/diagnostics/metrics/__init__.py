"""Metrics: one module per measured quantity."""
