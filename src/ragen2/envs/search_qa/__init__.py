"""SearchQA."""
