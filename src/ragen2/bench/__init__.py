"""Benchmarks behind ``ragen2 bench``: what is timed, and the peers it is timed against."""
