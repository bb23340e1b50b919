"""Backends: what samples, scores and trains. Importing this room alone imports no torch."""
