"""Fuzzing of every reader of foreign bytes; see ``__main__``."""
