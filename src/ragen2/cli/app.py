"""The program ``ragen2``: its verbs, and the one place where errors become exit codes."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ragen2 import __version__
from ragen2.cli import (
    audit,
    bench,
    envs,
    evaluate,
    experiment,
    preflight,
    probe,
    pull,
    report,
    train,
    warmstart,
)
from ragen2.cli.outlasting import outlasting
from ragen2.cli.shared import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USER
from ragen2.errors import ConfigError, FailedCheck, RagenError, told

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
    line = " ".join(error.format_message().split()).rstrip(".").replace("'. Did", "'; did")
    return line[0].lower() + line[1:]


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


def is_out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Whether Python or torch says so; read off the message, because torch may not be installed."""
    message = str(error).lower()
    is_torch = ("cuda" in message and "out of memory" in message) or "not enough memory" in message
    return isinstance(error, MemoryError) or is_torch


def out_of_memory_line(error: MemoryError | RuntimeError) -> str:
    """What happened, and what needs less."""
    first = (str(error) or "out of memory").splitlines()[0]
    message = first.split(". GPU ")[0].rstrip(".")
    return (
        f"{message}; smaller settings: fewer --jobs, rollout.prompts or group_size, learner.micro_tokens, "
        "learner.gradient_checkpointing = true"
    )


def write_anything(*streams: Any) -> None:
    """Let characters that a stream has no code for be replaced: a name is not worth a run."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")


def refuse_broken_text(words: Sequence[str]) -> None:
    """Names of files end up in records and pages, which hold text: bytes that are none are refused."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"{os.fsencode(word)!r} is not text in {sys.getfilesystemencoding()}; rename it"
            ) from error


DEVICE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""What a disk answers, often without the name of a file."""


def is_about_files(error: OSError) -> bool:
    """Whether files that are not the package's cannot be read or written, as its user must know."""
    if error.errno is None or error.filename is None:
        return error.errno in DEVICE_ERRORS
    return not str(error.filename).startswith(str(Path(__file__).parents[1]))


def file_line(error: OSError) -> str:
    """Which file, and what the system says of it."""
    what = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "a file"
    return f"{what} cannot be read or written: {error.strerror or error}"


app = typer.Typer(
    help="Train LLM agents with reinforcement learning, see template collapse as it happens, and prevent it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train")(train.train)
app.command("eval")(evaluate.evaluate)
app.command("preflight")(preflight.preflight)
app.command("probe")(probe.probe)
app.command("audit")(audit.audit)
app.command("report")(report.report)
app.command("watch")(report.watch)
app.command("experiment")(experiment.experiment)
app.command("warmstart")(warmstart.warmstart)
app.command("pull")(pull.pull)
app.add_typer(envs.app, name="envs")
app.add_typer(bench.app, name="bench")


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Shown above the verbs."""
    if version:
        print(__version__)
        raise typer.Exit


def ending(error: BaseException, words: Sequence[str]) -> tuple[str, int] | None:
    """What is told of an error, and the exit code; None for a mistake of ours, which shows where it is."""
    match error:
        case FailedCheck():
            return str(error), EXIT_FAILED
        case RagenError():
            return str(error), EXIT_USER
        case UsageError():
            return "" if is_call_for_help(error) else usage_line(error, words), EXIT_USER
        case KeyboardInterrupt() | typer.Abort():
            return "interrupted", EXIT_INTERRUPTED
        case SystemExit():  # no verb ends the program that way: a plug-in did, whatever its code
            return f"the program was ended from inside by {told(error)}", EXIT_USER
        case OSError() if is_about_files(error):
            return file_line(error), EXIT_USER
        case MemoryError() | RuntimeError() if is_out_of_memory(error):
            return out_of_memory_line(error), EXIT_FAILED
    return plugin_line(error)


def plugin_line(error: BaseException) -> tuple[str, int] | None:
    """The same where code of a plug-in was running: the mistake is there, or in what it was given."""
    from ragen2.component import PLUGIN_FILES

    frames = traceback.extract_tb(error.__traceback__)
    if not any(Path(one.filename) in PLUGIN_FILES for one in frames):
        return None
    return f"a plug-in raised {told(error)}; mend it", EXIT_USER


def main() -> None:
    """Run a verb to its end, whatever becomes of its output."""
    with outlasting():
        run_verb()


def run_verb() -> None:
    """Run a verb; a user's mistake is one line per mistake and exit code 2, never a traceback.

    A check that was asked for and did not pass is exit code 1.
    """
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr
    )
    write_anything(sys.stdout, sys.stderr)
    try:
        refuse_broken_text(sys.argv[1:])
        code = app(prog_name="ragen2", standalone_mode=False)
    except BaseException as error:
        ended = ending(error, sys.argv[1:])
        if ended is None:
            raise
        text, code = ended
        for line in text.splitlines():
            print(f"ragen2: {line}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
