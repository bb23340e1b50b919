"""Which TRL this adapter was tested with."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ragen2.errors import DependencyError

TESTED = "1.16"
"""The one minor version whose hooks the tests run against."""


def require_trl() -> None:
    """Raise unless TRL is there in a version that was tested."""
    try:
        found = version("trl")
    except PackageNotFoundError as error:
        raise DependencyError(
            "TRL is not installed; pip install 'ragen2[trl]' brings it"
        ) from error
    if found.split(".")[:2] != TESTED.split("."):
        raise DependencyError(
            f"ragen2.integrations.trl was tested with TRL {TESTED}.x, found {found}; "
            f"pip install 'trl=={TESTED}.*'"
        )
