"""Judging: from numbers to a verdict on a run."""
