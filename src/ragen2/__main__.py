"""``python -m ragen2``."""

from ragen2.cli.app import main

main()
