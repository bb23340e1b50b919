"""Every error a user can meet: one root, each child says whose move it is."""

from __future__ import annotations


class RagenError(Exception):
    """Root of all errors raised on purpose; its text is one line: what, found, cure."""


class ConfigError(RagenError, ValueError):
    """A run file, a flag or a setting must be changed. May hold several mistakes, one a line."""


class EnvError(RagenError):
    """An environment broke its contract or cannot be built."""


class FailedCheck(EnvError):
    """A check that was asked for ran and did not pass: exit code 1, not a mistake of the user."""


class ModelError(RagenError):
    """A model folder, hub id or file cannot be used."""


class RunError(RagenError):
    """A run directory cannot be created, read, resumed or written."""


class DependencyError(RagenError, ImportError):
    """An optional package is missing; the text names the extra that brings it."""
