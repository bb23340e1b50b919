"""A wrong verb, flag or value on the command line, told in one line: what, found, cure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Parent of every such mistake. typer brings its own copy of click, or once used the package, so the
class is taken from the one name that both export."""

PYDANTIC = "Input should be "
"""How typer begins what it says about a value of the wrong type or range."""


def is_call_for_help(error: Any) -> bool:
    """A verb that does nothing by itself was called bare: its help has been printed already."""
    return type(error).__name__ == "NoArgsIsHelpError"


def usage_line(error: Any, words: Sequence[str]) -> str:
    """One line for a ``UsageError`` that the ``words`` of a command line gave."""
    verb = error.ctx.command_path if error.ctx else "ragen2"
    return f"{_what(error, words)}; see {verb} --help"


def _what(error: Any, words: Sequence[str]) -> str:
    message = " ".join(error.message.split()).rstrip(".")
    if error.ctx and message.startswith("No such option"):
        from ragen2.component import suggest

        options = [name for param in error.ctx.command.params for name in param.opts]
        known = [name for name in options if name.startswith("-")]
        return f"unknown option {error.option_name}; {suggest(error.option_name, known)}"
    param = getattr(error, "param", None)
    if param is not None and message.startswith(PYDANTIC):
        found = _found(param.opts, words)
        return f"{_shown(param)} must be {message.removeprefix(PYDANTIC)}{found}"
    told = " ".join(error.format_message().split()).rstrip(".").replace("'. Did", "'; did")
    return told[0].lower() + told[1:]


def _shown(param: Any) -> str:
    """``--tasks`` for an option, ``NAME`` for an argument."""
    first: str = param.opts[0]
    return first if first.startswith("-") else first.upper()


def _found(names: Sequence[str], words: Sequence[str]) -> str:
    """What stands behind the option on the command line, ready to be added to the sentence."""
    for index, word in enumerate(words):
        name, separator, value = word.partition("=")
        if name in names and (separator or index + 1 < len(words)):
            return f", got {value if separator else words[index + 1]!r}"
    return ""
