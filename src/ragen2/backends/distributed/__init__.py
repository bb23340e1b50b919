"""Several processes on one machine that train one model."""
