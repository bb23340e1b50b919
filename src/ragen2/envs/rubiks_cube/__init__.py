"""RubiksCube."""
