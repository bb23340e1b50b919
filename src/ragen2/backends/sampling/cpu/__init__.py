"""The CPU engine: a decode loop of its own over the weights of a model."""
