"""The program ``ragen2``: its verbs, and the one place where errors become exit codes."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

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
    watch,
)
from ragen2.cli.memory import is_out_of_memory, out_of_memory_line
from ragen2.cli.usage import UsageError, is_call_for_help, usage_line
from ragen2.errors import FailedCheck, RagenError

EXIT_FAILED = 1
EXIT_USER = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    help="Train LLM agents by reinforcement, see template collapse as it happens, and prevent it.",
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
app.command("watch")(watch.watch)
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
    """Run a verb; a user's mistake is one line a mistake and exit code 2, never a traceback.

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
