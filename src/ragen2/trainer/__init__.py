"""Trainer: the loop, evaluation, warm start. There is no trainer class."""
