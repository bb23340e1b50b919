"""Every error a user can meet: one root, each child says whose move it is."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

LONGEST_LINE = 300
"""Characters that are shown of what somebody else's code says."""
NOT_THE_USERS = (
    str(Path(__file__).parent),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    "<frozen",
)
"""How the files begin that a user did not write."""


class RagenError(Exception):
    """Root of all errors raised on purpose; its text is one line: what, found, cure."""


class ConfigError(RagenError, ValueError):
    """A run file, a flag or a setting must be changed. May hold several mistakes, one a line."""


class EnvError(RagenError):
    """An environment broke its contract or cannot be built."""


class FailedCheck(EnvError):
    """A check that was asked for ran and did not pass: exit code 1, not a mistake of the user."""


class MissingMethod(EnvError):
    """An environment was asked for something that it need not have, such as an expert, and has not."""


class GradingError(EnvError):
    """What grades an answer, such as a sandbox, is missing or failed: no answer is wrong for that."""


class ModelError(RagenError):
    """A model folder, hub id or file cannot be used."""


class RunError(RagenError):
    """A run directory cannot be created, read, resumed or written."""


class DependencyError(RagenError, ImportError):
    """An optional package is missing; the text names the extra that brings it."""


def told(error: BaseException) -> str:
    """One line on what code of the user's raised, and where: ``ValueError: boo (mine.py, line 12)``."""
    if isinstance(error, SyntaxError):
        said = f"{type(error).__name__}: {error}"  # names its file and line itself
    else:
        said = traceback.format_exception_only(error)[0]
    line = " ".join(said.split())[:LONGEST_LINE]
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [one for one in frames if not one.filename.startswith(NOT_THE_USERS)]
    if isinstance(error, SyntaxError) or not theirs:
        return line
    return f"{line} ({Path(theirs[-1].filename).name}, line {theirs[-1].lineno})"
