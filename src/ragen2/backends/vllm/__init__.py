"""vLLM as sampler and scorer, in this process or as a server."""
