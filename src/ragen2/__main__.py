"""``ragen2`` and ``python -m ragen2``."""

import sys


def main() -> None:
    """Run the program; a Ctrl-C while it is still being imported is no traceback either."""
    try:
        from ragen2.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
