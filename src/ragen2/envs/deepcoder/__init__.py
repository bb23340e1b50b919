"""DeepCoder."""
