"""Runs: the run directory, the only interface between training and reporting."""
