"""The program ``ragen2``: its verbs, and the one place where errors become exit codes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
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
from ragen2.cli.shared import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USER
from ragen2.errors import FailedCheck, RagenError

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


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch says so; read off its message, because torch may not be installed."""
    message = str(error).lower()
    return "cuda" in message and "out of memory" in message


def out_of_memory_line(error: RuntimeError) -> str:
    """What happened, and what needs less."""
    message = str(error).splitlines()[0].split(". GPU ")[0].rstrip(".")
    return (
        f"{message}; smaller settings: fewer --jobs, rollout.prompts or group_size, learner.micro_tokens, "
        "learner.gradient_checkpointing = true"
    )


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


def main() -> None:
    """Run a verb; a user's mistake is one line per mistake and exit code 2, never a traceback.

    A check that was asked for and did not pass is exit code 1.
    """
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr
    )
    try:
        code = app(prog_name="ragen2", standalone_mode=False)
    except RagenError as error:
        for line in str(error).splitlines():
            print(f"ragen2: {line}", file=sys.stderr)
        sys.exit(EXIT_FAILED if isinstance(error, FailedCheck) else EXIT_USER)
    except UsageError as error:
        if not is_call_for_help(error):
            print(f"ragen2: {usage_line(error, sys.argv[1:])}", file=sys.stderr)
        sys.exit(EXIT_USER)
    except (KeyboardInterrupt, typer.Abort):
        print("ragen2: interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        print(f"ragen2: {out_of_memory_line(error)}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    sys.exit(code)


if __name__ == "__main__":
    main()
