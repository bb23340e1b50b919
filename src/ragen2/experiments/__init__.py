"""Experiments: grids of runs that answer one question each, with intervals, tables and figures."""
