"""Several runs side by side, one process per run."""
