"""Options that several verbs share, and the guarded door to torch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from ragen2.errors import DependencyError

if TYPE_CHECKING:
    from types import ModuleType

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override a setting; may be given often."),
]


def require_torch() -> ModuleType:
    """``ragen2.backends.agent``, or a line that says how to install what it needs."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # On busy cores, threads that wait by spinning slow a small model down several times over.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        from ragen2.backends import agent
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ragen2"):
            raise
        raise DependencyError(
            f"this needs torch and transformers ({error.name} is missing); pip install 'ragen2[train]'"
        ) from error
    agent.quiet_transformers()
    return agent
