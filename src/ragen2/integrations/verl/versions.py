"""Which verl this adapter was tested with."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ragen2.errors import DependencyError

TESTED = "0.9.1"
"""The one version whose hooks the tests run against: two of them are private, so no range is given."""


def require_verl() -> None:
    """Raise unless verl is there in the version that was tested."""
    try:
        found = version("verl")
    except PackageNotFoundError as error:
        raise DependencyError(
            "verl is not installed; pip install 'ragen2[verl]' brings it"
        ) from error
    if found != TESTED:
        raise DependencyError(
            f"ragen2.integrations.verl was tested with verl {TESTED}, found {found}; "
            f"pip install 'verl=={TESTED}'"
        )
