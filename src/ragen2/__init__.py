"""ragen2: keep LLM agents honest while they learn by reinforcement."""

__version__ = "0.1.0"
